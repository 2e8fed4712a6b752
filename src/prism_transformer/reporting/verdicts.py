"""What a test says of a claim, and what several tests say together.

A claim holds where all of its tests show it: each of its scales, tasks, pairs of arms. That needs
no adjustment, since one that fails is enough to fail. It is contradicted where any of them shows
the opposite, and of many tests some do by chance: so those p values are adjusted, by Holm's method,
for all tests of the claim at all scales. Neither one nor the other is noise, if a study of this
size would have shown the claim; if it would rather not have, the claim could not be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isnan, nan, sqrt

import numpy as np
import numpy.typing as npt
from scipy import special

from prism_transformer.core.table import signed
from prism_transformer.study.multiplicity import holm
from prism_transformer.study.statistics import (
    ALPHA,
    CONFIDENCE,
    Paired,
    equivalence,
    margin_power,
    paired,
    power_of,
)

SEEN = 0.5  # a study that would more likely miss what is so than show it cannot see it

Numbers = npt.ArrayLike


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


# -- tests of paired numbers -----------------------------------------------------------------------


def below(values: Numbers, who: str, unit: str, effect: float, places: int = 4) -> Check:
    """Whether a mean is below 0: its 95 % t interval is; above it speaks against it.

    The power is that to see ``effect``, which is stated beforehand and never the one that was seen.
    """
    test = paired(values)
    power, what = power_of(effect, test.n, test.sd), f"for {abs(effect):.{places}f}"
    words = told(test, unit, places, _power(power, what))
    return Check(f"{who}: {words}", test.high < 0, beyond(values, 0.0), power)


def above(values: Numbers, who: str, unit: str, effect: float, places: int = 4) -> Check:
    """Whether a mean is above 0."""
    test = paired(values)
    power, what = power_of(effect, test.n, test.sd), f"for {abs(effect):.{places}f}"
    words = told(test, unit, places, _power(power, what))
    return Check(f"{who}: {words}", test.low > 0, beyond(-np.asarray(values), 0.0), power)


def equal(
    values: Numbers, margin: float, who: str, unit: str, places: int = 4, grain: float = 0.0
) -> Check:
    """Whether a mean is 0 within a margin: two one-sided t tests; beyond it speaks against it."""
    test, found = paired(values), equivalence(values, margin, grain)
    power = margin_power(margin, test.n, max(test.sd, grain / sqrt(12)))
    words = told(test, unit, places, _power(power, f"for equal ones within {margin:g}"))
    against = min(beyond(side, margin) for side in (np.asarray(values), -np.asarray(values)))
    return Check(f"{who}: {words}", found.equal, against, power)


def not_below(values: Numbers, margin: float, who: str, unit: str, places: int = 2) -> Check:
    """Whether a mean is no less than 0 by a margin (non-inferiority): a one-sided t test at 5 %."""
    test = paired(values)
    moved = np.asarray(values, dtype=float) + margin
    supports = beyond(moved, 0.0) / 2 < ALPHA  # no number is below it, of one pair
    power = margin_power(margin, test.n, test.sd, sides=1)
    words = told(test, unit, places, _power(power, f"for equal ones within {margin:g}"))
    return Check(f"{who}: {words}", supports, beyond(-moved, 0.0), power)


def beyond(values: Numbers, limit: float) -> float:
    """Two-sided p of a t test, where the mean is above the limit; 1 where it is not."""
    test = paired(values)
    if test.n < 2:
        return nan
    away, error = test.mean - limit, test.sd / sqrt(test.n)
    if away <= 0 or error == 0:
        return float(away <= 0)
    return 2 * float(special.stdtr(test.n - 1, -away / error))


def told(test: Paired, unit: str, places: int = 4, able: str = "") -> str:
    """A paired test in words."""
    return f"{signed(test.mean, places)} {unit} ({span(test.low, test.high, test.n, places)}{able})"


def span(low: float, high: float, pairs: int, places: int) -> str:
    """An interval and what it is of."""
    if pairs == 1:
        return "1 pair: no interval"
    return f"{100 * CONFIDENCE:g} % {signed(low, places)} to {signed(high, places)}, {pairs} pairs"


def _power(power: float, what: str) -> str:
    return "" if isnan(power) else f"; power {power:.2f} {what}"
