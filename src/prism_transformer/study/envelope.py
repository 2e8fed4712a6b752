"""Each arm at its own best learning rate: what a sweep over rates, or a tuning, has found.

Loss against rate is one curve for each arm, and best against best is what compares schedules. A
sweep has both from the same runs: the loss of each seed at the arm's best rate is read off the
parabola, so arms are still compared seed by seed. A tuning has the curves alone; its comparison
is made by fresh seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, nan

import numpy as np
import pandas as pd

from prism_transformer.core.table import Column, Interval, Row, Table, words
from prism_transformer.study.collected import LEARNING_RATE, Collected, Facts, finite
from prism_transformer.study.contrasts import Contrast, adjust, contrasts_at, lost_runs
from prism_transformer.study.statistics import Array
from prism_transformer.study.tuning import BestRate, around_best, best_rate, pooled_noise

AT_BEST = "each arm's best"  # what stands for the rate of a contrast of best against best
FEWEST_RATES = 3


@dataclass(frozen=True)
class ArmRates:
    """One arm at several rates."""

    arm: str
    rates: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]
    """at each rate, a row for each seed; infinite where a run diverged, NaN where none ended"""
    best: BestRate | None
    """None while no seed is complete at all rates"""


@dataclass(frozen=True)
class Envelope:
    """All arms at their rates, for one combination of what else is swept."""

    values: Facts
    """of the other swept keys"""
    seeds: tuple[int, ...]
    arms: tuple[ArmRates, ...]
    tuned: bool
    """by [tune], on seeds of its own; else by a sweep, whose contrasts follow"""
    contrasts: tuple[Contrast, ...] = ()
    """best against best, adjusted among themselves"""

    @property
    def at_edge(self) -> dict[str, BestRate]:
        """Arms that are best at an end of their rates, so that nobody knows where they are."""
        return {each.arm: each.best for each in self.arms if each.best and each.best.edge}

    @property
    def table(self) -> Table:
        """A row for each arm."""
        columns = (
            *words("arm", "rates"), Column("best rate", digits=2), Column("interval", digits=2),
            Column("loss there", "nats", 4), Column("seeds"), *words("remark"),
        )  # fmt: skip
        return Table("rates", columns, tuple(map(_cells, self.arms)), "Learning rate of each arm")


def _cells(each: ArmRates) -> Row:
    best, known = each.best, sum(not np.isnan(row).any() for row in np.array(each.losses))
    bounded = best is not None and not best.edge and np.isfinite([best.low, best.high]).all()
    remark = ""
    if best and best.edge:
        remark = f"best at the {'lowest' if best.edge == 'low' else 'highest'} rate: no best known"
    elif best and best.high == inf:
        remark = "not bounded by these losses"
    means = zip(best.rates, best.means, strict=True) if best else ()
    if diverged := [f"{rate:g}" for rate, mean in means if mean == inf]:
        remark = "; ".join(filter(None, [remark, f"diverged at {', '.join(diverged)}"]))
    return {
        "arm": each.arm, "rates": ", ".join(f"{rate:g}" for rate in each.rates),
        "best rate": best.rate if best and not best.edge else None,
        "interval": Interval(best.low, best.high) if best and bounded else None,
        "loss there": best.loss if best and not best.edge else None, "seeds": known,
        "remark": remark,
    }  # fmt: skip


def envelopes(collected: Collected, limit: float) -> tuple[Envelope, ...]:
    """Of a tuned study one, of a sweep over rates one for each combination of its other values."""
    if collected.facts.tuning is not None:
        return (_tuned(collected),) if collected.facts.tuning.arms else ()
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for index, point in enumerate(collected.points):
        rest = tuple((key, str(value)) for key, value in point.items() if key != LEARNING_RATE)
        if LEARNING_RATE in point:
            groups.setdefault(rest, []).append(index)
    return tuple(
        _swept(collected, places, limit)
        for places in groups.values()
        if len(places) >= FEWEST_RATES
    )


def _tuned(collected: Collected) -> Envelope:
    facts = collected.facts.tuning
    assert facts is not None
    tables = {
        each.arm.name: np.array([[inf if e is None else e for e in row] for row in each.losses])
        for each in facts.arms
    }
    rates = {each.arm.name: each.rates for each in facts.arms}
    arms = tuple(
        replace(each, best=each.best and replace(each.best, rate=facts.best[each.arm]))
        for each in _arms(rates, tables)
    )  # the rate that was written down, whatever this version would find
    return Envelope({}, facts.seeds, arms, tuned=True)


def _swept(collected: Collected, places: list[int], limit: float) -> Envelope:
    points = collected.points
    places = sorted(places, key=lambda place: float(points[place][LEARNING_RATE]))
    rates = tuple(float(points[place][LEARNING_RATE]) for place in places)
    losses = [finite(collected.final_loss(place)) for place in places]
    lost = [each for place in places for each in lost_runs(collected, place)]
    for which, place in enumerate(places):
        for run in lost:
            if run.point == place and run.diverged:
                losses[which].loc[run.seed, run.arm] = inf
    tables = {arm: np.column_stack([each[arm] for each in losses]) for arm in collected.arms}
    arms = tuple(_arms(dict.fromkeys(collected.arms, rates), tables))
    seeds = collected.facts.seeds
    own = {
        each.arm: each.best.at_best(tables[each.arm])
        if each.best and not each.best.edge
        else np.full(len(seeds), nan)
        for each in arms
    }
    frame = finite(pd.DataFrame(own, index=list(seeds)))
    values = {key: value for key, value in points[places[0]].items() if key != LEARNING_RATE}
    facts, at = collected.facts, {**values, LEARNING_RATE: AT_BEST}
    others = [arm for arm in collected.arms if arm != facts.baseline]
    contrasts = adjust(contrasts_at(facts, others, -1, at, frame, limit))
    return Envelope(values, seeds, arms, False, tuple(contrasts))


def _arms(rates: dict[str, tuple[float, ...]], tables: dict[str, Array]) -> Iterator[ArmRates]:
    """Every arm with its best rate, whose interval is by the noise of all."""
    whole = {arm: table[~np.isnan(table).any(1)] for arm, table in tables.items()}
    near = [
        each for table in whole.values() if len(table) and (each := around_best(table)) is not None
    ]
    noise = pooled_noise(near)
    for arm, table in tables.items():
        best = best_rate(rates[arm], whole[arm], noise) if len(whole[arm]) else None
        yield ArmRates(arm, rates[arm], tuple(tuple(map(float, row)) for row in table), best)
