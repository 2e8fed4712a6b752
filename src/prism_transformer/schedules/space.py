"""Spaces of schedules: which head counts each layer may have, and draws from them.

A space is written like a schedule with several counts in place of one: ``1/2/4x8`` is 1, 2 or 4
heads in each of 8 layers, ``1/2x4 4x4`` leaves a choice in the first four only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, product
from math import prod
from typing import Literal, get_args

from prism_transformer.core.errors import InputError
from prism_transformer.schedule import HeadSchedule, ScheduleError, head_dim
from prism_transformer.schedules.design import RULES
from prism_transformer.schedules.rules import check_rules

MOST = 10_000  # schedules that are listed one by one

NOTATION = "write counts x layers, as in '1/2/4x8' or '1/2x4 4x4'"

Draw = Literal["sandwich", "layers"]


@dataclass(frozen=True)
class Space:
    """The head counts that each layer may have, ascending."""

    choices: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.choices or not all(self.choices):
            raise ScheduleError(f"the space of schedules is empty; {NOTATION}")

    @classmethod
    def parse(cls, text: str) -> Space:
        """Read ``1/2/4x8``."""
        choices: list[tuple[int, ...]] = []
        for item in text.replace(",", " ").split():
            counts, _, layers = item.lower().partition("x")
            try:
                # Each count by the reader of schedules, which says what is wrong with it.
                each = [HeadSchedule.parse(f"{n}x{layers or 1}") for n in counts.split("/")]
            except ScheduleError as error:
                raise ScheduleError(f"space {text!r}: {error}; {NOTATION}") from None
            own = tuple(sorted({schedule[0] for schedule in each}))
            choices += [own] * len(each[0])
        HeadSchedule((1,) * max(1, len(choices)))  # which refuses too many layers
        return cls(tuple(choices))

    def __str__(self) -> str:
        runs = ((own, len(list(run))) for own, run in groupby(self.choices))
        return " ".join(f"{'/'.join(map(str, own))}x{n}" for own, n in runs)

    def __contains__(self, schedule: HeadSchedule) -> bool:
        return len(schedule) == len(self.choices) and all(
            n in own for n, own in zip(schedule.heads, self.choices, strict=True)
        )

    @property
    def size(self) -> int:
        """How many schedules it has, before any rule."""
        return prod(map(len, self.choices))

    @property
    def extremes(self) -> tuple[HeadSchedule, HeadSchedule]:
        """The widest heads everywhere, and the narrowest."""
        return (
            HeadSchedule(tuple(own[0] for own in self.choices)),
            HeadSchedule(tuple(own[-1] for own in self.choices)),
        )

    def check(self, d_model: int, n_layers: int, queries_per_kv: int = 1) -> None:
        """Refuse a space that holds a schedule which the model cannot have."""
        if len(self.choices) != n_layers:
            count = "1 layer" if len(self.choices) == 1 else f"{len(self.choices)} layers"
            raise ScheduleError(
                f"space {self} has {count} but the model has {n_layers}; make its layer counts add "
                f"up to {n_layers}"
            )
        for layer, own in enumerate(self.choices):
            for n_heads in own:
                head_dim(n_heads, layer, d_model)
                if n_heads % queries_per_kv:
                    raise ScheduleError(
                        f"space {self}: layer {layer}: {n_heads} heads are no multiple of "
                        f"queries_per_kv = {queries_per_kv}"
                    )

    def expect(self, schedule: HeadSchedule) -> None:
        """Refuse a schedule that is not in it."""
        if schedule not in self:
            raise ScheduleError(f"schedule {schedule} is not in the space {self}")

    def schedules(
        self, rules: frozenset[str] = frozenset(), d_model: int = 0, h_base: int = 0
    ) -> list[HeadSchedule]:
        """All of them, or those that keep these rules of the paper, which ask for the model."""
        if unknown := rules - RULES:
            raise InputError(f"unknown rules {sorted(unknown)}; choose from {sorted(RULES)}")
        if self.size > MOST:
            raise InputError(
                f"space {self} has {self.size:,} schedules; at most {MOST:,} are listed: give "
                "fewer counts, fix some layers, or name the schedules"
            )
        found = list(self._kept(rules, d_model, h_base))
        if not found:
            named = ", ".join(sorted(rules))
            raise InputError(f"space {self}: none of its {self.size:,} schedules keeps {named}")
        return found

    def _kept(self, rules: frozenset[str], d_model: int, h_base: int) -> Iterator[HeadSchedule]:
        for heads in product(*self.choices):
            schedule = HeadSchedule(heads)
            findings = check_rules(schedule, d_model, h_base) if rules else []
            if all(finding.ok for finding in findings if finding.rule in rules):
                yield schedule


@dataclass(frozen=True)
class Sampling:
    """A schedule for every step of a run: a pure function of seed and step.

    ``layers`` draws each layer's count by itself. ``sandwich`` does so in every other step, and
    takes the two extremes of the space in turn between: what lies in the middle of a space is drawn
    often enough, its ends hardly ever.
    """

    draw: Draw
    space: Space

    @classmethod
    def parse(cls, text: str) -> Sampling:
        """Read ``sandwich 1/2/4x8`` or ``layers 1/2/4x8``."""
        kind, _, space = text.strip().partition(" ")
        for draw in get_args(Draw):
            if kind == draw:
                return cls(draw, Space.parse(space))
        ways = " or ".join(get_args(Draw))
        raise ScheduleError(f"{text!r}: write {ways}, then a space, as in 'sandwich 1/2/4x8'")

    def __str__(self) -> str:
        return f"{self.draw} {self.space}"

    def schedule(self, seed: int, step: int) -> HeadSchedule:
        """What the model runs under in this step, the same in every process."""
        if self.draw == "sandwich" and step % 2 == 0:
            return self.space.extremes[step // 2 % 2]
        # Seeded by text, which Python hashes by sha512 alike in all its versions.
        draw = random.Random(f"schedule {seed} {step}")
        return HeadSchedule(tuple(own[int(draw.random() * len(own))] for own in self.space.choices))
