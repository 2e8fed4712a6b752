"""Arms of a study: schedules by preset, text or rule, what else they change, where they begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prism_transformer.core.errors import InputError, explain
from prism_transformer.recipe import Map, ModelConfig, Recipe
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
from prism_transformer.study.collected import LEARNING_RATE, ArmFacts
from prism_transformer.study.factorial import schedules as factorial_schedules
from prism_transformer.study.spec import (
    ARM_KEYS,
    ArmTable,
    Changes,
    Study,
    StudyError,
    dotted,
    step_at,
)

# What arms of one comparison must share: the data, the budget, and all that shapes the weights.
SHARED = frozenset(
    {"train.tokens", "train.batch_tokens", "train.seed", "model.d_model", "model.d_ff"}
    | {"model.vocab_size", "model.seq_len", "model.queries_per_kv", "model.init_std"}
)

SEVERAL = ("bracketing", "enumerate")  # rules that stand for more than one schedule


FROM = "from"  # in an arm's facts, beside what it changes of the recipe


@dataclass(frozen=True)
class Origin:
    """Where an arm begins that goes on from another: ``uniform@0.5``, by a map of weights."""

    arm: str
    share: float
    """of its steps"""
    map: Map = "matched"

    @classmethod
    def parse(cls, text: str, how: str | None = None) -> Origin:
        """Read ``uniform@0.5``, or ``uniform@0.5 reshape`` as ``str`` writes it."""
        place, _, named = text.partition(" ")
        arm, at, share = place.rpartition("@")
        try:
            number = float(share)
        except ValueError:
            number = 0.0
        if not (at and arm and 0 < number < 1):
            raise StudyError(
                f"{FROM} = {text!r}: write an arm and a share of its training, as in uniform@0.5"
            )
        return cls(arm, number, "reshape" if (how or named) == "reshape" else "matched")

    def __str__(self) -> str:
        return f"{self.arm}@{self.share:g}" + (" reshape" if self.map == "reshape" else "")

    def step(self, recipe: Recipe) -> int:
        """The step at which it leaves the other arm."""
        return step_at(recipe, self.share)


@dataclass(frozen=True)
class Arm:
    """A schedule, and what else of the recipe it changes."""

    name: str
    schedule: HeadSchedule
    changes: Changes
    tuned: Changes = field(default_factory=dict)
    """what tuning has found for it"""
    origin: Origin | None = None
    """where it leaves another arm; None where it begins at step 0"""

    @classmethod
    def of(cls, facts: ArmFacts) -> Arm:
        """An arm as study.json has it."""
        changes = {key: value for key, value in facts.changes.items() if key != FROM}
        origin = Origin.parse(facts.changes[FROM]) if FROM in facts.changes else None
        return cls(facts.name, HeadSchedule(facts.heads), changes, origin=origin)

    @property
    def facts(self) -> ArmFacts:
        """What study.json says of it."""
        origin = {FROM: str(self.origin)} if self.origin else {}
        return ArmFacts(
            name=self.name, schedule=str(self.schedule), heads=self.schedule.heads,
            changes=self.changes | origin,
        )  # fmt: skip

    @property
    def more(self) -> str:
        """What it changes beside its schedule, in one line: values, or the arm that it leaves."""
        return ", ".join(f"{key}={value}" for key, value in self.facts.changes.items())

    @property
    def identity(self) -> tuple[Any, ...]:
        """What makes two arms the same."""
        changes = self.facts.changes
        return (self.schedule.heads, *sorted((key, str(v)) for key, v in changes.items()))


def make_arms(file: Path, study: Study, model: ModelConfig) -> tuple[Arm, ...]:
    """Every arm of a study; what a rule gives that is an arm already is left out."""
    resolver = _Resolver(file, study, model)
    ruled = {name for name in study.arms if resolver.table(name).schedule in SEVERAL}
    plain = {
        name: Arm(
            name, resolver.schedule(name), resolver.changes(name), origin=resolver.origin(name)
        )
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
    every = [
        arm
        for name in study.arms
        for arm in (resolver.several(name) if name in ruled else [plain[name]])
    ]
    every += _factorial_arms(file, study, model)
    arms = [arm for arm in every if owners.setdefault(arm.identity, arm.name) == arm.name]
    names = Counter(arm.name for arm in arms)
    if twice := [name for name, count in names.items() if count > 1]:
        raise StudyError(
            f"{file}: arms.{twice[0]}: a rule of this study makes an arm of that name, too, with "
            "another schedule; call this one otherwise"
        )
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
                {key: each for key, each in own.items() if key in ARM_KEYS}
            )
        except ValidationError as error:
            lines = [explain(self.file, each, f"arms.{name}") for each in error.errors()]
            raise StudyError("\n".join(lines)) from None

    def changes(self, name: str) -> Changes:
        """What else of the recipe an arm changes."""
        value = self.study.arms[name]
        if isinstance(value, str):
            return {}
        others = {key: each for key, each in value.items() if key not in ARM_KEYS}
        changes = dotted(self.file, f"arms.{name}", others)
        if origin := self.origin(name):
            if changes:
                keys = ", ".join(changes)
                raise self.wrong(name, f"keeps the recipe of {origin.arm!r}; drop {keys}")
            return self.changes(origin.arm)
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

    def origin(self, name: str) -> Origin | None:
        """The arm that this one goes on from, if it does."""
        table = self.table(name)
        if table.origin is None:
            if "map" in table.model_fields_set:
                raise self.wrong(name, f"map = {table.map!r}: of an arm without {FROM}; drop it")
            return None
        try:
            found = Origin.parse(table.origin, table.map)
        except StudyError as error:
            raise self.wrong(name, str(error)) from None
        arms = [each for each in self.study.arms if self.table(each).schedule not in SEVERAL]
        first = [each for each in arms if self.table(each).origin is None]
        if found.arm not in first:
            known = ", ".join(first)
            problem = f"{FROM} = {table.origin!r}: is no arm that begins at step 0: {known}"
            raise self.wrong(name, problem)
        if name not in arms:
            raise self.wrong(name, f"stands for several schedules, which {FROM} is not for")
        if stage := "tune" if self.study.tune else "search" if self.study.search else "":
            raise self.wrong(name, f"{FROM} and [{stage}] do not go together; drop one")
        if self.schedule(name) == self.schedule(found.arm):
            raise self.wrong(name, f"{FROM} = {table.origin!r}: has the same schedule")
        return found

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
