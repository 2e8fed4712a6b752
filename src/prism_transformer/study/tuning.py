"""[tune]: the runs that find each arm's learning rate, and what they have found.

These runs are a study of their own, in the folder tuning/ of the study: the same arms, a point for
each rate, seeds that the comparison does not have, and no stage but training. An arm whose lowest
loss is at the end of its rates gets one more rate there, as often as the study allows
(``extend``). What was found is written to rates.json when the comparison begins and is final: the
comparison must not change under later runs. A collected sweep over the same rates and seeds can
stand in for these runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan
from pathlib import Path

from prism_transformer.core.sealed import read_sealed, typed, write_sealed
from prism_transformer.recipes.files import changed
from prism_transformer.study.arms import Arm
from prism_transformer.study.best_rates import best_rate, extended, losses_by_rate
from prism_transformer.study.collected import (
    LEARNING_RATE,
    ArmFacts,
    Collected,
    RateFacts,
    TuningFacts,
)
from prism_transformer.study.plan import Cell, Plan, training_differences
from prism_transformer.study.runs import run_of
from prism_transformer.study.spec import StudyError, TuneStage

TUNING = "tuning"  # folder of the runs, in the study's
RATES_FILE = "rates.json"


@dataclass(frozen=True)
class Rates:
    """How far the tuning of a study is."""

    plan: Plan
    """every tuning run that is needed, as far as is known by now"""
    facts: TuningFacts
    """arms whose rate is found"""
    stuck: dict[str, str]
    """arms whose rate cannot be found within the study's limits, and why"""


def find_rates(plan: Plan, folder: Path, known: TuningFacts | None = None) -> Rates:
    """The rate of each arm, from what the study's folder holds or what was ``known`` before."""
    stage = _stage(plan)
    facts = known or TuningFacts(
        rates=tuple(stage.optim.lr), seeds=tuple(stage.seeds), recipe=plan.base
    )
    _check_same(plan, stage, facts)
    every = tuple(plan.all.arms)
    frozen = {Arm.of(each.arm).identity: each for each in facts.arms}
    found: dict[str, RateFacts] = {}
    needed: dict[str, list[float]] = {}
    stuck: dict[str, str] = {}
    for arm in every:
        kept = frozen.get(arm.identity)
        if kept is not None:
            found[arm.name] = kept.model_copy(update={"arm": arm.facts})
            needed[arm.name] = list(kept.rates)
        else:
            needed[arm.name], losses, why = _search_rates(plan, folder, stage, arm)
            if why:
                stuck[arm.name] = why
            elif losses:
                best = best_rate(needed[arm.name], losses).rate
                found[arm.name] = _found(arm.facts, needed[arm.name], losses, best)
    cells = tuple(
        cell_at(plan, stage, arm, rate, seed)
        for seed in stage.seeds
        for rate in possible(stage)
        for arm in every
        if rate in needed[arm.name]
    )
    mine = [arm.name for arm in plan.arms]
    return Rates(
        _tuning_plan(plan, stage, cells),
        facts.model_copy(update={"arms": tuple(found[name] for name in mine if name in found)}),
        {name: why for name, why in stuck.items() if name in mine},
    )


def _found(
    arm: ArmFacts, rates: Sequence[float], losses: list[list[float]], best: float
) -> RateFacts:
    rows = tuple(tuple(None if loss == inf else loss for loss in row) for row in losses)
    return RateFacts(arm=arm, rates=tuple(rates), losses=rows, best=best)


def _search_rates(
    plan: Plan, folder: Path, stage: TuneStage, arm: Arm
) -> tuple[list[float], list[list[float]], str]:
    """The rates that an arm is tried at by now, and either of two results.

    Its losses, if they have their lowest mean inside; or why no rate can be found, if it is still
    at an end when no more may be added. Neither while runs are missing.
    """
    rates = list(stage.optim.lr)
    for added in range(stage.extend + 1):
        losses = [
            [_loss(plan, folder, cell_at(plan, stage, arm, rate, seed)) for rate in rates]
            for seed in stage.seeds
        ]
        known = [[each for each in row if each is not None] for row in losses]
        if known != losses:
            return rates, [], ""
        best = best_rate(rates, known)
        if not best.edge:
            return rates, known, ""
        if added < stage.extend:
            rates = extended(rates, best.edge)
    end = "lowest" if best.edge == "low" else "highest"
    grid = ", ".join(f"{rate:g}" for rate in rates)
    return rates, [], f"{arm.name} is best at the {end} of its rates ({grid})"


def _loss(plan: Plan, folder: Path, cell: Cell) -> float | None:
    """The loss at the end of a tuning run; infinite if it diverged, None while it is not done."""
    run = run_of(plan, folder / TUNING, cell)
    if run.diverged:
        return inf
    return run.values(cell.recipe.n_steps)[0] if run.step >= cell.recipe.n_steps else None


