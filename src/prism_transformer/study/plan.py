"""From a study file to the runs it asks for: arms, points, seeds, and one cell for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from prism_transformer.recipe import Recipe
from prism_transformer.recipe_file import RecipeError, changed, find_recipe, load_recipe
from prism_transformer.study.arms import Arm, make_arms
from prism_transformer.study.file import Changes, Study, StudyError, dotted, read_study


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    arm: str
    point: int
    seed: int
    recipe: Recipe
    name: str
    """of its run folder"""


@dataclass(frozen=True)
class Plan:
    """A study resolved: everything that is to be run."""

    name: str
    file: Path
    study: Study
    base: Recipe
    arms: tuple[Arm, ...]
    points: tuple[Changes, ...]
    """swept values; one empty point where nothing is swept"""
    cells: tuple[Cell, ...]
    """in the order of running: arms take turns, so that a comparison grows seed by seed"""

    @property
    def baseline(self) -> Arm:
        """The arm that others are held against."""
        return next(arm for arm in self.arms if arm.name == self.study.baseline)

    def cell(self, arm: str, point: int, seed: int) -> Cell:
        """One cell by what tells it apart."""
        return next(c for c in self.cells if c.arm == arm and c.point == point and c.seed == seed)


def make_plan(file: Path) -> Plan:
    """Read a study file and resolve it; nothing runs, and everything that can be wrong is said."""
    study = read_study(file)
    base = _base(file, study)
    arms = make_arms(file, study, base)
    points = tuple(_points(file, study))
    cells = tuple(
        _cell(file, base, arm, index, points, seed)
        for seed in study.seeds
        for index in range(len(points))
        for arm in arms
    )
    _check_inference(file, study, cells)
    return Plan(file.stem, file, study, base, arms, points, cells)


def _check_inference(file: Path, study: Study, cells: tuple[Cell, ...]) -> None:
    stage, context = study.inference, min(cell.recipe.model.seq_len for cell in cells)
    if stage is not None and stage.prompt + stage.new > context:
        raise StudyError(
            f"{file}: inference: prompt = {stage.prompt} and new = {stage.new} are more than the "
            f"context of {context} tokens; give less"
        )


def _base(file: Path, study: Study) -> Recipe:
    try:
        path = find_recipe(study.base, beside=file.parent)
    except RecipeError as error:
        raise StudyError(f"{file}: base: {error}") from None
    return changed(load_recipe(path), dotted(file, "recipe", study.recipe), f"{file}: [recipe]")


def _points(file: Path, study: Study) -> Iterator[Changes]:
    swept = dotted(file, "sweep", study.sweep)
    for key, values in swept.items():
        if key in ("model.schedule", "train.seed"):
            raise StudyError(f"{file}: sweep.{key}: schedules are arms, and seeds are `seeds`")
        if not isinstance(values, list) or not values:
            raise StudyError(f"{file}: sweep.{key} = {values!r}: give a list of values")
    for values in product(*swept.values()):
        yield dict(zip(swept, values, strict=True))


def _cell(
    file: Path, base: Recipe, arm: Arm, index: int, points: tuple[Changes, ...], seed: int
) -> Cell:
    changes = points[index] | arm.changes
    changes |= {"model.schedule": str(arm.schedule), "train.seed": seed}
    recipe = changed(base, changes, f"{file}: arms.{arm.name}")
    middle = f"-point{index}" if len(points) > 1 else ""
    return Cell(arm.name, index, seed, recipe, f"{arm.name}{middle}-seed{seed}")
