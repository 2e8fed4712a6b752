"""Learning rates: each arm's best one, and arms compared at their best.

In come final losses of arms at several rates, from a sweep or from [tune]. Loss against the
logarithm of the rate is close to a parabola near its lowest point, so the best rate is the vertex
of the parabola through the lowest mean and its two neighbours. Close is not equal: beyond its best
rate a loss climbs like a wall, which draws the vertex to the other side. So the interval also has
the lowest points of the cubics through one rate more, and the rate of the lowest mean itself: no
curve through rates a factor of two apart knows where a steep wall begins. A lowest mean at the edge
of the grid gives no best rate: the grid must be extended.

From a sweep, the loss of each seed at its arm's best rate is read off the parabola, so arms are
still compared seed by seed. From [tune] only the rates are taken: its comparison is made by other
runs, with fresh seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor, inf, isfinite, log2, log10, nan, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special

from prism_transformer.core.errors import InputError
from prism_transformer.core.table import Column, Interval, Row, Table, words
from prism_transformer.study.collected import LEARNING_RATE, Collected, Facts, finite
from prism_transformer.study.contrasts import Contrast, adjust, contrasts_at, lost_runs
from prism_transformer.study.multiplicity import block_residuals
from prism_transformer.study.statistics import CONFIDENCE, Array

AT_BEST = "each arm's best"  # what stands for the rate of a contrast of best against best
FEWEST_RATES = 3
CUBIC_STEPS = 1001  # of a search for level places; finer than the two digits that rates have

Edge = Literal["", "low", "high"]


# -- one arm --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """What seeds and rates leave unexplained of the loss of one run."""

    sd: float
    freedom: int
    """degrees of freedom"""

    def of_mean(self, n_seeds: int) -> float:
        """Half of a 95 % interval of a mean over so many seeds."""
        return float(special.stdtrit(self.freedom, (1 + CONFIDENCE) / 2)) * self.sd / sqrt(n_seeds)


@dataclass(frozen=True)
class BestRate:
    """Where an arm learns best."""

    rate: float
    """two significant digits: nobody can tell more"""
    loss: float
    """of the parabola at its vertex"""
    rates: tuple[float, ...]
    means: tuple[float, ...]
    """over seeds at each rate; infinite where a run diverged"""
    weights: tuple[float, ...]
    """what each rate's loss counts for in that at the best rate"""
    low: float = nan
    """of the rate's 95 % interval; 0 where the losses bound it from no side"""
    high: float = nan
    """infinite where nothing bounds it; both NaN where no noise is known"""
    edge: Edge = ""
    """which end of the grid the lowest mean is at, if it is: then the rate is only a bound"""

    def at_best(self, losses: npt.ArrayLike) -> Array:
        """The loss of each seed at the best rate, from a row of losses at all rates for each."""
        table, used = np.asarray(losses, dtype=np.float64), np.flatnonzero(self.weights)
        return np.asarray(table[:, used] @ np.asarray(self.weights)[used])


def best_rate(
    rates: Sequence[float], losses: npt.ArrayLike, noise: Noise | None = None
) -> BestRate:
    """From final losses, a row for each seed and a column for each rate, in ascending order.

    A run that diverged has a loss that is not finite; such a rate is worse than all others. The
    interval is by ``noise``; that of these losses alone, when left out.
    """
    table = _checked(rates, losses)
    means = _means(table)
    best = int(np.argmin(means))
    known = tuple(map(float, rates)), tuple(map(float, means))
    alone = tuple(float(place == best) for place in range(len(rates)))
    at_grid = BestRate(float(rates[best]), float(means[best]), *known, alone)
    if best in (0, len(rates) - 1):  # the first, too, where all diverged: a lower one may not
        return replace(at_grid, edge="low" if best == 0 else "high")
    around = slice(best - 1, best + 2)
    if not np.isfinite(means[around]).all():  # a neighbour diverged: no parabola, but no edge
        return at_grid
    x = np.log2(np.asarray(rates[around], dtype=np.float64))
    bend, slope, _ = fits = np.linalg.inv(np.vander(x - x[1]))
    a, b, c = fits @ means[around]
    vertex = -b / (2 * a)
    weights = np.zeros(len(rates))
    weights[around] = np.vander([vertex], 3)[0] @ fits
    noise = noise or pooled_noise([table[:, around]])
    low, high = _interval(bend, slope, means[around], noise, len(table))
    if noise and isfinite(high - low):
        ends = [(low, high), *_of_cubics(rates, means, best, noise.of_mean(len(table)))]
        ends.append((0.0, 0.0))  # the rate that was tried and is lowest
        low, high = min(min(ends)), max(map(max, ends))
    rate, low, high = (float(2 ** (x[1] + at)) for at in (vertex, low, high))
    lowest = float(c - b * b / (4 * a))
    return BestRate(rounded(rate), lowest, *known, tuple(map(float, weights)), low, high)


