"""The best learning rate of an arm, from its losses at a few of them.

Loss against the logarithm of the rate is close to a parabola near its lowest point. The best rate
is the vertex of the one through the lowest mean and its two neighbours, which no rate farther off
can pull. A best rate at the edge of the grid is none: the grid must be extended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor, inf, log10, nan, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from prism_transformer.core.errors import InputError
from prism_transformer.study.multiplicity import block_residuals
from prism_transformer.study.statistics import CONFIDENCE, Array

Edge = Literal["", "low", "high"]


@dataclass(frozen=True)
class Noise:
    """What seeds and rates leave unexplained of the loss of one run."""

    sd: float
    freedom: int
    """degrees of freedom"""


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
    t = float(special.stdtrit(noise.freedom, (1 + CONFIDENCE) / 2))
    error = (t * noise.sd) ** 2 / n_seeds
    rise, start = 2 * bend @ means, slope @ means
    a = rise**2 - error * 4 * bend @ bend
    b = 2 * (rise * start - error * 2 * bend @ slope)
    c = start**2 - error * slope @ slope
    if a <= 0:
        return -inf, inf
    half = sqrt(max(float(b * b - 4 * a * c), 0.0))
    return float((-b - half) / (2 * a)), float((-b + half) / (2 * a))


def rounded(rate: float) -> float:
    """Two significant digits."""
    return round(rate, 1 - floor(log10(rate)))


def extended(rates: Sequence[float], edge: Edge) -> list[float]:
    """The grid with one rate more, as far from the edge as its last two are from each other."""
    if edge == "low":
        return [rounded(rates[0] ** 2 / rates[1]), *rates]
    return [*rates, rounded(rates[-1] ** 2 / rates[-2])] if edge else list(rates)
