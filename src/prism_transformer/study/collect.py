"""From run folders to one table: every number that runs have left in files.

``collect`` reads the runs of a study, ``collect_runs`` those that were trained one by one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from prism_transformer.core.disk import reading
from prism_transformer.models.cost import parameters
from prism_transformer.recipe import Recipe, differences
from prism_transformer.recipes.files import changed, paper_scale
from prism_transformer.study.arms import SHARED, Arm
from prism_transformer.study.collected import (
    COLUMNS,
    ITEM_COLUMNS,
    LEARNING_RATE,
    RUNS,
    Collected,
    FactorialFacts,
    LooksFacts,
    RunFacts,
    SearchFacts,
    State,
    StudyFacts,
    TuningFacts,
)
from prism_transformer.study.earlier import EarlierRun
from prism_transformer.study.numbers import items_of, numbers_of
from prism_transformer.study.plan import Cell, Plan
from prism_transformer.study.runs import StudyRun, check_fair, hashes_of
from prism_transformer.study.spec import Study, StudyError
from prism_transformer.training.run import Row, read_environment, read_run

# Columns of an item that are not a metric.
ITEM_FACTS = ("task", "item", "item_sha256", "loglikelihoods", "answer")

SEED = re.compile(r"[-_.](seed|s)[-_.]?\d+$")  # at the end of a run folder's name
# What tells no arm apart: the seed, where shards are, what is written down and how often.
NO_ARM = ("train.seed", "data.folder", "run.")

Run = tuple[Path, Recipe]  # the folder of a run, and what it was trained by
Number = tuple[str, int | None, int | None, float]
"""metric, step, index, value"""


def collect(
    plan: Plan,
    folders: Sequence[Path],
    failures: Mapping[str, str],
    earlier: Mapping[str, EarlierRun] = MappingProxyType({}),
    tuning: TuningFacts | None = None,
) -> Collected:
    """Everything that the runs of a study say; of runs in several folders the furthest is taken.

    ``failures`` has a reason for each cell that failed; ``earlier`` what was collected before of
    cells, which stands in for those that no folder has; ``tuning`` how the rates were found.
    """
    runs: list[StudyRun | EarlierRun] = []
    for cell in plan.cells:
        places = [where / cell.name for folder in folders for where in (folder / RUNS, folder)]
        found = [StudyRun(plan.study, cell, place) for place in places]
        furthest = max(found, key=lambda run: (run.begun, run.step))
        furthest.check_recipe()
        before = None if furthest.begun else earlier.get(cell.name)
        runs.append(before or furthest)
    used = {str(run.folder): run.found for run in runs if isinstance(run, EarlierRun)}
    command = " ".join([plan.command, *(f"--with {shlex.quote(folder)}" for folder in used)])
    if len(used) == 1 and all(isinstance(run, EarlierRun) for run in runs):
        command = next(iter(used.values())).facts.command  # nothing was run since
    notes = dict.fromkeys(each.facts.note for each in used.values() if each.facts.note)
    made = _collected(plan, runs, failures, command, " ".join(notes))
    return replace(made, facts=made.facts.model_copy(update={"tuning": tuning}))


def _collected(
    plan: Plan,
    runs: Sequence[StudyRun | EarlierRun],
    failures: Mapping[str, str],
    command: str,
    note: str = "",
) -> Collected:
    here = [run for run in runs if isinstance(run, StudyRun)]
    check_fair(plan, here, [run for run in runs if isinstance(run, EarlierRun)])
    rows: list[Row] = []
    items = [pd.DataFrame(columns=ITEM_COLUMNS)]
    for run in runs:
        if isinstance(run, EarlierRun):
            rows += run.rows
            items += [] if run.items.empty else [run.items[ITEM_COLUMNS]]
        elif run.begun:
            who = {"arm": run.cell.arm, "point": run.cell.point, "seed": run.cell.seed}
            # Whatever is not as we write it is a file of the run that was damaged.
            with reading(run.folder):
                run.check_kept()
                numbers = list(numbers_of(run))
                items += [frame.assign(**who)[ITEM_COLUMNS] for frame in items_of(run)]
            rows += [who | dict(zip(COLUMNS[3:], each, strict=True)) for each in numbers]
    answers = pd.concat(items[1:] or items, ignore_index=True)
    facts = _facts(plan, runs, failures, command).model_copy(update={"note": note})
    return Collected(facts, pd.DataFrame(rows, columns=COLUMNS), answers)


def _facts(
    plan: Plan,
    runs: Sequence[StudyRun | EarlierRun],
    failures: Mapping[str, str],
    command: str,
) -> StudyFacts:
    recipe = next(cell.recipe for cell in plan.cells if cell.arm == plan.study.baseline)
    if plan.study.tune:
        recipe = changed(recipe, {LEARNING_RATE: plan.base.optim.lr}, "before [tune]")
    scale = paper_scale(recipe)
    outcomes = tuple(_run_facts(run, failures) for run in runs)
    seeds, stage = tuple(plan.study.looks), plan.study.factorial
    looks = LooksFacts(seeds=seeds, spending=plan.study.spending) if seeds else None
    return StudyFacts(
        name=plan.name,
        question=plan.study.question,
        command=command,
        baseline=plan.study.baseline,
        scale=scale.name if scale else None,
        arms=tuple(arm.facts for arm in plan.arms),
        points=plan.points,
        seeds=tuple(plan.study.seeds),
        recipe=recipe,
        parameters=parameters(recipe.model).total,
        complete=all(run.state == "complete" for run in outcomes),
        runs=outcomes,
        contrasts=plan.contrasts,
        effect=plan.study.effect,
        factorial=FactorialFacts(**stage.model_dump()) if stage else None,
        looks=looks,
        search=_search_facts(plan),
    )


def _search_facts(plan: Plan) -> SearchFacts | None:
    stage = plan.study.search
    if stage is None:
        return None
    confirmed = bool(stage.confirm) and plan.study.seeds == stage.confirm
    return SearchFacts(confirm=tuple(stage.confirm), confirmed=confirmed)


def _run_facts(run: StudyRun | EarlierRun, failures: Mapping[str, str]) -> RunFacts:
    if isinstance(run, EarlierRun):
        return run.facts
    cell, facts = run.cell, {}
    failure = failures.get(cell.name)
    state: State = "failed" if failure is not None else "incomplete" if run.begun else "missing"
    if run.begun:
        if not run.to_do(cell.recipe.n_steps):
            state, failure = "complete", None
        kept = read_environment(run.folder)
        facts = {key: kept[key] for key in ("hardware", "software", "sessions")}
        facts["hashes"] = hashes_of(kept)
    return RunFacts(
        arm=cell.arm, point=cell.point, seed=cell.seed, run=cell.name,
        state=state, failure=failure, **facts,
    )  # fmt: skip


# -- runs of no study ----------------------------------------------------------------------------


def collect_runs(folders: Sequence[Path], baseline: str | None = None) -> Collected:
    """Everything that runs say: those of one schedule are an arm, told apart by their seed.

    The baseline is the arm of the run that is named, by its folder, its name with or without the
    seed, or its schedule. When left out it is the first with the base head count in every layer,
    else the one of fewest phases.
    """

    def rank(run: Run) -> int:
        heads = set(run[1].model.schedule.heads)
        return 0 if heads == {run[1].model.h_base} else len(heads)

    once = {folder.resolve(): folder for folder in folders}
    runs = [(folder, read_run(named)) for folder, named in once.items()]  # errors say it as named
    base = min(runs, key=rank) if baseline is None else _named(runs, baseline)
    grouped: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        grouped.setdefault(_arm(base, run, "").identity, []).append(run)
    arms: list[Arm] = []
    cells: dict[Path, Cell] = {}
    for group, name in zip(grouped.values(), _names(list(grouped.values())), strict=True):
        arms.append(_arm(base, group[0], name))
        seen: dict[int, Path] = {}
        for folder, recipe in group:
            cells[folder] = Cell(name, 0, recipe.train.seed, recipe, folder.name)
            other = seen.setdefault(recipe.train.seed, folder)
            if other != folder:
                same = "the same recipe and the same seed; name only one of them"
                raise StudyError(f"{folder} and {other}: {same}")
    where, planned = base[0].parent, tuple(cells.values())
    study = Study.model_construct(  # names of arms may be any here
        base=str(base[0]),
        baseline=cells[base[0]].arm,
        seeds=sorted({cell.seed for cell in planned}),
        arms={arm.name: str(arm.schedule) for arm in arms},
    )
    plan = Plan(where.name or "runs", where, study, base[1], tuple(arms), ({},), planned)
    found = [StudyRun(study, cell, folder) for folder, cell in cells.items()]
    return _collected(plan, found, {}, "prism train, run by run")


def _named(runs: Sequence[Run], name: str) -> Run:
    """The first run of an arm, by any name it goes by."""
    for folder, recipe in runs:
        schedule = str(recipe.model.schedule)
        if folder == Path(name).resolve() or name in (folder.name, _stem(folder), schedule):
            return folder, recipe
    known = dict.fromkeys(_stem(folder) for folder, _ in runs)
    raise StudyError(f"--baseline {name}: is none of the runs: {', '.join(known)}")


def _stem(folder: Path) -> str:
    """The name of a run without its seed."""
    return SEED.sub("", folder.name)


def _arm(base: Run, run: Run, name: str) -> Arm:
    """The schedule of a run, and what else it changes of the base's recipe."""
    (first, before), (folder, recipe) = base, run
    lines = [line for line in differences(before, recipe) if not line.startswith(NO_ARM)]
    keys = {line.partition(":")[0]: line for line in lines}
    apart = [line for key, line in keys.items() if key in SHARED]
    if before.model.n_layers != recipe.model.n_layers:
        apart.append(f"{before.model.n_layers} -> {recipe.model.n_layers} layers")
    if apart:
        raise StudyError(f"{folder}: cannot be compared with {first}: {'; '.join(apart)}")
    values = recipe.model_dump()
    changes = {
        key: values[section][name]
        for key in keys
        for section, name in [key.split(".")]
        if key != "model.schedule"
    }
    return Arm(name, recipe.model.schedule, changes)


def _names(groups: Sequence[Sequence[Run]]) -> Iterator[str]:
    """A name for each arm: that of its folders without the seed, or else its schedule."""
    stems = [{_stem(folder) for folder, _ in group} for group in groups]
    taken: set[str] = set()
    for place, (group, stem) in enumerate(zip(groups, stems, strict=True)):
        shared = any(stem & other for other in (*stems[:place], *stems[place + 1 :]))
        wanted = str(group[0][1].model.schedule) if shared or len(stem) > 1 else stem.pop()
        name, n = wanted, 2
        while name in taken:
            name, n = f"{wanted} ({n})", n + 1
        taken.add(name)
        yield name