def _checked(rates: Sequence[float], losses: npt.ArrayLike) -> Array:
    table = np.asarray(losses, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != len(rates) or list(rates) != sorted(set(rates)):
        raise InputError(f"losses of shape {table.shape} do not fit {len(rates)} ascending rates")
    return table


def _means(table: Array) -> Array:
    """Over seeds; infinite where one of them is no number."""
    good = np.isfinite(table).all(0)
    return np.where(good, np.where(good, table, 0.0).mean(0), inf)


def around_best(losses: npt.ArrayLike) -> Array | None:
    """The losses that a parabola goes through; None where there is none."""
    table = np.asarray(losses, dtype=np.float64)
    means = _means(table)
    best = int(np.argmin(means))
    near = table[:, max(0, best - 1) : best + 2]
    return near if near.shape[1] == 3 and np.isfinite(near).all() and best > 0 else None


def pooled_noise(tables: Sequence[Array]) -> Noise | None:
    """One noise of several arms, each a row for a seed and a column for a rate; None of one seed.

    As in a randomised block design: what is left when each seed and each rate has its mean.
    """
    squares, freedom = 0.0, 0
    for table in tables:
        squares += float((block_residuals(table) ** 2).sum())
        freedom += (table.shape[0] - 1) * (table.shape[1] - 1)
    return Noise(sqrt(squares / freedom), freedom) if freedom else None


def _interval(
    bend: Array, slope: Array, means: Array, noise: Noise | None, n_seeds: int
) -> tuple[float, float]:
    """Where the slope of the parabola may be 0, about its middle, in log2: Fieller's interval.

    The slope at u is a weighted sum of three means, so whether it is 0 is a t test; the interval
    has all u that the test does not reject. Unlike a standard error it holds for any noise, and
    where the bend may as well be none it has no ends.
    """
    if noise is None:
        return nan, nan
    error = noise.of_mean(n_seeds) ** 2
    rise, start = 2 * bend @ means, slope @ means
    a = rise**2 - error * 4 * bend @ bend
    b = 2 * (rise * start - error * 2 * bend @ slope)
    c = start**2 - error * slope @ slope
    if a <= 0:
        return -inf, inf
    half = sqrt(max(float(b * b - 4 * a * c), 0.0))
    return float((-b - half) / (2 * a)), float((-b + half) / (2 * a))


def _of_cubics(
    rates: Sequence[float], means: Array, best: int, error: float
) -> Iterator[tuple[float, float]]:
    """Where the slope of a cubic may be 0, between the neighbours of the lowest mean, in log2.

    A cubic goes through these three means and the next one, on either side where there is one.
    """
    for first in (best - 2, best - 1):
        through = slice(first, first + 4)
        if first < 0 or first + 4 > len(rates) or not np.isfinite(means[through]).all():
            continue
        x = np.log2(np.asarray(rates[through], dtype=np.float64)) - log2(rates[best])
        at = np.linspace(x[best - 1 - first], x[best + 1 - first], CUBIC_STEPS)
        slopes = np.vander(at, 3) * (3, 2, 1) @ np.linalg.inv(np.vander(x))[:3]
        steep = np.abs(slopes @ means[through]) - error * np.linalg.norm(slopes, axis=1)
        level = at[steep <= max(0.0, steep.min())]  # the lowest point at least
        yield float(level[0]), float(level[-1])


def rounded(rate: float) -> float:
    """Two significant digits."""
    return round(rate, 1 - floor(log10(rate)))


def extended(rates: Sequence[float], edge: Edge) -> list[float]:
    """The grid with one rate more, as far from the edge as its last two are from each other."""
    if edge == "low":
        return [rounded(rates[0] ** 2 / rates[1]), *rates]
    return [*rates, rounded(rates[-1] ** 2 / rates[-2])] if edge else list(rates)


# -- all arms -------------------------------------------------------------------------------------


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


def losses_by_rate(
    collected: Collected, points: Sequence[int]
) -> tuple[tuple[float, ...], dict[str, Array]]:
    """Rates of these points of a sweep, ascending, and final losses by arm: (seeds, rates).

    Infinite where a run diverged, NaN where none ended.
    """
    ordered = sorted((float(collected.points[point][LEARNING_RATE]), point) for point in points)
    frames = []
    for _, point in ordered:
        losses = finite(collected.final_loss(point))
        for run in lost_runs(collected, point):
            if run.diverged:
                losses.loc[run.seed, run.arm] = inf
        frames.append(losses)
    tables = {arm: np.column_stack([each[arm] for each in frames]) for arm in collected.arms}
    return tuple(rate for rate, _ in ordered), tables


def _swept(collected: Collected, points: Sequence[int], limit: float) -> Envelope:
    rates, tables = losses_by_rate(collected, points)
    arms = tuple(_arms(dict.fromkeys(collected.arms, rates), tables))
    seeds = collected.facts.seeds
    own = {
        each.arm: each.best.at_best(tables[each.arm])
        if each.best and not each.best.edge
        else np.full(len(seeds), nan)
        for each in arms
    }
    frame = finite(pd.DataFrame(own, index=list(seeds)))
    first = collected.points[points[0]]
    values = {key: value for key, value in first.items() if key != LEARNING_RATE}
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
