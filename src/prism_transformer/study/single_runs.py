"""Runs of no study: which of them can be compared, and the table of those that can.

Runs belong together if everything is the same that arms must share, shards included, and if those
of one seed started from the same weights. A second run of the same recipe and seed adds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prism_transformer.core.progress import Note, Tell, silent
from prism_transformer.recipe import Recipe
from prism_transformer.study.arms import SHARED, Arm
from prism_transformer.study.collect import read_runs
from prism_transformer.study.collected import Collected
from prism_transformer.study.plan import Cell, Plan, training_differences
from prism_transformer.study.runs import StudyRun, hashes_of
from prism_transformer.study.spec import Study, StudyError
from prism_transformer.training.run import read_environment, read_run

SEED = re.compile(r"[-_.](seed|s)[-_.]?\d+$")  # at the end of a run folder's name

Run = tuple[Path, Recipe]  # the folder of a run, and what it was trained by


@dataclass
class _Group:
    """Runs that can be compared with each other."""

    shared: tuple[Any, ...]
    starts: dict[int, tuple[str, str]] = field(default_factory=dict)
    """initial weights and order of the data, by seed"""
    runs: dict[Path, Recipe] = field(default_factory=dict)

    def admits(self, shared: tuple[Any, ...], seed: int, start: tuple[str, str]) -> bool:
        return self.shared == shared and self.starts.get(seed, start) == start


def group_runs(folders: Sequence[Path], tell: Tell = silent) -> list[list[Path]]:
    """Groups that can be compared, each with two runs or more; tells of what is left out.

    Where no two runs belong together each is a group by itself.
    """
    groups: list[_Group] = []
    for folder in folders:
        recipe, hashes = read_run(folder), hashes_of(read_environment(folder))
        values, seed = recipe.model_dump(), recipe.train.seed
        keys = (key.split(".") for key in sorted(SHARED - {"train.seed"}))
        shared = (*(values[section][key] for section, key in keys), recipe.model.n_layers)
        shared, start = (*shared, hashes.shards), (hashes.initial_weights, hashes.data_order)
        group = next((each for each in groups if each.admits(shared, seed, start)), None)
        if group is None:
            group = _Group(shared)
            groups.append(group)
        twin = next((other for other, its in group.runs.items() if its == recipe), None)
        if twin is not None:
            tell(Note(f"left out {folder}: the same recipe and seed as {twin}"))
            continue
        group.starts[seed] = start
        group.runs[folder] = recipe
    several = [group for group in groups if len(group.runs) > 1] or groups
    for group in groups:
        if group not in several:
            tell(Note(f"left out {next(iter(group.runs))}: no other run can be compared with it"))
    if len(several) > 1:
        tell(Note(f"{len(several)} groups of runs that cannot be compared with each other:"))
        for group in several:
            tell(Note(f"  {', '.join(map(str, group.runs))}"))
    return [list(group.runs) for group in several]


def collect_runs(folders: Sequence[Path], baseline: str | None = None) -> Collected:
    """The table of these runs: those of one schedule are an arm, told apart by their seed.

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
    return read_runs(plan, found, {}, "prism train, run by run")


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
    lines = training_differences(before, recipe, {"train.seed"})
    apart = [line for key, line in lines.items() if key in SHARED]
    if before.model.n_layers != recipe.model.n_layers:
        apart.append(f"{before.model.n_layers} -> {recipe.model.n_layers} layers")
    if apart:
        raise StudyError(f"{folder}: cannot be compared with {first}: {'; '.join(apart)}")
    values = recipe.model_dump()
    changes = {
        key: values[section][name]
        for key in lines
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
