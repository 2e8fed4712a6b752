"""What a test says of a claim, and what several tests say together.

A claim holds where all of its tests show it: each of its scales, tasks, pairs of arms. That needs
no adjustment, since one that fails is enough to fail. It is contradicted where any of them shows
the opposite, and of many tests some do by chance: so those p values are adjusted, by Holm's method,
for all tests of the claim at all scales. Neither one nor the other is noise, if a study of this
size would have shown the claim; if it would rather not have, the claim could not be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isnan, nan, sqrt

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special

from prism_transformer.core.table import signed
from prism_transformer.study.contrasts import Weights, by_seed
from prism_transformer.study.multiplicity import fit_blocks, holm
from prism_transformer.study.statistics import (
    ALPHA,
    CONFIDENCE,
    TIE,
    margin_power,
    power_of,
    summarise,
    t_test,
)

SEEN = 0.5  # a study that would more likely miss what is so than show it cannot see it


class Verdict(StrEnum):
    """What the measurements say of a claim."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    NOISE = "within noise"
    UNSEEN = "could not be seen"
    UNMEASURED = "not measured"


@dataclass(frozen=True)
class Check:
    """One test of a claim."""

    words: str
    supports: bool
    against: float = nan
    """two-sided p of the opposite, which is adjusted together with others; NaN: never the case"""
    power: float = nan
    """chance that such a study supports the claim if it is so"""
    arms: tuple[str, ...] = ()
    """whose runs it is of; where none are named, the main arm's and the baseline's"""


@dataclass(frozen=True)
class Judged:
    """What the numbers of one study say of a claim."""

    checks: tuple[Check, ...]
    whole: bool = True
    """whether the view has all that the claim speaks of"""

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.checks)

    @property
    def words(self) -> str:
        return "; ".join(check.words for check in self.checks)


def verdict_of(checks: Sequence[Check]) -> Verdict:
    """Of tests that must all show a claim."""
    if not checks:
        return Verdict.UNMEASURED
    if any(p < ALPHA for p in holm([check.against for check in checks])):
        return Verdict.CONTRADICTED
    missing = [check.power for check in checks if not check.supports]
    if not missing:
        return Verdict.SUPPORTED
    return Verdict.NOISE if all(power >= SEEN for power in missing) else Verdict.UNSEEN


def together(checks: Sequence[Check], wanted: int = 0) -> Judged | None:
    """Several tests as one; whole where there are as many as are wanted."""
    return Judged(tuple(checks), whole=len(checks) >= wanted) if checks else None


def fact(words: str, holds: bool) -> Judged:
    """The judgement of a fact that no noise can change, such as a count of parameters."""
    return Judged((Check(words, holds, against=float(holds), power=1.0),))


# -- how sure a mean is ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A mean of paired differences, and how sure it is."""

    mean: float
    error: float
    """standard error; NaN where nobody knows it, as of one pair, or of pairs that are all equal"""
    freedom: float
    """degrees of freedom of the error"""
    pairs: int
    pooled: Estimate | None = None
    """the same by the error that all arms of the study share, where it has more than two"""
    noise: float = nan
    """standard error of so many pairs by the spread of all arms; NaN where no others are known"""

    @property
    def each(self) -> tuple[Estimate, ...]:
        """By the pairs and by the pooled error: what is to be shown, both must show."""
        return (self, self.pooled) if self.pooled else (self,)

    @property
    def expected(self) -> float:
        """The standard error that power is by: two pairs that happen to agree are not sure."""
        return self.error if isnan(self.noise) or isnan(self.error) else self.noise

    @property
    def low(self) -> float:
        """Of the 95 % interval."""
        return t_test(self.mean, self.error, self.freedom)[0]

    @property
    def high(self) -> float:
        return t_test(self.mean, self.error, self.freedom)[1]

    def plus(self, shift: float) -> Estimate:
        pooled = self.pooled and self.pooled.plus(shift)
        return replace(self, mean=self.mean + shift, pooled=pooled)

    @property
    def negative(self) -> Estimate:
        pooled = self.pooled and self.pooled.negative
        return replace(self, mean=-self.mean, pooled=pooled)


Numbers = npt.ArrayLike | Estimate


def estimate(values: Numbers, grain: float = 0.0) -> Estimate:
    """The mean of paired differences by their own spread.

    Numbers that come in steps of ``grain`` may all be equal and are still no surer than a step.
    """
    if isinstance(values, Estimate):
        return values
    found = summarise(values)
    if found.n < 2:
        return Estimate(found.mean, nan, 0, found.n)
    error = max(found.sd, grain / sqrt(12)) / sqrt(found.n)
    return Estimate(found.mean, _known(error, values), found.n - 1, found.n)


