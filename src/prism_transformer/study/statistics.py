"""What a study's numbers can bear: intervals, exact tests, and how small an effect shows.

A difference is an arm minus its baseline. NaN stands for what too few numbers cannot say, such as
the spread of one; input that is not finite is refused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, isfinite, isnan, nan, sqrt

import numpy as np
import numpy.typing as npt
from scipy import special  # scipy.stats takes a second to import
from scipy.optimize import brentq

from prism_transformer.errors import InputError

Array = npt.NDArray[np.float64]

ALPHA = 0.05
POWER = 0.8
CONFIDENCE = 0.95

MOST_PAIRS = 10_000  # seeds_needed looks no further
EXACT_PAIRS = 20  # 2^20 sign flips are summed one by one; of more pairs they are drawn
DRAWS = 9_999

# Sums that differ by less than this share of their terms are equal but for rounding.
TIE = 1e-12
LARGEST = 1e100  # squares of much larger numbers overflow
LARGEST_SHIFT = 1e3  # in standard errors: power is 1 long before


def _checked(values: npt.ArrayLike, dimensions: int = 1) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != dimensions or array.size == 0:
        raise InputError(f"numbers of shape {array.shape}; {dimensions} dimensions, none empty")
    if not np.all(np.abs(array) <= LARGEST):
        raise InputError(f"not every number is finite and at most {LARGEST:g} in size")
    return array


def _check_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise InputError(f"{name}={value}; it must lie between 0 and 1")


def _pair(first: npt.ArrayLike, second: npt.ArrayLike, dimensions: int) -> tuple[Array, Array]:
    one, other = _checked(first, dimensions), _checked(second, dimensions)
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
    """Number, mean and sample standard deviation."""
    numbers = _checked(values)
    return Summary(len(numbers), float(numbers.mean()), float(_spread(numbers)))


def _spread(numbers: Array) -> Array:
    """Sample s.d. along the first axis; NaN, and no warning, for one row."""
    if len(numbers) == 1:
        return np.full(numbers.shape[1:], nan)
    return numbers.std(axis=0, ddof=1)


def _half_width(numbers: Array, confidence: float) -> Array:
    """Half of the t interval of the mean along the first axis; NaN for one row."""
    _check_share("confidence", confidence)
    n = len(numbers)
    factor = special.stdtrit(n - 1, (1 + confidence) / 2) / sqrt(n) if n > 1 else nan
    return factor * _spread(numbers)


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
        """Whether the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


