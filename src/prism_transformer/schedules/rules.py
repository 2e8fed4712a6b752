"""The paper's constraints and guidelines as findings, one per rule, never one boolean.

A schedule that breaks a rule is still a schedule: controls break them on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from prism_transformer.schedule import HeadSchedule, ScheduleError, check_d_model, head_dim

Kind = Literal["constraint", "guideline", "hardware"]

MIN_PHASE_LAYERS = 2


@dataclass(frozen=True)
class Finding:
    """What one rule says of a schedule: whether it holds, why, and for which layers it does not."""

    rule: str
    kind: Kind
    ok: bool
    reason: str
    layers: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = f" [{layer_ranges(self.layers)}]" if self.layers else ""
        return f"{self.rule}{where}: {self.reason}"


def check_rules(schedule: HeadSchedule, d_model: int, h_base: int | None = None) -> list[Finding]:
    """The three constraints and two guidelines of the paper's Section 2, in its order.

    ``h_base`` is the head count of the uniform twin; left out, the schedule's largest count.
    """
    check_d_model(d_model)
    for layer, n_heads in enumerate(schedule.heads):
        if d_model % n_heads == 0:
            head_dim(n_heads, layer, d_model)  # an odd width breaks no rule, but is no model either
    base = max(schedule.heads) if h_base is None else h_base
    if base < 1:
        raise ScheduleError(f"h_base={base}; the uniform twin needs at least 1 head")
    return [
        _divisibility(schedule, d_model),
        _monotonicity(schedule),
        _convergence(schedule, base),
        _smoothness(schedule),
        _preservation(schedule, base),
    ]


def _divisibility(schedule: HeadSchedule, d_model: int) -> Finding:
    wrong = tuple(layer for layer, n in enumerate(schedule.heads) if d_model % n)
    reason = f"every head count divides d_model={d_model}"
    if wrong:
        counts = ", ".join(map(str, sorted({schedule.heads[layer] for layer in wrong})))
        reason = f"{counts} heads cannot split d_model={d_model} evenly"
    return Finding("divisibility", "constraint", not wrong, reason, wrong)


def check_grouping(schedule: HeadSchedule, queries_per_kv: int) -> Finding:
    """Whether every layer can share key-value heads among so many queries."""
    if queries_per_kv < 1:
        raise ScheduleError(f"queries_per_kv={queries_per_kv}; give at least 1")
    wrong = tuple(layer for layer, n in enumerate(schedule.heads) if n % queries_per_kv)
    reason = f"every head count is a multiple of queries_per_kv={queries_per_kv}"
    if wrong:
        counts = ", ".join(map(str, sorted({schedule.heads[layer] for layer in wrong})))
        reason = f"{counts} heads are no multiple of queries_per_kv={queries_per_kv}"
    return Finding("grouping", "constraint", not wrong, reason, wrong)


def _monotonicity(schedule: HeadSchedule) -> Finding:
    heads = schedule.heads
    drops = tuple(layer for layer in range(1, len(heads)) if heads[layer] < heads[layer - 1])
    reason = "the head count never falls with depth"
    if drops:
        steps = ", ".join(f"{heads[layer - 1]} to {heads[layer]}" for layer in drops[:3])
        more = ", ..." if len(drops) > 3 else ""
        reason = f"the head count falls ({steps}{more}); a progressive schedule never does"
    return Finding("monotonicity", "constraint", not drops, reason, drops)


def _convergence(schedule: HeadSchedule, h_base: int) -> Finding:
    last = schedule.heads[-1]
    ok = last == h_base
    has = f"h_base={h_base} heads" if ok else f"{last} heads, not h_base={h_base}"
    where = () if ok else (len(schedule) - 1,)
    return Finding("convergence", "constraint", ok, f"the last layer has {has}", where)


def _smoothness(schedule: HeadSchedule) -> Finding:
    short = [phase for phase in schedule.phases if phase.n_layers < MIN_PHASE_LAYERS]
    reason = f"every phase lasts at least {MIN_PHASE_LAYERS} layers"
    if short:
        counts = ", ".join(str(phase.n_heads) for phase in short)
        reason = (
            f"{len(short)} phase{'s' * (len(short) > 1)} of one layer ({counts} heads): the paper "
            "found abrupt steps worse and holds each count for at least "
            f"{MIN_PHASE_LAYERS} layers"
        )
    layers = tuple(layer for phase in short for layer in phase.layers)
    return Finding("smoothness", "guideline", not short, reason, layers)


def _preservation(schedule: HeadSchedule, h_base: int) -> Finding:
    away = tuple(layer for layer, n in enumerate(schedule.heads) if n != h_base)
    n_base = len(schedule) - len(away)
    ok = 2 * n_base >= len(schedule)
    share = f"{n_base} of {len(schedule)} layers have h_base={h_base} heads"
    reason = share if ok else f"{share}; the paper keeps at least half of them"
    return Finding("preservation", "guideline", ok, reason, () if ok else away)


def spans(layers: Sequence[int]) -> str:
    """Ascending numbers of layers as people write them: ``0-2, 5``."""
    # In a run of consecutive numbers, number and place go up together.
    runs = groupby(enumerate(layers), lambda item: item[1] - item[0])
    ends = [[layer for _, layer in run] for _, run in runs]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in ends)


def layer_ranges(layers: Sequence[int]) -> str:
    """The same in words: ``layer 3`` or ``layers 0-2, 5``."""
    return f"layer{'s' * (len(layers) != 1)} {spans(layers)}"
