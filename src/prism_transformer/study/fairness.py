"""Whether arms may be compared: same initial weights, same data in the same order, same budget."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from prism_transformer.recipe import Recipe, differences
from prism_transformer.study.file import StudyError
from prism_transformer.study.plan import Cell, Plan
from prism_transformer.train.run import Row

HASHES = {
    "initial_weights": "initial weights",
    "data_order": "the order of the data",
    "shards": "the shards",
}


def check_fair(plan: Plan, runs: Sequence[tuple[Cell, Row]]) -> None:
    """Refuse runs of one seed that differ in more than their arms; ``Row`` is the environment."""
    groups: dict[tuple[int, int], list[tuple[Cell, Row]]] = defaultdict(list)
    for cell, environment in runs:
        groups[cell.point, cell.seed].append((cell, environment))
    for group in groups.values():
        first = group[0]
        for other in group[1:]:
            _check_pair(plan, first, other)


def _check_pair(plan: Plan, one: tuple[Cell, Row], two: tuple[Cell, Row]) -> None:
    (cell, environment), (other, its) = one, two
    pair = f"{plan.file}: {cell.name} and {other.name} cannot be compared"
    for key, what in HASHES.items():
        before, after = environment["hashes"][key], its["hashes"][key]
        if before != after:
            raise StudyError(f"{pair}: {what} differ: {_short(before)} and {_short(after)}")
    own = {"model.schedule", "data.folder"}  # shards are compared by content
    own |= {key for arm in plan.arms if arm.name in (cell.arm, other.arm) for key in arm.changes}
    recipes = (Recipe.model_validate(each["recipe"]) for each in (environment, its))
    rest = [
        line
        for line in differences(*recipes)
        if line.partition(":")[0] not in own
        and not line.startswith("run.")  # training does not hear what is written down of it
    ]
    if rest:
        raise StudyError(f"{pair}: {'; '.join(rest)}")


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) else str(value)[:200]
