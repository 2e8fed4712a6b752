"""Searching schedules: successive halving on paired validation loss.

All arms are trained a little; the better share of them goes on, and so to the end. An arm is judged
by its mean difference to the baseline at the same step and seed, and the baseline always goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import mean

from prism_transformer.recipe import Recipe
from prism_transformer.study.cell import CellFailed
from prism_transformer.study.file import SearchStage, StudyError
from prism_transformer.study.plan import Arm, Plan
from prism_transformer.study.queue import Queue
from prism_transformer.study.statistics import pareto
from prism_transformer.study.study import Home


@dataclass(frozen=True)
class Standing:
    """An arm at a rung."""

    step: int
    arm: str
    schedule: str
    loss: float
    """mean over seeds"""
    difference: float
    """to the baseline, mean over seeds"""
    tokens_per_second: float
    kept: bool
    """goes on, or at the end is on the Pareto front of loss and throughput"""


def check_search(plan: Plan) -> SearchStage:
    """The study's search, if it has one that can be run."""
    if plan.study.search is None:
        raise StudyError(f"{plan.file}: has no [search]; add one, or use `prism study run`")
    if len(plan.points) > 1:
        raise StudyError(f"{plan.file}: [sweep] and [search] do not go together; drop one")
    return plan.study.search


def rung_steps(recipe: Recipe, shares: Sequence[float]) -> list[int]:
    """Steps at which arms are judged: validations, so that there is a loss to judge by."""
    every = recipe.run.val_every
    steps = {max(1, round(share * recipe.n_steps / every)) * every for share in shares}
    return [*sorted(step for step in steps if step < recipe.n_steps), recipe.n_steps]


def search(
    home: Home, queue: Queue, work: Callable[[], None], tell: Callable[[Sequence[Standing]], None]
) -> list[Standing]:
    """Train rung after rung; every standing, rung by rung.

    Called again it does the same from what run folders hold, and so goes on where it was left.
    """
    plan = home.plan
    stage = check_search(plan)
    alive = list(plan.arms)
    standings: list[Standing] = []
    home.begin(queue, [])
    queue.close(finished=False)
    for step in rung_steps(plan.base, stage.rungs):
        cells = [(c, step) for c in plan.cells if any(c.arm == arm.name for arm in alive)]
        home.begin(queue, cells)
        work()
        rung = _judge(home, alive, step, stage.keep)
        if not rung:
            why = "; ".join(home.failures().values())
            raise CellFailed(f"{plan.file}: no run of {plan.study.baseline} got to {step}: {why}")
        standings += rung
        tell(rung)
        kept = {standing.arm for standing in rung if standing.kept}
        if step < plan.base.n_steps:
            alive = [arm for arm in alive if arm.name in kept]
    queue.close(finished=True)
    return standings


def _judge(home: Home, arms: Sequence[Arm], step: int, keep: float) -> list[Standing]:
    """Arms by their difference to the baseline, best first; the baseline comes first of all."""
    plan = home.plan
    values = {
        arm.name: {
            cell.seed: run.values(step)
            for cell in plan.cells
            if cell.arm == arm.name and (run := home.run_of(cell)).begun and run.step >= step
        }
        for arm in arms
    }
    its = values[plan.study.baseline]
    found = []
    for arm in arms:
        seeds = values[arm.name].keys() & its.keys()
        if seeds:  # a failed arm has none, and drops out
            losses, rates = zip(*(values[arm.name][seed] for seed in seeds), strict=True)
            gap = mean(values[arm.name][seed][0] - its[seed][0] for seed in seeds)
            schedule = str(arm.schedule)
            found.append(
                Standing(step, arm.name, schedule, mean(losses), gap, mean(rates), kept=False)
            )
    found.sort(key=lambda each: (each.arm != plan.study.baseline, each.difference))
    if step == plan.base.n_steps:
        chosen = set(pareto([(each.loss, each.tokens_per_second) for each in found]))
    else:  # the baseline, and the best share of the others
        chosen = set(range(1 + ceil(keep * (len(found) - 1))))
    return [replace(each, kept=index in chosen) for index, each in enumerate(found)]
