"""Runs of no study, sorted into those that can be compared with each other.

Runs belong together if everything is the same that arms must share, shards included, and if those
of one seed started from the same weights. A second run of the same recipe and seed says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prism_transformer.core.progress import Note, Tell, silent
from prism_transformer.recipe import Recipe
from prism_transformer.study.arms import SHARED
from prism_transformer.study.runs import hashes_of
from prism_transformer.training.run import read_environment, read_run


@dataclass
class _Group:
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
