"""From a study file to the runs it asks for: arms, points, seeds, and one cell for each."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prism_transformer.core.errors import InputError, explain
from prism_transformer.recipe import ModelConfig, Recipe
from prism_transformer.recipes.files import (
    RecipeError,
    changed,
    find_recipe,
    load_recipe,
    read_override,
)
from prism_transformer.schedule import HeadSchedule, ScheduleError
from prism_transformer.schedules.design import (
    RULES,
    Limits,
    bracketing_uniforms,
    enumerate_schedules,
    reverse,
    shuffle,
)
from prism_transformer.schedules.paper import resolve
from prism_transformer.study.collected import LEARNING_RATE, ContrastFacts
from prism_transformer.study.contrasts import read_weights
from prism_transformer.study.factorial import schedules as factorial_schedules
from prism_transformer.study.spec import (
    ArmTable,
    Changes,
    Study,
    StudyError,
    a_copy,
    dotted,
    read_study,
)

# What arms of one comparison must share: the data, the budget, and all that shapes the weights.
SHARED = frozenset(
    {"train.tokens", "train.batch_tokens", "train.seed", "model.d_model", "model.d_ff"}
    | {"model.vocab_size", "model.seq_len", "model.queries_per_kv", "model.init_std"}
)

SEVERAL = ("bracketing", "enumerate")  # rules that stand for more than one schedule


@dataclass(frozen=True)
class Arm:
    """A schedule, and what else of the recipe it changes."""

    name: str
    schedule: HeadSchedule
    changes: Changes
    tuned: Changes = field(default_factory=dict)
    """what tuning has found for it"""

    @property
    def identity(self) -> tuple[Any, ...]:
        """What makes two arms the same."""
        return (self.schedule.heads, *sorted((key, str(v)) for key, v in self.changes.items()))


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
    if LEARNING_RATE in given:  # this rate for all, as before there was any tuning
        study = study.model_copy(update={"tune": None})
    arms = _make_arms(file, study, base.model)
    points = tuple(_points(file, study))
    _check_overrides(file, overrides, arms, points)
    cells = tuple(
        _cell(file, study, base, arm, index, points, seed)
        for seed in study.seeds
        for index in range(len(points))
        for arm in arms
    )
    stage, context = study.inference, min(cell.recipe.model.seq_len for cell in cells)
    if stage is not None and stage.prompt + stage.new > context:
        raise StudyError(
            f"{file}: inference: prompt = {stage.prompt} and new = {stage.new} are more than the "
            f"context of {context} tokens; give less"
        )
    contrasts = tuple(_contrasts(file, study, arms))
    return Plan(file.stem, file, study, base, arms, points, cells, contrasts, tuple(overrides))


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
    """Refuse what would hold for some runs only, and so make arms unfair or change nothing."""
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


def _cell(
    file: Path,
    study: Study,
    base: Recipe,
    arm: Arm,
    index: int,
    points: tuple[Changes, ...],
    seed: int,
) -> Cell:
    changes = points[index] | arm.changes
    changes |= {"model.schedule": str(arm.schedule), "train.seed": seed}
    recipe = changed(base, changes, f"{file}: arms.{arm.name}")
    if milestones := study.milestones(recipe):
        kept = sorted({*recipe.run.milestones, *milestones})
        recipe = changed(recipe, {"run.milestones": kept}, f"{file}: at")
    middle = f"-point{index}" if len(points) > 1 else ""
    return Cell(arm.name, index, seed, recipe, f"{arm.name}{middle}-seed{seed}")


# -- arms: schedules by preset, text or rule, and what else they change --------------------------


def _make_arms(file: Path, study: Study, model: ModelConfig) -> tuple[Arm, ...]:
    """Every arm of a study; what a rule gives that is an arm already is left out."""
    resolver = _Resolver(file, study, model)
    ruled = {name for name in study.arms if resolver.table(name).schedule in SEVERAL}
    plain = {
        name: Arm(name, resolver.schedule(name), resolver.changes(name))
        for name in study.arms
        if name not in ruled
    }
    owners: dict[tuple[Any, ...], str] = {}
    for arm in plain.values():
        first = owners.setdefault(arm.identity, arm.name)
        if first != arm.name:
            raise StudyError(
                f"{file}: arms {first!r} and {arm.name!r} are the same: {arm.schedule}"
            )
    arms = [
        arm
        for name in study.arms
        for arm in (resolver.several(name) if name in ruled else [plain[name]])
        if owners.setdefault(arm.identity, arm.name) == arm.name
    ]
    arms += [
        arm
        for arm in _factorial_arms(file, study, model)
        if owners.setdefault(arm.identity, arm.name) == arm.name
    ]
    if study.baseline not in plain:
        raise StudyError(
            f"{file}: baseline = {study.baseline!r} is none of the arms: {', '.join(plain)}"
        )
    return tuple(arms)


def _factorial_arms(file: Path, study: Study, model: ModelConfig) -> list[Arm]:
    stage = study.factorial
    if stage is None:
        return []
    try:
        found = factorial_schedules(model.n_layers, stage.wide, stage.narrow)
    except InputError as error:
        raise StudyError(f"{file}: factorial: {error}") from None
    return [Arm(name, schedule, {}) for name, schedule in found.items()]


@dataclass(frozen=True)
class _Resolver:
    """Reads arms of one file, for one model."""

    file: Path
    study: Study
    model: ModelConfig

    def wrong(self, name: str, problem: str) -> StudyError:
        return StudyError(f"{self.file}: arms.{name}: {problem}")

    def table(self, name: str) -> ArmTable:
        """What an arm says of its schedule."""
        value = self.study.arms[name]
        own = {"schedule": value} if isinstance(value, str) else value
        try:
            return ArmTable.model_validate(
                {key: each for key, each in own.items() if key in ArmTable.model_fields}
            )
        except ValidationError as error:
            lines = [explain(self.file, each, f"arms.{name}") for each in error.errors()]
            raise StudyError("\n".join(lines)) from None

    def changes(self, name: str) -> Changes:
        """What else of the recipe an arm changes."""
        value = self.study.arms[name]
        if isinstance(value, str):
            return {}
        others = {key: each for key, each in value.items() if key not in ArmTable.model_fields}
        changes = dotted(self.file, f"arms.{name}", others)
        for key in changes:
            if key == "model.schedule":
                raise self.wrong(name, f"write `schedule`, not {key}")
            if key == LEARNING_RATE and self.study.tune:
                raise self.wrong(name, f"sets {key}, which [tune] finds for every arm; drop one")
            if key in SHARED or key.startswith("data."):
                raise self.wrong(
                    name,
                    f"{key} differs between arms, so they could not be compared; set it for all "
                    "in [recipe], or sweep it in [sweep]",
                )
        return changes

    def schedule(self, name: str, behind: tuple[str, ...] = ()) -> HeadSchedule:
        """The schedule of an arm, through the arms it starts from."""
        if name in behind:
            raise self.wrong(name, f"starts from itself: {' <- '.join((*behind, name))}")
        table = self.table(name)
        text = table.schedule or str(self.model.schedule)
        try:
            schedule = self._read(text, table.of, (*behind, name))
            schedule.head_dims(self.model.d_model)  # which refuses widths that no head can have
            if len(schedule) != self.model.n_layers:
                raise ScheduleError(
                    f"it has {len(schedule)} layers, the base recipe {self.model.n_layers}"
                )
        except ScheduleError as error:
            raise StudyError(f"{self.file}: arms.{name} = {text!r}: {error}") from None
        return schedule

    def _read(self, text: str, of: str, behind: tuple[str, ...]) -> HeadSchedule:
        rule, _, number = text.partition(":")
        if rule == "reversed":
            return reverse(self._start(of, behind))
        if rule == "shuffled":
            return shuffle(self._start(of, behind), _whole(number))
        if rule == "uniform":
            return HeadSchedule.uniform(_whole(number), self.model.n_layers)
        if text in self.study.arms and text != behind[-1]:
            return self._start(text, behind)
        return resolve(text)

    def _start(self, name: str, behind: tuple[str, ...]) -> HeadSchedule:
        arms = self.study.arms
        if name not in arms:
            known = f"name one of {', '.join(arms)} with `of`"
            raise self.wrong(behind[-1], f"there is no arm {name!r} to start from; {known}")
        if self.table(name).schedule in SEVERAL:
            several = f"starts from {name!r}, which stands for several schedules"
            raise self.wrong(behind[-1], several)
        return self.schedule(name, behind)

    def several(self, name: str) -> Iterator[Arm]:
        """The arms that one rule gives, each named by what it is."""
        table, changes = self.table(name), self.changes(name)
        named: Iterator[tuple[str, HeadSchedule]]
        if table.schedule == "bracketing":
            uniforms = bracketing_uniforms(self._start(table.of, (name,)), self.model.d_model)
            named = ((str(each.heads[0]), each) for each in uniforms)
        else:
            named = ((str(e).replace(" ", "_"), e) for e in self._enumerated(name, table))
        for ending, schedule in named:
            if all(n % self.model.queries_per_kv == 0 for n in schedule.heads):
                yield Arm(f"{name}-{ending}", schedule, changes)

    def _enumerated(self, name: str, table: ArmTable) -> Iterator[HeadSchedule]:
        limits = Limits(
            None if table.start is None else tuple(table.start),
            max(2, table.min_phases),  # one phase is no progression
            table.max_phases,
            table.min_phase_layers,
            table.max_phase_layers,
            RULES if table.rules is None else frozenset(table.rules),
        )
        model, count = self.model, 0
        every = enumerate_schedules(model.d_model, model.n_layers, model.h_base, limits)
        unit = table.phase_multiple
        found = (each for each in every if not any(p.n_layers % unit for p in each.phases))
        for count, schedule in enumerate(found, start=1):
            if count > table.most:
                most = f"more than most = {table.most} schedules; limit them further"
                raise self.wrong(name, most)
            yield schedule
        if not count:
            raise self.wrong(name, "no schedule is within these limits")


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ScheduleError("write a whole number after the colon, as in uniform:6 or shuffled:1")
    return int(text)
