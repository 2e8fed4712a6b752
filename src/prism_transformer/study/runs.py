"""A study made of runs that were trained one by one, to be compared like any other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prism_transformer.recipe import Recipe, differences
from prism_transformer.study.arms import SHARED, Arm
from prism_transformer.study.cell import CellRun
from prism_transformer.study.collect import table_of
from prism_transformer.study.file import Study, StudyError
from prism_transformer.study.plan import Cell, Plan
from prism_transformer.study.table import Collected
from prism_transformer.train.run import read_run

SEED = re.compile(r"[-_.](seed|s)[-_.]?\d+$")  # at the end of a folder's name
# What tells no arm apart: the seed, where shards are, what is written down and how often.
NO_ARM = ("train.seed", "data.folder", "run.")

Run = tuple[Path, Recipe]
Arms = dict[tuple[Any, ...], list[Run]]
"""runs of one arm, by what makes it one"""


def collect_runs(folders: Sequence[Path]) -> Collected:
    """Everything that runs say: those of one schedule are an arm, told apart by their seed.

    The first with the base head count in every layer is the baseline.
    """
    once = dict.fromkeys(folder.resolve() for folder in folders)
    runs = [(folder, read_run(folder)) for folder in once]
    base = _baseline(runs)
    grouped: Arms = {}
    for run in runs:
        grouped.setdefault(_arm(base, run, "").identity, []).append(run)
    arms: list[Arm] = []
    cells: dict[Path, Cell] = {}
    for group, name in zip(grouped.values(), _names(list(grouped.values())), strict=True):
        arms.append(_arm(base, group[0], name))
        for folder, recipe in group:
            cells[folder] = Cell(name, 0, recipe.train.seed, recipe, folder.name)
        _refuse_twice(group)
    plan = _plan(base, arms, list(cells.values()))
    found = [CellRun(plan.study, cell, folder) for folder, cell in cells.items()]
    return table_of(plan, found, {}, "prism train, run by run")


def _baseline(runs: Sequence[Run]) -> Run:
    """The first run with the base head count everywhere, else the one of fewest phases."""

    def rank(run: Run) -> int:
        heads = set(run[1].model.schedule.heads)
        return 0 if heads == {run[1].model.h_base} else len(heads)

    return min(runs, key=rank)


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
    stems = [{SEED.sub("", folder.name) for folder, _ in group} for group in groups]
    taken: set[str] = set()
    for place, (group, stem) in enumerate(zip(groups, stems, strict=True)):
        shared = any(stem & other for other in (*stems[:place], *stems[place + 1 :]))
        wanted = str(group[0][1].model.schedule) if shared or len(stem) > 1 else stem.pop()
        name, n = wanted, 2
        while name in taken:
            name, n = f"{wanted} ({n})", n + 1
        taken.add(name)
        yield name


def _refuse_twice(group: Sequence[Run]) -> None:
    seen: dict[int, Path] = {}
    for folder, recipe in group:
        other = seen.setdefault(recipe.train.seed, folder)
        if other != folder:
            raise StudyError(
                f"{folder} and {other}: the same recipe and the same seed; name only one of them"
            )


def _plan(base: Run, arms: Sequence[Arm], cells: Sequence[Cell]) -> Plan:
    folder, recipe = base
    baseline = next(cell.arm for cell in cells if cell.recipe is recipe)
    study = Study.model_construct(  # names of arms may be any here
        base=str(folder),
        baseline=baseline,
        seeds=sorted({cell.seed for cell in cells}),
        arms={arm.name: str(arm.schedule) for arm in arms},
    )
    where = folder.parent
    return Plan(where.name or "runs", where, study, recipe, tuple(arms), ({},), tuple(cells))
