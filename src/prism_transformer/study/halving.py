"""``prism study search``: successive halving of arms on paired validation loss.

All arms are trained to a first step (a rung); the better share of them goes on to the next rung,
and so to the end. An arm is judged by its mean difference to the baseline at the same step and
seed; the baseline always goes on.

Rankings change during training, so dropping arms too early drops the winner. Rungs are therefore
put where, in runs that are finished, the difference to the baseline correlated with that at the
end; without finished runs, at half of the training. And the best of many arms looks better than it
is, because it was chosen: finalists are trained once more, with seeds that did not choose them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import correlation, mean

from prism_transformer.core.progress import Note, Tell, silent
from prism_transformer.core.table import Column, Table, words
from prism_transformer.recipe import Recipe
from prism_transformer.recipes.files import changed
from prism_transformer.study.api import check_crew, finish_queue, prepare_data
from prism_transformer.study.arms import Arm
from prism_transformer.study.collected import beside_others
from prism_transformer.study.compare import RATES_BESIDE
from prism_transformer.study.earlier import EarlierRun
from prism_transformer.study.folder import Source, StudyFolder, load_study
from prism_transformer.study.plan import Plan
from prism_transformer.study.rungs import CONFIRM, Rungs, read_rungs, write_rungs
from prism_transformer.study.runs import CellFailed, StudyRun
from prism_transformer.study.selection import select
from prism_transformer.study.sharing import ALONE, Crew
from prism_transformer.study.spec import SearchStage, StudyError
from prism_transformer.study.statistics import pareto
from prism_transformer.training.run import read_environment

DEFAULT_RUNG = 0.5  # of training, where nothing is known of a study's runs
ENOUGH = 0.9  # correlation at which an early difference is taken for the final one
FEWEST_PAIRS = 8  # differences that a correlation is computed of


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


@dataclass(frozen=True)
class Rung:
    """All arms that were trained to one step, the baseline first, then best first."""

    step: int
    n_steps: int
    """of a whole run"""
    baseline: str
    standings: tuple[Standing, ...]
    beside_others: bool = False
    """runs were trained side by side: their rates judge nothing, and the best loss alone is kept"""

    @property
    def table(self) -> Table:
        to_baseline = f"to {self.baseline}"
        front = "best loss" if self.beside_others else "Pareto front"
        goes_on = "goes on" if self.step < self.n_steps else front
        columns = (
            *words("arm", "schedule"),
            Column("loss", places=4),
            Column(to_baseline, places=4, sign=True),
            Column("tokens/s", places=0),
            *words(goes_on),
        )
        rows = tuple(
            {
                "arm": each.arm, "schedule": each.schedule, "loss": each.loss,
                to_baseline: each.difference, "tokens/s": each.tokens_per_second,
                goes_on: "yes" if each.kept else "",
            }
            for each in self.standings
        )  # fmt: skip
        title = f"step {self.step} of {self.n_steps}: {len(self.standings)} arms"
        note = RATES_BESIDE if self.beside_others else ""
        return Table("rung", columns, rows, title=title, note=note)


def search_study(study: Source, crew: Crew = ALONE, *, tell: Tell = silent) -> Iterator[Rung]:
    """Find the best schedules without training all to the end, as the study's [search] says.

    An iterator: it yields a rung when its arms are judged, and trains on when asked for the next
    one. Called again, it takes what run folders hold and so goes on where it was stopped.
    """
    opened = load_study(study)
    plan, stage = opened.plan, check_search(opened.plan)
    rungs = choose_rungs(opened)
    tell(Note(rungs.why))
    steps = rung_steps(plan.base, rungs.shares)
    for each in opened.earlier:  # refuse runs without a loss at a rung now, not hours later
        for step in steps:
            each.values(step)
    check_crew(opened, crew)
    prepare_data(opened, tell)
    queue, alive = opened.queue(crew.heartbeat), list(plan.arms)
    opened.begin(queue, [])
    write_rungs(opened.folder, rungs)
    # Workers of other machines find an empty queue between two rungs, and must not leave.
    queue.close(finished=False)
    for step in steps:
        names = {arm.name for arm in alive}
        opened.begin(queue, [(cell, step) for cell in plan.cells if cell.arm in names])
        finish_queue(opened, queue, crew, tell)
        standings = _judge(opened, alive, step, stage.keep)
        if not standings:
            why = "; ".join(opened.failures().values())
            raise CellFailed(f"{plan.file}: no run of {plan.study.baseline} got to {step}: {why}")
        if step == plan.base.n_steps:  # before the last yield: the caller may not come back
            queue.close(finished=True)
        beside = _beside_others(opened)
        yield Rung(step, plan.base.n_steps, plan.study.baseline, tuple(standings), beside)
        kept = {standing.arm for standing in standings if standing.kept}
        alive = [arm for arm in alive if arm.name in kept]
    opened.collect()


def confirming(study: Source, finalists: Sequence[str]) -> StudyFolder:
    """The study that trains the finalists of a search once more, with its fresh seeds."""
    opened = load_study(study)
    stage = check_search(opened.plan)
    if not stage.confirm:
        raise StudyError(f"{opened.plan.file}: [search] has no seeds to `confirm` with")
    names = [opened.plan.study.baseline, *finalists]
    plan = select(opened.plan, opened.plan.study.seeds[:1], names)
    cells = tuple(
        replace(
            cell, seed=seed, name=f"{cell.arm}-seed{seed}",
            recipe=changed(cell.recipe, {"train.seed": seed}, f"{plan.file}: [search]"),
        )
        for seed in stage.confirm
        for cell in plan.cells
    )  # fmt: skip
    plan = replace(
        plan,
        name=f"{plan.name}-{CONFIRM}",
        study=plan.study.model_copy(update={"seeds": list(stage.confirm), "looks": []}),
        cells=cells,
        whole=None,
    )
    return StudyFolder(plan, opened.folder / CONFIRM, opened.storage)


# -- when arms are dropped -------------------------------------------------------------------------


def choose_rungs(study: StudyFolder) -> Rungs:
    """As the study says; else as chosen before; else where finished runs predict their own end."""
    stage, n_steps = check_search(study.plan), study.plan.base.n_steps
    if stage.rungs is not None:
        shares = tuple(sorted(stage.rungs))
        shown = ", ".join(f"{share:g}" for share in shares)
        return Rungs(shares=shares, why=f"rungs at {shown} of training, as the study says")
    if before := read_rungs(study.folder):
        return before
    found = early_correlations(study)
    if not found:
        return Rungs(
            shares=(DEFAULT_RUNG,),
            why=f"a rung at {DEFAULT_RUNG:g} of training: too few runs are finished to say whether "
            "arms can be told apart earlier",
        )
    late = [step for step in found if all(r >= ENOUGH for s, r in found.items() if s >= step)]
    seen = ", ".join(f"{r:.2f} at {step / n_steps:.2g}" for step, r in found.items())
    said = f"differences to the baseline in finished runs correlate with those at the end by {seen}"
    if not late:
        return Rungs(shares=(), why=f"no rungs, all arms go to the end: {said}")
    share = late[0] / n_steps
    return Rungs(shares=(share,), why=f"a rung at {share:.2g} of training: {said}")


def early_correlations(study: StudyFolder) -> dict[int, float]:
    """By step: the correlation of differences to the baseline there with those at the end.

    Over arms and seeds that are finished; empty if these are too few.
    """
    n_steps, baseline = study.plan.base.n_steps, study.plan.study.baseline
    curves = {(e.cell.arm, e.cell.seed): e.losses for e in _trained(study, n_steps)}
    pairs = [
        (curve, curves[baseline, seed])
        for (arm, seed), curve in curves.items()
        if arm != baseline and (baseline, seed) in curves
    ]
    if len(pairs) < FEWEST_PAIRS:
        return {}
    shared = set.intersection(*(set(mine) & set(its) for mine, its in pairs))
    gaps = {
        step: [mine[step] - its[step] for mine, its in pairs] for step in sorted(shared) if step
    }
    if n_steps not in gaps or len(set(gaps[n_steps])) < 2:
        return {}
    return {
        step: correlation(values, gaps[n_steps])
        for step, values in gaps.items()
        if step < n_steps and len(set(values)) > 1
    }


def _trained(study: StudyFolder, step: int) -> list[StudyRun | EarlierRun]:
    """Runs that are trained to a step at least, here or collected before."""
    return [*(run for run in study.runs if run.begun and run.step >= step), *study.earlier]


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


def _beside_others(study: StudyFolder) -> bool:
    """Whether some run was trained beside others, or collected with a word that it was."""
    begun = (run.folder for run in study.runs if run.begun)
    here = any(beside_others(read_environment(folder)["sessions"]) for folder in begun)
    return here or any(each.then.beside_others for each in study.earlier)


def _judge(study: StudyFolder, arms: Sequence[Arm], step: int, keep: float) -> list[Standing]:
    """Arms by their difference to the baseline, best first; the baseline comes first of all."""
    baseline, names = study.plan.study.baseline, {arm.name for arm in arms}
    values = {
        (each.cell.arm, each.cell.seed): each.values(step)
        for each in _trained(study, step)
        if each.cell.arm in names
    }
    found = []
    for arm in arms:
        pairs = [
            (value, values[baseline, seed])
            for (name, seed), value in values.items()
            if name == arm.name and (baseline, seed) in values
        ]
        if pairs:  # an arm whose runs all failed has none, and drops out
            loss, rate = (mean(mine[which] for mine, _ in pairs) for which in (0, 1))
            gap = mean(mine[0] - its[0] for mine, its in pairs)
            found.append(Standing(step, arm.name, str(arm.schedule), loss, gap, rate, kept=False))
    found.sort(key=lambda each: (each.arm != baseline, each.difference))
    if step == study.plan.base.n_steps:
        # Speeds that were measured beside other workers do not count for the front.
        rates = [0.0 if _beside_others(study) else each.tokens_per_second for each in found]
        chosen = set(pareto([(e.loss, rate) for e, rate in zip(found, rates, strict=True)]))
    else:  # the baseline, and the best share of the others
        chosen = set(range(1 + ceil(keep * (len(found) - 1))))
    return [replace(each, kept=index in chosen) for index, each in enumerate(found)]
