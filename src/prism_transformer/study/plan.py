"""From a study file to the runs it asks for: arms, points, seeds, and one cell for each."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from prism_transformer.core.errors import InputError
from prism_transformer.recipe import ModelConfig, Recipe, differences
from prism_transformer.recipes.files import (
    RecipeError,
    changed,
    find_recipe,
    load_recipe,
    read_override,
)
from prism_transformer.study.arms import Arm, Origin, make_arms
from prism_transformer.study.collected import LEARNING_RATE, ContrastFacts
from prism_transformer.study.contrasts import read_weights
from prism_transformer.study.spec import (
    NO_SCALING,
    Changes,
    InferenceStage,
    LossStage,
    Study,
    StudyError,
    a_copy,
    dotted,
    read_study,
)


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    arm: str
    point: int
    seed: int
    recipe: Recipe
    name: str
    """of its run folder"""
    origin: Origin | None = None
    """where its run leaves that of another arm; None where it begins at step 0"""


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
    contrasts: tuple[ContrastFacts, ...] = ()
    """that the study names"""
    overrides: tuple[str, ...] = ()
    """changes of the recipe that are not in the file"""
    whole: Plan | None = None
    """the study that this is a selection of; None where it is all of it"""

    @property
    def all(self) -> Plan:
        """Every run of the study, also those that were not selected."""
        return self.whole or self

    @property
    def untuned(self) -> list[str]:
        """Arms whose learning rate is still to be found: until then no run of them is known."""
        return [arm.name for arm in self.arms if self.study.tune and not arm.tuned]

    @property
    def options(self) -> list[str]:
        """What says on a command line which runs of the file are meant."""
        words = list(self.overrides)
        if len(self.study.seeds) < len(self.all.study.seeds):
            words += ["--seeds", ",".join(map(str, self.study.seeds))]
        if len(self.arms) < len(self.all.arms):
            words += ["--arms", ",".join(arm.name for arm in self.arms)]
        return words

    @property
    def command(self) -> str:
        """What a user types for these runs."""
        words = ["search", self.file.stem] if self.study.search else ["run", self.name]
        return shlex.join(["prism", "study", *words, *self.options])

    def cell(self, arm: str, point: int, seed: int) -> Cell:
        return next(c for c in self.cells if (c.arm, c.point, c.seed) == (arm, point, seed))


def training_differences(
    before: Recipe, after: Recipe, ignored: Collection[str] = ()
) -> dict[str, str]:
    """What two recipes train differently: ``optim.lr: 0.001 -> 0.002`` by its key.

    Never where shards are, since those are compared by content and each machine may keep its own,
    nor the section run, which says what is written down and how often.
    """
    lines = {line.partition(":")[0]: line for line in differences(before, after)}
    return {
        key: line
        for key, line in lines.items()
        if key not in ignored and key != "data.folder" and not key.startswith("run.")
    }


def make_plan(file: Path, overrides: Sequence[str] = ()) -> Plan:
    """Read a study file and resolve it; nothing runs, and everything that can be wrong is said.

    Overrides look like ``optim.lr=3e-4`` and change the recipe of every arm, after [recipe].
    """
    study = read_study(file)
    try:
        base = load_recipe(find_recipe(study.base, beside=file.parent))
    except RecipeError as error:
        raise StudyError(f"{file}: base: {error}") from None
    base = changed(base, dotted(file, "recipe", study.recipe), f"{file}: [recipe]")
    given = _overridden(file, overrides)
    base = changed(base, given, f"override {' '.join(overrides)!r}")
    if LEARNING_RATE in given:  # one rate for all arms: nothing to tune
        study = study.model_copy(update={"tune": None})
    arms = make_arms(file, study, base.model)
    points = tuple(_points(file, study))
    _check_overrides(file, overrides, arms, points)
    contrasts = tuple(_contrasts(file, study, arms))
    plan = Plan(file.stem, file, study, base, arms, points, (), contrasts, tuple(overrides))
    cells = tuple(
        _cell(plan, arm, index, seed)
        for seed in study.seeds
        for index in range(len(points))
        for arm in sorted(arms, key=lambda arm: arm.origin is not None)  # after those they leave
    )
    _check_stages(file, study, cells)
    return replace(plan, cells=cells)


def _check_stages(file: Path, study: Study, cells: Sequence[Cell]) -> None:
    """What is to be measured must fit the model, its context and the validation slice."""
    if study.inference is not None:
        _check_inference(file, study.inference, [cell.recipe.model for cell in cells])
    if study.loss is not None:
        _check_lengths(file, study.loss, [cell.recipe for cell in cells])


def _check_lengths(file: Path, stage: LossStage, recipes: Sequence[Recipe]) -> None:
    if stage.scalings != [NO_SCALING] and not stage.times:
        raise StudyError(
            f"{file}: loss.scalings: they are of sequences longer than trained, and there are "
            "none; give loss.times, such as [2, 4]"
        )
    for times, windows in product(stage.times, {stage.windows(recipe) for recipe in recipes}):
        if windows % times:  # else lengths would be compared on other text
            raise StudyError(
                f"{file}: loss.times: {windows} windows of the context are no whole number of "
                f"sequences {times} times as long; change loss.sequences or data.val_tokens"
            )


def _check_inference(file: Path, stage: InferenceStage, models: Sequence[ModelConfig]) -> None:
    if any(model.attention == "bidirectional" for model in models):
        raise StudyError(
            f"{file}: inference: times how fast tokens are decoded, and encoders "
            "(model.attention = 'bidirectional') decode none; take the section out"
        )
    context = min(model.seq_len for model in models)
    if stage.prompt + stage.new > context:
        raise StudyError(
            f"{file}: inference: prompt = {stage.prompt} and new = {stage.new} are more than the "
            f"context of {context} tokens; give less"
        )


def _contrasts(file: Path, study: Study, arms: tuple[Arm, ...]) -> Iterator[ContrastFacts]:
    for name, value in study.contrasts.items():
        try:
            weights = read_weights(value, [arm.name for arm in arms])
        except InputError as error:
            raise StudyError(f"{file}: contrasts.{name}: {error}") from None
        yield ContrastFacts(name=name, weights=weights)


def _overridden(file: Path, overrides: Sequence[str]) -> Changes:
    """Values by their keys, without those that are no single value in a study."""
    remedies = {"model.schedule": "--arms chooses among its schedules", "train.seed": "use --seeds"}
    for text in overrides:
        key, _ = read_override(text)
        if key in remedies:
            raise StudyError(f"override {text!r}: {file} trains with several; {remedies[key]}")
    return dict(map(read_override, overrides))


def _check_overrides(
    file: Path, overrides: Sequence[str], arms: Sequence[Arm], points: Sequence[Changes]
) -> None:
    """Refuse overrides that an arm or the sweep would undo for some runs."""
    for text in overrides:
        key, _ = read_override(text)
        owners = [f"the arm {arm.name!r} sets it" for arm in arms if key in arm.changes]
        owners += ["[sweep] has values for it"] if key in points[0] else []
        if owners:
            raise StudyError(
                f"override {text!r}: in {file} {owners[0]}, so it would not hold for all runs; "
                f"change that in {a_copy(file)}"
            )


def _points(file: Path, study: Study) -> Iterator[Changes]:
    swept = dotted(file, "sweep", study.sweep)
    for key, values in swept.items():
        if key in ("model.schedule", "train.seed"):
            raise StudyError(f"{file}: sweep.{key}: schedules are arms, and seeds are `seeds`")
        if not isinstance(values, list) or not values:
            raise StudyError(f"{file}: sweep.{key} = {values!r}: give a list of values")
    for values in product(*swept.values()):
        yield dict(zip(swept, values, strict=True))


def _cell(plan: Plan, arm: Arm, index: int, seed: int) -> Cell:
    changes = plan.points[index] | arm.changes
    changes |= {"model.schedule": str(arm.schedule), "train.seed": seed}
    recipe = changed(plan.base, changes, f"{plan.file}: arms.{arm.name}")
    # Checkpoints that must be kept: where other arms leave this one, and where it is measured.
    origins = [each.origin for each in plan.arms if each.origin]
    left = {origin.step(recipe) for origin in origins if origin.arm == arm.name}
    if milestones := left.union(plan.study.milestones(recipe)):
        kept = sorted({*recipe.run.milestones, *milestones})
        recipe = changed(recipe, {"run.milestones": kept}, f"{plan.file}: at")
    middle = f"-point{index}" if len(plan.points) > 1 else ""
    name = f"{arm.name}{middle}-seed{seed}"
    return Cell(arm.name, index, seed, recipe, name, arm.origin)
