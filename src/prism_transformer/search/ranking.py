"""How well numbers rank schedules: Kendall's tau, regret, halves of seeds, bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

RESAMPLES = 2000
CONFIDENCE = 0.95
MOST_SPLITS = 200


def kendall(one: Array, other: Array) -> float:
    """Kendall's tau-b of two rankings: 1 where alike, -1 where opposite; NaN of constants."""
    a, b = (np.sign(np.subtract.outer(each, each)) for each in (one, other))
    scale = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / scale) if scale > 0 else float("nan")


def regret(predicted: Array, truth: Array) -> float:
    """The loss of what was predicted best, less the least loss; the mean over ties."""
    best = np.isclose(predicted, predicted.min(), rtol=0, atol=1e-12)
    return float(truth[best].mean() - truth.min())


def halves(n_seeds: int) -> Iterator[tuple[Mask, Mask]]:
    """Every way to part seeds into two halves, as masks; a draw of them where there are many."""
    size = n_seeds // 2
    if size == 0:
        return
    every: Iterable[Sequence[int]] = combinations(range(n_seeds), size)
    if comb(n_seeds, size) > MOST_SPLITS:
        # Not the first ones: all of these have the first seeds in one half.
        draw = np.random.default_rng(0)
        every = (draw.permutation(n_seeds)[:size].tolist() for _ in range(MOST_SPLITS))
    for chosen in every:
        mask = np.zeros(n_seeds, dtype=bool)
        mask[list(chosen)] = True
        yield mask, ~mask


def split_mean(losses: Array, of: Callable[[Array, Array], float]) -> float:
    """A statistic of two halves of the seeds, each a mean by arm, over every way to part them.

    NaN with one seed. ``losses`` are (seeds, arms).
    """
    values = [of(losses[one].mean(0), losses[other].mean(0)) for one, other in halves(len(losses))]
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def interval(draw: Callable[[np.random.Generator], float], seed: int = 0) -> tuple[float, float]:
    """The middle 95 % of what a bootstrap draws; NaN if nothing it draws is finite."""
    random = np.random.default_rng(seed)
    values = np.array([draw(random) for _ in range(RESAMPLES)])
    values = values[np.isfinite(values)]
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def resampled(random: np.random.Generator, n: int) -> Places:
    """As many as there are, drawn with replacement."""
    return random.integers(0, n, n)
