"""Statistics of one difference: intervals, exact tests, power, equivalence.

A difference is an arm minus its baseline, or any contrast of arms. NaN stands for what too few
numbers cannot give, such as the spread of one; input that is not finite is refused.
``multiplicity.py`` has what several arms and comparisons need, ``looks.py`` what looking at results
early needs.

``scipy.stats`` is not used: it takes a second or more to import, its permutation test is 2000 times
slower than ``sign_flip`` on ten thousand items, its power is simulated, and it has neither Holm's
method nor equivalence tests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, isfinite, isnan, nan, sqrt

import numpy as np
import numpy.typing as npt
from scipy import special
from scipy.optimize import brentq

from prism_transformer.core.errors import InputError

Array = npt.NDArray[np.float64]

ALPHA = 0.05  # a p below this decides
POWER, CONFIDENCE = 0.8, 0.95  # unless another is given

MOST_PAIRS = 10_000  # seeds_needed looks no further
EXACT_PAIRS = 20  # 2^20 sign flips are summed one by one; of more pairs they are drawn
DRAWS = 9_999

# Sums that differ by less than this share of their terms are equal but for rounding.
TIE = 1e-12
LARGEST = 1e100  # squares of much larger numbers overflow
LARGEST_SHIFT = 1e3  # in standard errors: power is 1 long before


def checked(values: npt.ArrayLike, dimensions: int = 1) -> Array:
    """Numbers as an array; what is empty or not finite is refused."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != dimensions or array.size == 0:
        raise InputError(f"numbers of shape {array.shape}; {dimensions} dimensions, none empty")
    if not np.all(np.abs(array) <= LARGEST):
        raise InputError(f"not every number is finite and at most {LARGEST:g} in size")
    return array


def pair(first: npt.ArrayLike, second: npt.ArrayLike, dimensions: int) -> tuple[Array, Array]:
    """Two arrays of one shape."""
    one, other = checked(first, dimensions), checked(second, dimensions)
    if one.shape != other.shape:
        raise InputError(f"{one.shape} and {other.shape} numbers do not pair")
    return one, other


# -- over seeds ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """The runs of one arm."""

    n: int
    mean: float
    sd: float
    """of the sample (n - 1); NaN for one"""


def summarise(values: npt.ArrayLike) -> Summary:
    numbers = checked(values)
    return Summary(len(numbers), float(numbers.mean()), float(_spread(numbers)))


def _spread(numbers: Array) -> Array:
    """Sample s.d. along the first axis; NaN, and no warning, for one row."""
    if len(numbers) == 1:
        return np.full(numbers.shape[1:], nan)
    return numbers.std(axis=0, ddof=1)