def paired(differences: npt.ArrayLike, confidence: float = CONFIDENCE) -> Paired:
    """All that paired differences say about their mean; with one pair that is little."""
    numbers = _checked(differences)
    n, mean, sd = len(numbers), float(numbers.mean()), float(_spread(numbers))
    half = float(_half_width(numbers, confidence))
    return Paired(
        differences=tuple(numbers.tolist()),
        n=n,
        mean=mean,
        sd=sd,
        low=mean - half,
        high=mean + half,
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
    numbers = _checked(differences)
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


# -- power, several arms, equal arms -------------------------------------------------------------


def _power(n: int, shift: float, alpha: float) -> float:
    """The chance that a paired t test finds an effect of ``shift`` standard errors."""
    critical = special.stdtrit(n - 1, 1 - alpha / 2)
    shift = min(shift, LARGEST_SHIFT)
    # scipy gives NaN for some values of the far tail below 1e-15
    far_tail = np.nan_to_num(special.nctdtr(n - 1, shift, -critical))
    return float(1 - special.nctdtr(n - 1, shift, critical) + far_tail)


@cache
def _detectable_shift(n: int, power: float, alpha: float) -> float:
    return brentq(lambda shift: _power(n, shift, alpha) - power, 0, LARGEST_SHIFT, xtol=1e-10)


def _check_power(sd: float, power: float, alpha: float) -> None:
    _check_share("alpha", alpha)
    if not alpha < power < 1:
        raise InputError(f"power={power}; it must lie between alpha={alpha} and 1")
    if sd < 0:
        raise InputError(f"sd={sd}; a standard deviation is not negative")


def detectable_effect(n: int, sd: float, power: float = POWER, alpha: float = ALPHA) -> float:
    """The smallest mean difference that ``n`` pairs show with this power; NaN for one pair.

    Exact for a two-sided t test (noncentral t), as if ``sd`` were the true one.
    """
    _check_power(sd, power, alpha)
    return _detectable_shift(n, power, alpha) * sd / sqrt(n) if n > 1 else nan


def seeds_needed(
    effect: float, sd: float, power: float = POWER, alpha: float = ALPHA
) -> int | None:
    """How many pairs a two-sided t test needs to find ``effect`` with this power.

    None when 10,000 would not do, when there is no effect, or no known ``sd``.
    """
    _check_power(sd, power, alpha)
    if not isfinite(effect) or effect == 0 or isnan(sd):
        return None
    size = abs(effect) / sd if sd > 0 else inf
    counts = range(2, MOST_PAIRS + 1)
    index = bisect_left(counts, power, key=lambda n: _power(n, size * sqrt(n), alpha))
    return counts[index] if index < len(counts) else None


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Each p adjusted for there being several, in the order given; NaN stays and counts for none.

    Below 0.05 the chance of any false alarm is 5 %, whatever the p values have in common.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if np.any((p < 0) | (p > 1)):
        raise InputError("a p value lies between 0 and 1")
    order = np.argsort(p)[: int(np.sum(~np.isnan(p)))]  # NaN sorts last
    adjusted = np.full(p.shape, nan)
    steps = p[order] * (len(order) - np.arange(len(order)))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return tuple(adjusted.tolist())


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
    numbers = _checked(differences)
    if not 0 < margin < inf:
        raise InputError(f"margin={margin}; it must be above 0")
    n, mean = len(numbers), float(numbers.mean())
    error = max(float(_spread(numbers)), grain / sqrt(12)) / sqrt(n) if n > 1 else 0.0
    room = margin - abs(mean)  # to the nearer margin, which has the larger p
    p = nan  # nobody knows the spread of one number, nor of equal ones
    if error > 0:
        p = float(special.stdtr(n - 1, -room / error))
    return Equivalence(n, mean, margin, p, p < ALPHA)


# -- items of a benchmark ------------------------------------------------------------------------


def mcnemar(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Exact two-sided p that items which one run alone gets right fall to either run alike."""
    one, other = _pair(first, second, 1)
    if not _right_or_wrong(one, other):
        raise InputError("each item is 0 or 1")
    split = int(np.sum(one > other)), int(np.sum(other > one))
    return min(2 * float(special.bdtr(min(split), sum(split), 0.5)), 1.0)


def _right_or_wrong(one: Array, other: Array) -> bool:
    return bool(np.all(np.isin((one, other), (0, 1))))


@dataclass(frozen=True)
class ItemTest:
    """Two arms on the same items of a benchmark.

    Items are the unit here, seeds are not: it says whether these trained models differ on items
    like these, not whether models of other seeds would.
    """

    n_items: int
    n_seeds: int
    mean: float
    """second arm minus first, in the unit of the items"""
    low: float
    high: float
    p: float
    """sign-flip over items; of one seed and items 0 or 1 this is McNemar's exact test"""


def item_test(
    first: npt.ArrayLike, second: npt.ArrayLike, confidence: float = CONFIDENCE
) -> ItemTest:
    """Compare two arms item by item; each has a row for a seed and a column for an item.

    Differences are averaged over seeds; the t interval and the test are then over items.
    """
    one, other = _pair(first, second, 2)
    differences = (other - one).mean(axis=0)
    mean, half = float(differences.mean()), float(_half_width(differences, confidence))
    n_seeds, n_items = one.shape
    exact = n_seeds == 1 and _right_or_wrong(one, other)
    p = mcnemar(one[0], other[0]) if exact else sign_flip(differences)
    return ItemTest(n_items, n_seeds, mean, mean - half, mean + half, p)


# -- training: how far, how fast -----------------------------------------------------------------


@dataclass(frozen=True)
class GapCurve:
    """The mean difference while training, with a t band at each point taken by itself."""

    tokens: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def gap_curve(
    tokens: npt.ArrayLike, differences: npt.ArrayLike, confidence: float = CONFIDENCE
) -> GapCurve:
    """The gap at each of ``tokens``, from a row of differences for each seed."""
    seen, rows = _checked(tokens), _checked(differences, 2)
    if rows.shape[1] != len(seen):
        raise InputError(f"{len(seen)} places and {rows.shape[1]} differences do not pair")
    mean, half = rows.mean(axis=0), _half_width(rows, confidence)
    bands = (seen, mean, mean - half, mean + half)
    return GapCurve(*(tuple(band.tolist()) for band in bands))


def tokens_to_reach(tokens: npt.ArrayLike, losses: npt.ArrayLike, target: float) -> float | None:
    """Tokens at which a loss curve is first at or below ``target``; None when it never is.

    Straight lines join the validations. A curve that rises again later has still reached it.
    """
    seen, curve = _pair(tokens, losses, 1)
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


def ratio(first: npt.ArrayLike, second: npt.ArrayLike, confidence: float = CONFIDENCE) -> Ratio:
    """The first over the second, which were measured in pairs: both above 0."""
    one, other = _pair(first, second, 1)
    if min(one.min(), other.min()) < 1 / LARGEST:
        raise InputError("rates must be above 0")
    ratios = one / other
    logs = np.log(ratios)
    half = _half_width(logs, confidence)
    with np.errstate(over="ignore"):  # the interval of two wild pairs may have no end
        bounds = np.exp(logs.mean() + np.array((0.0, -half, half)))
    spread = (np.median(ratios), ratios.min(), ratios.max())
    return Ratio(tuple(ratios.tolist()), *map(float, (*spread, *bounds)))


def pareto(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Indices of the (loss, tokens/s) that none beats in one without losing in the other."""
    loss, rate = _checked(points, 2).T if points else np.empty((2, 0))
    no_worse = (loss[:, None] <= loss) & (rate[:, None] >= rate)
    better = (loss[:, None] < loss) | (rate[:, None] > rate)
    dominated = np.any(no_worse & better, axis=0)
    return tuple(np.flatnonzero(~dominated).tolist())
