"""Schedules for a model of one's own: all within limits, the most promising few, controls."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations, pairwise
from math import log2

from prism_transformer.core.errors import InputError
from prism_transformer.schedule import HeadSchedule, ScheduleError, head_counts
from prism_transformer.schedules.hardware import FLASH_LIMIT, Alignment, degrees
from prism_transformer.schedules.paper import START_WIDTH
from prism_transformer.schedules.rules import MIN_PHASE_LAYERS, check_rules

MOST_COUNTS = 16  # head counts below the base that a proposal may choose from

MAX_ENUMERATED_LAYERS = 256  # it recurses once per phase

RULES = frozenset({"monotonicity", "convergence", "smoothness", "preservation"})


@dataclass(frozen=True)
class Limits:
    """What to enumerate. Divisibility always holds; ``rules`` names the others to keep."""

    start: tuple[int, ...] | None = None  # head counts allowed in the first layer
    min_phases: int = 1
    max_phases: int | None = None
    min_phase_layers: int = 1
    max_phase_layers: int | None = None
    rules: frozenset[str] = RULES

    def __post_init__(self) -> None:
        if unknown := self.rules - RULES:
            raise InputError(f"unknown rules {sorted(unknown)}; choose from {sorted(RULES)}")
        for name in ("min_phases", "max_phases", "min_phase_layers", "max_phase_layers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}={value}; the least is 1")


def _check_base(d_model: int, n_layers: int, h_base: int) -> None:
    try:
        HeadSchedule.uniform(h_base, n_layers).head_dims(d_model)
    except ScheduleError as error:
        raise ScheduleError(f"h_base={h_base}, {n_layers} layers: {error}") from None


def enumerate_schedules(
    d_model: int, n_layers: int, h_base: int, limits: Limits | None = None
) -> Iterator[HeadSchedule]:
    """Every schedule within the limits, lazily, each once, in a fixed order."""
    _check_base(d_model, n_layers, h_base)
    if n_layers > MAX_ENUMERATED_LAYERS:
        raise InputError(f"{n_layers} layers; at most {MAX_ENUMERATED_LAYERS} are enumerated")
    limits = limits or Limits()
    counts = head_counts(d_model)
    if {"monotonicity", "convergence"} <= limits.rules:
        counts = tuple(n for n in counts if n <= h_base)
    for heads in _Growth(n_layers, h_base, counts, limits).grow():
        schedule = HeadSchedule(heads)
        findings = check_rules(schedule, d_model, h_base)
        if all(finding.ok for finding in findings if finding.rule in limits.rules):
            yield schedule


@dataclass(frozen=True)
class _Growth:
    """Builds schedules phase by phase. It prunes early; ``check_rules`` has the last word."""

    n_layers: int
    h_base: int
    counts: tuple[int, ...]
    limits: Limits

    def grow(self, heads: tuple[int, ...] = (), n_phases: int = 0) -> Iterator[tuple[int, ...]]:
        """Complete ``heads`` in every way that the limits allow."""
        if len(heads) == self.n_layers:
            if n_phases >= self.limits.min_phases:
                yield heads
        elif n_phases != self.limits.max_phases:
            for count in self._next_counts(heads):
                for length in self._lengths(heads, count):
                    yield from self.grow(heads + (count,) * length, n_phases + 1)

    def _next_counts(self, heads: tuple[int, ...]) -> list[int]:
        if not heads:
            return [n for n in self.counts if self.limits.start is None or n in self.limits.start]
        rising = "monotonicity" in self.limits.rules
        return [n for n in self.counts if (n > heads[-1] if rising else n != heads[-1])]

    def _lengths(self, heads: tuple[int, ...], count: int) -> range:
        """How many layers a phase of ``count`` heads may last after ``heads``."""
        rules = self.limits.rules
        left = self.n_layers - len(heads)
        shortest = max(self.limits.min_phase_layers, MIN_PHASE_LAYERS * ("smoothness" in rules))
        longest = min(left, self.limits.max_phase_layers or left)
        if count != self.h_base:
            if "convergence" in rules:  # room for the base phase
                longest = min(longest, left - shortest)
            if "preservation" in rules:  # at most half of the layers away from the base count
                away = sum(n != self.h_base for n in heads)
                longest = min(longest, self.n_layers // 2 - away)
        if "monotonicity" in rules and count == self.counts[-1]:
            shortest = max(shortest, left)  # nothing may follow the largest count
        return range(shortest, longest + 1)


@dataclass(frozen=True)
class Proposal:
    """A schedule for some model, and why."""

    schedule: HeadSchedule
    reasons: tuple[str, ...]


def propose(
    d_model: int,
    n_layers: int,
    h_base: int,
    *,
    queries_per_kv: int = 1,
    tensor_parallel: int = 1,
    most: int = 5,
) -> list[Proposal]:
    """The most promising schedules for a model shape, best first, by the paper's own criteria.

    In order: a first layer that flash attention takes, its head width near 256, no step above a
    doubling, early widths that sit well on kernels, a ramp as long as the paper's. No loss was
    measured for this ranking.
    """
    _check_base(d_model, n_layers, h_base)
    if most < 1:
        raise InputError(f"most={most}; ask for at least 1 proposal")
    counts = _admitted_counts(d_model, h_base, queries_per_kv, tensor_parallel)
    found = {
        schedule
        for ladder in _ladders(counts)
        for ramp in {n_layers // 2, n_layers // 4}
        if (schedule := _staircase(ladder, ramp, n_layers))
    }
    if not found:
        raise InputError(f"{n_layers} layers hold no ramp of two-layer phases; use 4 or more")
    ranked = sorted(found, key=lambda s: (*_rank(s, d_model), s.heads))
    return [Proposal(s, _reasons(s, d_model)) for s in ranked[:most]]


def _admitted_counts(
    d_model: int, h_base: int, queries_per_kv: int, tensor_parallel: int
) -> list[int]:
    """Head counts up to the base that can be grouped and sharded as asked."""
    asked = {"queries_per_kv": queries_per_kv, "tensor_parallel": tensor_parallel}
    for name, degree in asked.items():
        if degree < 1:
            raise InputError(f"{name}={degree}; 1 means none, and less means nothing")
    shared = queries_per_kv * tensor_parallel
    counts = [n for n in head_counts(d_model) if n <= h_base and n % shared == 0]
    if h_base not in counts or len(counts) < 2:
        raise InputError(
            f"h_base={h_base} leaves no room: a schedule needs h_base and a smaller head count "
            f"that both divide d_model={d_model} and are multiples of queries_per_kv x "
            f"tensor_parallel = {shared}"
        )
    return counts


def _ladders(counts: list[int]) -> Iterator[tuple[int, ...]]:
    """Every rising choice of head counts that ends at the base count, up to five phases."""
    *early, base = counts
    if len(early) > MOST_COUNTS:
        # A width with very many divisors: keep those nearest to a power-of-two share of the base.
        octaves = {n: log2(base / n) for n in early}
        misfit = {n: abs(each - round(each)) for n, each in octaves.items()}
        early = sorted(sorted(early, key=misfit.__getitem__)[:MOST_COUNTS])
    steps = chain.from_iterable(combinations(early, n) for n in range(1, 5))
    return ((*step, base) for step in steps)


def _staircase(ladder: tuple[int, ...], ramp: int, n_layers: int) -> HeadSchedule | None:
    """``ramp`` layers shared evenly between the early counts, the rest at the base count."""
    *early, base = ladder
    length = ramp // len(early)
    if length < 2:
        return None
    climb = tuple(n for n in early for _ in range(length))
    return HeadSchedule(climb + (base,) * (n_layers - len(climb)))


def _rank(schedule: HeadSchedule, d_model: int) -> tuple[float, ...]:
    """Smaller is better."""
    widths = [d_model // phase.n_heads for phase in schedule.phases]
    off_flash = widths[0] > FLASH_LIMIT
    from_start = abs(log2(widths[0] / START_WIDTH))
    steep = max(2.0, _steepest(schedule))
    # The base width is given, so only the early ones are judged; a wide one wastes more of a tile.
    misaligned = sum(Alignment(width).penalty * width for width in widths[:-1])
    paper_ramp = 0.5 if len(schedule) < 24 else 0.25  # at 12 layers, at 24
    return (off_flash, from_start, steep, misaligned, abs(_ramp(schedule) - paper_ramp))


def _steepest(schedule: HeadSchedule) -> float:
    """The largest factor between the head counts of neighbouring phases."""
    counts = [phase.n_heads for phase in schedule.phases]
    return max(after / before for before, after in pairwise(counts))


def _ramp(schedule: HeadSchedule) -> float:
    """The share of layers before the base phase."""
    return 1 - schedule.phases[-1].n_layers / len(schedule)


def _reasons(schedule: HeadSchedule, d_model: int) -> tuple[str, ...]:
    widths = schedule.head_dims(d_model)
    why = f"the paper keeps {START_WIDTH}"
    if widths[0] == START_WIDTH:
        why = "as at every scale of the paper"
    elif widths[0] > FLASH_LIMIT:
        why = f"beyond the {FLASH_LIMIT} that flash attention takes"
    kinds = {width: str(Alignment(width)) for width in widths}
    lengths = sorted({phase.n_layers for phase in schedule.phases[:-1]})
    return (
        f"the first layer's heads are {widths[0]} wide, {why}",
        "widths: " + "; ".join(f"{width} {kind}" for width, kind in kinds.items()),
        f"{len(schedule.phases)} phases, early ones {lengths[0]} layers each, "
        f"largest step x{_steepest(schedule):.3g}",
        f"{_ramp(schedule):.0%} of the layers ramp; mean {schedule.mean_heads:.3g} heads; "
        f"queries_per_kv x tensor_parallel may be {', '.join(map(str, degrees(schedule)))}",
    )


def reverse(schedule: HeadSchedule) -> HeadSchedule:
    """The same head counts, deepest first: many narrow heads early, few wide ones late."""
    return HeadSchedule(schedule.heads[::-1])


def shuffle(schedule: HeadSchedule, seed: int) -> HeadSchedule:
    """The same head counts in an order drawn by ``seed``; never the schedule's own order."""
    order = list(schedule.heads)
    draw = random.Random(seed)
    while tuple(order) == schedule.heads and len(schedule.phases) > 1:
        draw.shuffle(order)
    return HeadSchedule(tuple(order))


def bracketing_uniforms(schedule: HeadSchedule, d_model: int) -> tuple[HeadSchedule, ...]:
    """The uniform schedules on either side of its mean head count and of its mean head width.

    They ask whether a gain comes from the progression or just from fewer heads.
    """
    widths = schedule.head_dims(d_model)
    count_of_mean_width = d_model / (sum(widths) / len(widths))
    counts = head_counts(d_model)
    chosen: set[int] = set()
    for target in (schedule.mean_heads, count_of_mean_width):
        chosen.add(max(n for n in counts if n <= target))
        chosen.add(min(n for n in counts if n >= target))
    return tuple(HeadSchedule.uniform(n, len(schedule)) for n in sorted(chosen))