def t_interval(numbers: Array, confidence: float = CONFIDENCE) -> Array:
    """Mean, lower and upper bound along the first axis; bounds of one row are NaN."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence={confidence}; it must lie between 0 and 1")
    n, mean = len(numbers), numbers.mean(axis=0)
    factor = special.stdtrit(n - 1, (1 + confidence) / 2) / sqrt(n) if n > 1 else nan
    half = factor * _spread(numbers)
    return np.array((mean, mean - half, mean + half))


def t_test(mean: float, error: float, freedom: float) -> tuple[float, float, float]:
    """Bounds of the 95 % interval of a mean with this standard error, and its two-sided p.

    The p is NaN where the error is 0.
    """
    half = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    p = 2 * float(special.stdtr(freedom, -abs(mean) / error)) if error > 0 else nan
    return mean - half, mean + half, p


@dataclass(frozen=True)
class Paired:
    """An arm minus its baseline, seed by seed."""

    differences: tuple[float, ...]
    n: int
    mean: float
    sd: float
    low: float
    """of the t interval of the mean"""
    high: float
    confidence: float
    detectable: float
    """the smallest true difference that a t test of so many pairs, of this s.d., finds in four of
    five studies at two-sided 5 %"""
    p: float
    """two-sided, of all sign flips"""
    p_floor: float
    """the smallest p that so many pairs can give"""

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def paired(differences: npt.ArrayLike, confidence: float = CONFIDENCE) -> Paired:
    """The mean of paired differences with its interval, tests and power; NaN for one pair."""
    numbers = checked(differences)
    n, sd = len(numbers), float(_spread(numbers))
    mean, low, high = t_interval(numbers, confidence).tolist()
    return Paired(
        differences=tuple(numbers.tolist()),
        n=n,
        mean=mean,
        sd=sd,
        low=low,
        high=high,
        confidence=confidence,
        detectable=detectable_effect(n, sd),
        p=sign_flip(numbers),
        p_floor=sign_flip_floor(n),
    )


def sign_flip(differences: npt.ArrayLike) -> float:
    """Two-sided p of the mean if every difference could as well have had the other sign.

    Exact, by all flips, up to 20 differences that are not 0; beyond, by drawn flips, the same on
    every call.
    """
    numbers = checked(differences)
    sizes = np.abs(numbers[numbers != 0])  # a flip of 0 changes nothing
    limit = abs(float(numbers.sum())) - TIE * float(sizes.sum())
    if len(sizes) > EXACT_PAIRS:
        extreme = sum(int(np.sum(np.abs(sums) >= limit)) for sums in _drawn_sums(sizes))
        return (extreme + 1) / (DRAWS + 1)
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate((sums + size, sums - size))
    return float(np.mean(np.abs(sums) >= limit))


def _drawn_sums(sizes: Array) -> list[Array]:
    """Sums under random signs. Equal sizes share a binomial draw: benchmarks have few sizes."""
    levels, counts = np.unique(sizes, return_counts=True)
    once, copies = levels[counts == 1], counts[counts > 1]
    draw, sums = np.random.default_rng(0), []
    rows = max(1, 10_000_000 // len(levels))  # bounds the memory
    for block in (min(rows, DRAWS - done) for done in range(0, DRAWS, rows)):
        bits = draw.integers(0, 2, (block, len(once)), dtype=np.int8).astype(float)
        shared = 2.0 * draw.binomial(copies, 0.5, (block, len(copies))) - copies
        sums.append(2 * (bits @ once) - once.sum() + shared @ levels[counts > 1])
    return sums


def sign_flip_floor(n: int) -> float:
    """The smallest p that ``sign_flip`` can give to ``n`` differences."""
    exact = 2.0 ** (1 - n)
    return exact if n <= EXACT_PAIRS else max(exact, 1 / (DRAWS + 1))


def sign_test(against: int, n: int) -> float:
    """Two-sided p that so many of ``n`` signs, and no fewer, are against; 1 for half or less.

    Exact if each sign could as well have been the other; none that is neither is counted in ``n``.
    """
    if 2 * against <= n:
        return 1.0
    return min(2 * float(special.bdtrc(against - 1, n, 0.5)), 1.0)


# -- power, equal arms ---------------------------------------------------------------------------


def _power(freedom: float, shift: float) -> float:
    """The chance that a two-sided t test finds an effect of ``shift`` standard errors."""
    critical = special.stdtrit(freedom, 1 - ALPHA / 2)
    shift = min(shift, LARGEST_SHIFT)
    # nctdtr gives NaN for some values of the far tail below 1e-15
    far_tail = np.nan_to_num(special.nctdtr(freedom, shift, -critical))
    return float(1 - special.nctdtr(freedom, shift, critical) + far_tail)


def power_of(effect: float, error: float, freedom: float) -> float:
    """The chance that a t test with this standard error shows ``effect`` at two-sided 5 %.

    NaN where the error is not known.
    """
    return _power(freedom, abs(effect) / error) if error > 0 else nan


def margin_power(margin: float, error: float, freedom: float, sides: int = 2) -> float:
    """The chance to show that equal arms are within a margin: on both sides, or on one of them.

    Each side is a one-sided t test at 5 %. NaN where the error is not known.
    """
    if not error > 0:
        return nan
    shift = min(margin / error, LARGEST_SHIFT)
    critical = special.stdtrit(freedom, 1 - ALPHA)
    # The mean over what the error of such a sample may come out as, at even steps of its chance.
    chance = (np.arange(1000) + 0.5) / 1000
    spread = np.sqrt(2 * special.gammaincinv(freedom / 2, chance) / freedom)
    shown = 1 - sides * special.ndtr(critical * spread - shift)
    return float(np.maximum(shown, 0.0).mean())


@cache
def detectable_shift(freedom: int) -> float:
    """The effect, in standard errors, that a t test of these degrees of freedom finds with 80 %."""
    return brentq(lambda shift: _power(freedom, shift) - POWER, 0, LARGEST_SHIFT, xtol=1e-10)


def detectable_effect(n: int, sd: float) -> float:
    """The smallest mean difference that ``n`` pairs find four times of five; NaN for one pair.

    Exact for a two-sided t test (noncentral t), as if ``sd`` were the true one.
    """
    return detectable_shift(n - 1) * sd / sqrt(n) if n > 1 else nan


def seeds_needed(effect: float, sd: float, power: float = POWER) -> int | None:
    """How many pairs a two-sided t test needs to find ``effect`` with this power.

    The effect is to be a stated one: asked of the effect that was seen, the answer is the p value
    in other words. None when 10,000 would not do, when there is no effect, or no known ``sd``.
    """
    if not ALPHA < power < 1:
        raise InputError(f"power={power}; it must lie between {ALPHA} and 1")
    if sd < 0:
        raise InputError(f"sd={sd}; a standard deviation is not negative")
    if not isfinite(effect) or effect == 0 or isnan(sd):
        return None
    size = abs(effect) / sd if sd > 0 else inf
    counts = range(2, MOST_PAIRS + 1)
    index = bisect_left(counts, power, key=lambda n: _power(n - 1, size * sqrt(n)))
    return counts[index] if index < len(counts) else None


@dataclass(frozen=True)
class Equivalence:
    """Whether a mean difference is smaller than a margin: the claim that two arms are equal."""

    n: int
    mean: float
    margin: float
    p: float
    """the larger of two one-sided t tests; NaN for one pair"""
    equal: bool
    """p below 5 %: the 90 % interval lies within the margin; False also when nobody can know"""


def equivalence(differences: npt.ArrayLike, margin: float, grain: float = 0.0) -> Equivalence:
    """Two one-sided t tests (TOST) against ``-margin`` and ``margin``.

    Numbers that come in steps of ``grain`` may all be equal and are still no surer than a step.
    """
    numbers = checked(differences)
    if not 0 < margin < inf:
        raise InputError(f"margin={margin}; it must be above 0")
    n, mean = len(numbers), float(numbers.mean())
    error = max(float(_spread(numbers)), grain / sqrt(12)) / sqrt(n) if n > 1 else 0.0
    room = margin - abs(mean)  # to the nearer margin, which has the larger p
    # Nobody knows the spread of one number, nor of equal ones.
    p = float(special.stdtr(n - 1, -room / error)) if error > 0 else nan
    return Equivalence(n, mean, margin, p, p < ALPHA)


# -- training: how far, how fast -----------------------------------------------------------------


@dataclass(frozen=True)
class GapCurve:
    """The mean difference while training, with a t band at each point taken by itself."""

    tokens: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def gap_curve(tokens: npt.ArrayLike, differences: npt.ArrayLike) -> GapCurve:
    """The gap at each of ``tokens``, from a row of differences for each seed."""
    seen, rows = checked(tokens), checked(differences, 2)
    if rows.shape[1] != len(seen):
        raise InputError(f"{len(seen)} places and {rows.shape[1]} differences do not pair")
    return GapCurve(*(tuple(band.tolist()) for band in (seen, *t_interval(rows))))


def tokens_to_reach(tokens: npt.ArrayLike, losses: npt.ArrayLike, target: float) -> float | None:
    """Tokens at which a loss curve is first at or below ``target``; None when it never is.

    Straight lines join the validations. A curve that rises again later has still reached it.
    """
    seen, curve = pair(tokens, losses, 1)
    if np.any(np.diff(seen) <= 0):
        raise InputError("tokens must grow along a loss curve")
    reached = np.flatnonzero(curve <= target)
    if not len(reached):
        return None
    if (at := reached[0]) == 0:
        return float(seen[0])
    share = (curve[at - 1] - target) / (curve[at - 1] - curve[at])
    return float(seen[at - 1] + share * (seen[at] - seen[at - 1]))


@dataclass(frozen=True)
class Ratio:
    """How many times as fast, pair by pair."""

    ratios: tuple[float, ...]
    median: float
    least: float
    most: float
    mean: float
    """geometric: as far from twice as fast as from half"""
    low: float
    """of the t interval of the geometric mean"""
    high: float


def ratio(first: npt.ArrayLike, second: npt.ArrayLike) -> Ratio:
    """The first over the second, which were measured in pairs: both above 0."""
    one, other = pair(first, second, 1)
    if min(one.min(), other.min()) < 1 / LARGEST:
        raise InputError("rates must be above 0")
    ratios = one / other
    with np.errstate(over="ignore"):  # the interval of two wild pairs may have no end
        interval = np.exp(t_interval(np.log(ratios)))
    spread = (np.median(ratios), ratios.min(), ratios.max())
    return Ratio(tuple(ratios.tolist()), *map(float, (*spread, *interval)))


def pareto(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Indices of the (loss, tokens/s) that none beats in one without losing in the other."""
    loss, rate = checked(points, 2).T if points else np.empty((2, 0))
    no_worse = (loss[:, None] <= loss) & (rate[:, None] >= rate)
    better = (loss[:, None] < loss) | (rate[:, None] > rate)
    return tuple(np.flatnonzero(~np.any(no_worse & better, axis=0)).tolist())