def rates_of(collected: Collected) -> TuningFacts | None:
    """What a collected study says of rates: by its [tune], or by its sweep over nothing else."""
    facts, points = collected.facts, collected.points
    if facts.tuning or any(set(point) != {LEARNING_RATE} for point in points):
        return facts.tuning
    rates, tables = losses_by_rate(collected, range(len(points)))
    found = []
    for arm in facts.arms:
        table = tables[arm.name].tolist()
        if any(isnan(loss) for row in table for loss in row):
            continue  # a run is missing: it is for [tune] to find
        best = best_rate(rates, table)
        if not best.edge:
            found.append(_found(arm, rates, table, best.rate))
    return TuningFacts(rates=rates, seeds=facts.seeds, recipe=facts.recipe, arms=tuple(found))


# -- the runs --------------------------------------------------------------------------------------


def possible(stage: TuneStage) -> list[float]:
    """Every rate that may ever be added, in order.

    Points of the tuning study are numbered by this list, so that adding a rate renumbers none.
    """
    rates = list(stage.optim.lr)
    for _ in range(stage.extend):
        rates = extended(extended(rates, "low"), "high")
    return rates


def cell_at(plan: Plan, stage: TuneStage, arm: Arm, rate: float, seed: int) -> Cell:
    """The tuning run of an arm at a rate."""
    changes = arm.changes | {"model.schedule": str(arm.schedule), "train.seed": seed}
    recipe = changed(plan.base, changes | {LEARNING_RATE: rate}, f"{plan.file}: [tune]")
    name = f"{arm.name}-lr{rate:g}-seed{seed}"
    return Cell(arm.name, possible(stage).index(rate), seed, recipe, name)


def _tuning_plan(plan: Plan, stage: TuneStage, cells: tuple[Cell, ...]) -> Plan:
    """The study that these runs are, with the selection of the one they are for."""
    bare = dict.fromkeys(("eval", "analyze", "loss", "inference", "search", "tune"))
    study = plan.all.study.model_copy(
        update={**bare, "seeds": list(stage.seeds), "looks": [], "contrasts": {}}
    )
    points = tuple({LEARNING_RATE: rate} for rate in possible(stage))
    whole = replace(
        plan.all, name=f"{plan.name}-{TUNING}", study=study, points=points, cells=cells,
        contrasts=(),
    )  # fmt: skip
    if plan.whole is None:
        return whole
    mine = {arm.name for arm in plan.arms}
    chosen = tuple(cell for cell in cells if cell.arm in mine)
    return replace(whole, arms=plan.arms, cells=chosen, whole=whole)


def with_rates(plan: Plan, best: Mapping[str, float]) -> Plan:
    """The comparison with the rate of each arm that has one."""
    arms = tuple(
        replace(arm, tuned={LEARNING_RATE: best[arm.name]}) if arm.name in best else arm
        for arm in plan.arms
    )
    cells = tuple(
        replace(cell, recipe=changed(cell.recipe, {LEARNING_RATE: best[cell.arm]}, RATES_FILE))
        if cell.arm in best
        else cell
        for cell in plan.cells
    )
    whole = None if plan.whole is None else with_rates(plan.whole, best)
    return replace(plan, arms=arms, cells=cells, whole=whole)


# -- what is written down --------------------------------------------------------------------------


def read_rates(folder: Path) -> TuningFacts | None:
    """What a study's folder says was found; None where nothing was."""
    file = folder / RATES_FILE
    return typed(file, read_sealed(file), TuningFacts) if file.is_file() else None


def write_rates(folder: Path, found: TuningFacts) -> None:
    """Write down what was found, beside what stands there of arms that were not asked for."""
    before = read_rates(folder)
    rest = [e for e in (before.arms if before else ()) if e.arm.name not in found.best]
    if arms := (*found.arms, *rest):
        whole = found.model_copy(update={"arms": arms})
        write_sealed(folder / RATES_FILE, whole.model_dump(mode="json"))


def _stage(plan: Plan) -> TuneStage:
    if plan.study.tune is None:
        raise StudyError(f"{plan.file}: has no [tune]: nothing to find")
    return plan.study.tune


def _check_same(plan: Plan, stage: TuneStage, facts: TuningFacts) -> None:
    """Refuse rates that were found for another study than this one is now."""
    ignored = {LEARNING_RATE, "model.schedule", "train.seed"}
    wrong = list(training_differences(facts.recipe, plan.base, ignored).values())
    for name, then, now in (
        ("tune.optim.lr", facts.rates, stage.optim.lr),
        ("tune.seeds", facts.seeds, stage.seeds),
    ):
        if list(then) != list(now):
            wrong.append(f"{name}: {list(then)} -> {now}")
    if wrong:
        raise StudyError(
            f"{plan.file}: learning rates were tuned with other values: {'; '.join(wrong)}; change "
            "the study back, or give it another --out"
        )
