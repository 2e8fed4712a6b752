"""Several arms, several comparisons: one error for all of them, and p values adjusted for all.

Seeds are the blocks of a randomised block design: each arm is trained once in each. What seeds and
arms leave unexplained of the losses estimates one error for all contrasts. It has more degrees of
freedom than the pairs of any one contrast, but assumes that all arms are equally noisy. Tests by
sign flips assume no such thing, but with few seeds their p cannot be small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
import numpy.typing as npt

from prism_transformer.core.errors import InputError
from prism_transformer.study.statistics import (
    DRAWS,
    EXACT_PAIRS,
    TIE,
    Array,
    detectable_shift,
    t_test,
)

ROWS = 1 << 14  # flips at a time, which bounds the memory


# -- the error of all arms together ----------------------------------------------------------------


@dataclass(frozen=True)
class Pooled:
    """A contrast by the error that all arms and seeds of a point share."""

    mean: float
    """by least squares; without missing runs the mean of the pairs"""
    error: float
    """standard error of the mean"""
    low: float
    """of the 95 % t interval"""
    high: float
    sd: float
    """of a run, after its seed and its arm are accounted for"""
    difference_sd: float
    """of the contrast in one seed"""
    freedom: int
    """degrees of freedom"""
    detectable: float
    """the true contrast that is found four times of five at two-sided 5 %"""
    p: float
    """two-sided t test"""
    adjusted_p: float = nan
    """the same after Holm, over all comparisons of the study"""


@dataclass(frozen=True)
class Blocks:
    """Least squares of losses on arms and seeds, without interaction."""

    effects: Array
    """of each arm, up to a constant"""
    spread: Array
    """covariance of the effects for an error of 1"""
    present: npt.NDArray[np.bool_]
    """arms that have a run at all"""
    sd: float
    freedom: int

    def contrast(self, weights: npt.ArrayLike) -> Pooled | None:
        """A contrast of the arms; None where one of them has no run."""
        w = np.asarray(weights, dtype=np.float64)
        if np.any((w != 0) & ~self.present):
            return None
        mean, error = float(w @ self.effects), self.sd * sqrt(max(float(w @ self.spread @ w), 0.0))
        low, high, p = t_test(mean, error, self.freedom)
        return Pooled(
            mean=mean,
            error=error,
            low=low,
            high=high,
            sd=self.sd,
            difference_sd=self.sd * float(np.linalg.norm(w)),
            freedom=self.freedom,
            detectable=detectable_shift(self.freedom) * error,
            p=p,
        )


def fit_blocks(losses: npt.ArrayLike) -> Blocks | None:
    """The blocked analysis of a row for each seed and a column for each arm, NaN where none is.

    None where nothing is left to estimate an error from.
    """
    wide = np.asarray(losses, dtype=np.float64)
    if wide.ndim != 2 or np.isinf(wide).any():
        raise InputError(f"losses of shape {wide.shape}: give finite ones, seeds by arms")
    seeds, arms = np.nonzero(~np.isnan(wide))
    if not len(seeds):
        return None
    # The first seed has no column: arms and seeds would add up to the same.
    design = np.hstack([np.eye(wide.shape[1])[arms], np.eye(wide.shape[0])[seeds][:, 1:]])
    freedom = len(seeds) - int(np.linalg.matrix_rank(design))
    if freedom < 1:
        return None
    values = wide[seeds, arms]
    middle = values.mean()  # losses near 3 and effects near 0.01: keep the digits
    inverse = np.linalg.pinv(design.T @ design)
    found = inverse @ design.T @ (values - middle)
    sd = float(np.linalg.norm(values - middle - design @ found)) / sqrt(freedom)
    own = slice(wide.shape[1])
    present = np.isin(np.arange(wide.shape[1]), arms)
    return Blocks(found[own], inverse[own, own].astype(np.float64), present, sd, freedom)


def block_residuals(losses: Array) -> Array:
    """What the means of rows and columns leave unexplained of a table without gaps."""
    return losses - losses.mean(0) - losses.mean(1, keepdims=True) + losses.mean()


# -- p values of several comparisons ---------------------------------------------------------------


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


def max_t(differences: npt.ArrayLike) -> tuple[float, ...]:
    """Sign-flip p values of several contrasts, adjusted by step-down max-T.

    A row for each seed, a column for each contrast, NaN where a seed has none. A flip turns all
    contrasts of a seed together, so what they share is kept: where Holm multiplies the least
    possible p by their number, this leaves it at 2 / 2^n. Exact up to 20 seeds, drawn beyond, as
    ``sign_flip`` is. NaN for a contrast without a seed.
    """
    wide = np.asarray(differences, dtype=np.float64)
    if wide.ndim != 2 or np.isinf(wide).any():
        raise InputError(f"differences of shape {wide.shape}: give finite ones, seeds by contrasts")
    known = ~np.isnan(wide).all(axis=0)
    adjusted = np.full(wide.shape[1], nan)
    if not known.any():
        return tuple(adjusted.tolist())
    numbers = np.nan_to_num(wide[:, known])
    numbers = numbers[numbers.any(axis=1)]  # a flip of 0 changes nothing
    size = np.linalg.norm(numbers, axis=0)
    # The sum over its root of squares, which no flip changes, grows with t and is never infinite.
    shares = numbers / np.where(size > 0, size, 1.0)
    observed = np.abs(shares.sum(axis=0))
    order = np.argsort(-observed, kind="stable")
    limits = observed[order] - TIE * np.abs(shares).sum(axis=0)[order]
    extreme, flips = np.zeros(len(order)), 0
    for signs in _joint_flips(len(numbers)):
        sums = np.abs(signs @ shares)[:, order]
        # The largest of this contrast and all that are less clear: what it has to beat.
        largest = np.maximum.accumulate(sums[:, ::-1], axis=1)[:, ::-1]
        extreme, flips = extreme + (largest >= limits).sum(axis=0), flips + len(signs)
    steps = np.maximum.accumulate(extreme / flips)
    found = np.empty(len(order))
    found[order] = steps
    adjusted[known] = found
    return tuple(adjusted.tolist())


def _joint_flips(n: int) -> Iterator[Array]:
    """Rows of signs: one of each pair of opposites, or drawn ones after that of no flip."""
    if n <= EXACT_PAIRS:
        places = np.arange(max(n - 1, 0))
        for first in range(0, 1 << len(places), ROWS):
            numbers = np.arange(first, min(first + ROWS, 1 << len(places)))
            bits = (numbers[:, None] >> places) & 1
            yield np.hstack([np.ones((len(numbers), min(n, 1))), 1.0 - 2.0 * bits])
        return
    draw = np.random.default_rng(0)
    yield np.ones((1, n))
    for done in range(0, DRAWS, ROWS):
        rows = min(ROWS, DRAWS - done)
        yield 2.0 * draw.integers(0, 2, (rows, n), dtype=np.int8).astype(np.float64) - 1.0
