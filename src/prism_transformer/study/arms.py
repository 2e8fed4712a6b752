"""The arms of a study: schedules by preset, text or rule, and what else they change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prism_transformer.design import (
    RULES,
    Limits,
    bracketing_uniforms,
    enumerate_schedules,
    resolve,
    reverse,
    shuffle,
)
from prism_transformer.recipe import ModelConfig, Recipe
from prism_transformer.schedule import HeadSchedule, ScheduleError
from prism_transformer.study.file import ArmTable, Changes, Study, StudyError, dotted, explain

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

    @property
    def identity(self) -> tuple[Any, ...]:
        """What makes two arms the same."""
        return (self.schedule.heads, *sorted((key, str(v)) for key, v in self.changes.items()))


def make_arms(file: Path, study: Study, base: Recipe) -> tuple[Arm, ...]:
    """Every arm of a study; what a rule gives that is an arm already is left out."""
    resolver = _Resolver(file, study, base.model)
    listed = {name: resolver.table(name) for name in study.arms}
    plain = {
        name: Arm(name, resolver.schedule(name), resolver.changes(name))
        for name, table in listed.items()
        if table.schedule not in SEVERAL
    }
    _refuse_same(file, list(plain.values()))
    taken = {arm.identity for arm in plain.values()}
    arms: list[Arm] = []
    for name, table in listed.items():
        if name in plain:
            arms.append(plain[name])
            continue
        ruled = resolver.several(name, table)
        arms += [arm for arm in ruled if arm.identity not in taken]
        taken |= {arm.identity for arm in arms}
    if study.baseline not in plain:
        raise StudyError(
            f"{file}: baseline = {study.baseline!r} is none of the arms: {', '.join(plain)}"
        )
    return tuple(arms)


def _refuse_same(file: Path, arms: list[Arm]) -> None:
    seen: dict[tuple[Any, ...], str] = {}
    for arm in arms:
        if arm.identity in seen:
            first = seen[arm.identity]
            raise StudyError(
                f"{file}: arms {first!r} and {arm.name!r} are the same: {arm.schedule}"
            )
        seen[arm.identity] = arm.name


@dataclass(frozen=True)
class _Resolver:
    """Reads arms of one file, for one model."""

    file: Path
    study: Study
    model: ModelConfig

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
                raise StudyError(f"{self.file}: arms.{name}: write `schedule`, not {key}")
            if key in SHARED or key.startswith("data."):
                raise StudyError(
                    f"{self.file}: arms.{name}: {key} differs between arms, so they could not be "
                    "compared; set it for all in [recipe], or sweep it in [sweep]"
                )
        return changes

    def schedule(self, name: str, behind: tuple[str, ...] = ()) -> HeadSchedule:
        """The schedule of an arm, through the arms it starts from."""
        if name in behind:
            chain = " <- ".join((*behind, name))
            raise StudyError(f"{self.file}: arms.{name}: starts from itself: {chain}")
        table = self.table(name)
        text = table.schedule or str(self.model.schedule)
        try:
            found = self._read(text, table.of, (*behind, name))
            found.head_dims(self.model.d_model)
            if len(found) != self.model.n_layers:
                raise ScheduleError(
                    f"it has {len(found)} layers, the base recipe {self.model.n_layers}"
                )
        except ScheduleError as error:
            raise StudyError(f"{self.file}: arms.{name} = {text!r}: {error}") from None
        return found

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
        where = f"{self.file}: arms.{behind[-1]}"
        if name not in self.study.arms:
            raise StudyError(
                f"{where}: there is no arm {name!r} to start from; name one of "
                f"{', '.join(self.study.arms)} with `of`"
            )
        if self.table(name).schedule in SEVERAL:
            raise StudyError(f"{where}: starts from {name!r}, which stands for several schedules")
        return self.schedule(name, behind)

    def several(self, name: str, table: ArmTable) -> list[Arm]:
        """The arms that one rule gives, each named by what it is."""
        if table.schedule == "bracketing":
            uniforms = bracketing_uniforms(self._start(table.of, (name,)), self.model.d_model)
            found = {f"{name}-{each.heads[0]}": each for each in uniforms}
        else:
            found = {
                f"{name}-{str(each).replace(' ', '_')}": each
                for each in self._enumerated(f"{self.file}: arms.{name}", table)
            }
        changes = self.changes(name)
        return [
            Arm(each, schedule, changes)
            for each, schedule in found.items()
            if all(n % self.model.queries_per_kv == 0 for n in schedule.heads)
        ]

    def _enumerated(self, where: str, table: ArmTable) -> Iterator[HeadSchedule]:
        limits = Limits(
            None if table.start is None else tuple(table.start),
            max(2, table.min_phases),  # one phase is no progression
            table.max_phases,
            table.min_phase_layers,
            table.max_phase_layers,
            RULES if table.rules is None else frozenset(table.rules),
        )
        model, found = self.model, 0
        for schedule in enumerate_schedules(model.d_model, model.n_layers, model.h_base, limits):
            found += 1
            if found > table.most:
                raise StudyError(
                    f"{where}: more than most = {table.most} schedules; limit them further"
                )
            yield schedule
        if not found:
            raise StudyError(f"{where}: no schedule is within these limits")


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ScheduleError("write a whole number after the colon, as in uniform:6 or shuffled:1")
    return int(text)