def contrasted(losses: pd.DataFrame, weights: Weights) -> Estimate | None:
    """A weighted difference of arms, from a row of losses for each seed; None without a pair."""
    values = by_seed(weights, losses)
    if values.empty:
        return None
    alone, blocks = estimate(values), fit_blocks(losses)
    pooled = blocks and blocks.contrast([weights.get(arm, 0.0) for arm in losses.columns])
    if not pooled or len(values) < 2 or pooled.freedom == alone.freedom:
        return alone
    shared = Estimate(pooled.mean, _known(pooled.error, losses), pooled.freedom, len(values))
    return replace(alone, pooled=shared, noise=pooled.difference_sd / sqrt(len(values)))


def _known(error: float, values: npt.ArrayLike) -> float:
    """An error, unless it is nothing but rounding: equal numbers say nothing of their spread."""
    return error if error > TIE * float(np.nanmax(np.abs(values))) else nan


# -- tests of means --------------------------------------------------------------------------------


def below(values: Numbers, who: str, unit: str, effect: float, places: int = 4) -> Check:
    """Whether a mean is below 0: its 95 % t interval is; above it speaks against it.

    The power is that to see ``effect``, which is stated beforehand and never the one that was seen.
    """
    found = estimate(values)
    supports = all(each.high < 0 for each in found.each)
    power = power_of(effect, found.expected, found.freedom)
    words = told(found, unit, places, _power(power, f"for {abs(effect):.{places}f}"))
    return Check(f"{who}: {words}", supports, beyond(found, 0.0), power)


def above(values: Numbers, who: str, unit: str, effect: float, places: int = 4) -> Check:
    """Whether a mean is above 0."""
    found = estimate(values)
    turned = below(found.negative, who, unit, effect, places)
    words = told(found, unit, places, _power(turned.power, f"for {abs(effect):.{places}f}"))
    return replace(turned, words=f"{who}: {words}")


def equal(
    values: Numbers, margin: float, who: str, unit: str, places: int = 4, grain: float = 0.0
) -> Check:
    """Whether a mean is 0 within a margin: two one-sided t tests; beyond it speaks against it."""
    found = estimate(values, grain)
    sides = (found.plus(margin), found.negative.plus(margin))
    supports = all(beyond(side, 0.0) / 2 < ALPHA for side in sides)
    power = margin_power(margin, found.expected, found.freedom)
    words = told(found, unit, places, _power(power, f"for equal ones within {margin:g}"))
    against = min(beyond(side, margin) for side in (found, found.negative))
    return Check(f"{who}: {words}", supports, against, power)


def not_below(
    values: Numbers, margin: float, who: str, unit: str, places: int = 2, grain: float = 0.0
) -> Check:
    """Whether a mean is no less than 0 by a margin (non-inferiority): a one-sided t test at 5 %."""
    found = estimate(values, grain)
    moved = found.plus(margin)
    supports = beyond(moved, 0.0) / 2 < ALPHA  # no number is below it, where the error is unknown
    power = margin_power(margin, found.expected, found.freedom, sides=1)
    words = told(found, unit, places, _power(power, f"for equal ones within {margin:g}"))
    return Check(f"{who}: {words}", supports, beyond(moved.negative, 0.0), power)


def beyond(values: Numbers, limit: float) -> float:
    """Two-sided p of a t test, where the mean is above the limit; 1 where it is not.

    The larger p of the pairs and of the pooled error; NaN where an error is not known.
    """
    return float(np.max([_beyond(each, limit) for each in estimate(values).each]))


def _beyond(found: Estimate, limit: float) -> float:
    away = found.mean - limit
    if isnan(found.error):
        return nan
    return 2 * float(special.stdtr(found.freedom, -away / found.error)) if away > 0 else 1.0


def told(found: Estimate, unit: str, places: int = 4, able: str = "") -> str:
    """An estimate in words."""
    interval = span(found.low, found.high, found.pairs, places)
    if found.pooled:
        low, high = (signed(end, places) for end in (found.pooled.low, found.pooled.high))
        interval += f"; by the pooled error {low} to {high}"
    return f"{signed(found.mean, places)} {unit} ({interval}{able})"


def span(low: float, high: float, pairs: int, places: int) -> str:
    """An interval and what it is of."""
    if isnan(low):
        return "1 pair: no interval" if pairs == 1 else f"{pairs} equal pairs: no interval"
    return f"{100 * CONFIDENCE:g} % {signed(low, places)} to {signed(high, places)}, {pairs} pairs"


def _power(power: float, what: str) -> str:
    return "" if isnan(power) else f"; power {power:.2f} {what}"
