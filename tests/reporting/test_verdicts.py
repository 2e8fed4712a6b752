"""Tests of claims held against scipy, and their power against draws."""

from __future__ import annotations

from math import nan, sqrt

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from prism_transformer.reporting.verdicts import (
    Check,
    Verdict,
    above,
    below,
    beyond,
    contrasted,
    equal,
    estimate,
    fact,
    not_below,
    together,
    verdict_of,
)

VALUES = np.array([-0.3, -0.1, -0.4, 0.1, -0.2])


def test_beyond_is_a_t_test() -> None:
    for limit in (-0.5, -0.2, 0.0):
        one_sided = stats.ttest_1samp(VALUES, limit, alternative="greater").pvalue
        expected = 2 * one_sided if VALUES.mean() > limit else 1.0
        assert beyond(VALUES, limit) == pytest.approx(expected)
    assert np.isnan(beyond([0.1], 0.0))


def test_of_equal_numbers_nobody_knows_the_spread() -> None:
    """No p of 0 from two numbers that agree, to the last digit or but for rounding."""
    for same in ([-1, -1], [0, 0], [0.1 + 0.2, 0.3, 0.3]):
        assert np.isnan(beyond(same, -2.0))
        for check in (
            below(same, "", "", 1.0),
            above(same, "", "", 1.0),
            not_below(same, 9, "", ""),
        ):
            assert not check.supports
            assert np.isnan(check.against)
            assert np.isnan(check.power)
            assert f"{len(same)} equal pairs: no interval" in check.words


@pytest.mark.parametrize(("n", "verdict"), [(2, "could not be seen"), (6, "contradicted")])
def test_equal_numbers_on_a_grid_are_no_surer_than_a_step_of_it(n: int, verdict: str) -> None:
    found = equal([-2] * n, 1, "", "layers", grain=1.0)
    t = (2 - 1) / (1 / sqrt(12) / sqrt(n))  # as if drawn evenly from a step
    assert found.against == pytest.approx(2 * stats.t.sf(t, n - 1))
    assert found.against > 0
    assert verdict_of([found]) == verdict
    spread = np.array([-2, -2, -1, -3])  # of its own, which is more
    assert equal(spread, 1, "", "", grain=1.0) == equal(spread, 1, "", "")


def test_a_contrast_is_asked_of_the_pairs_and_of_all_arms() -> None:
    """Quiet pairs among noisy arms show nothing by themselves, nor noisy ones among quiet arms."""
    draw = np.random.default_rng(3)
    base = draw.normal(0, 1, (4, 1)) + draw.normal(0, 0.05, (4, 6))
    losses = pd.DataFrame(base, columns=list("abcdef"))
    losses["b"] = losses["a"] - 0.03 + np.array([0.001, -0.001, 0.002, -0.002])
    found = contrasted(losses, {"b": 1.0, "a": -1.0})
    assert found is not None
    pairs = losses["b"] - losses["a"]
    assert (found.mean, found.error) == pytest.approx((pairs.mean(), stats.sem(pairs)))
    wide = losses.to_numpy()
    rest = wide - wide.mean(0) - wide.mean(1, keepdims=True) + wide.mean()
    error = sqrt((rest**2).sum() / 15) * sqrt(2 / 4)
    half = stats.t.ppf(0.975, 15) * error
    assert found.pooled is not None
    assert (found.pooled.low, found.pooled.high) == pytest.approx((-0.03 - half, -0.03 + half))
    assert found.high < 0 < found.pooled.high
    check = below(found, "b", "", 0.05)
    assert not check.supports
    assert beyond(found.negative, 0.0) == pytest.approx(2 * stats.t.sf(0.03 / error, 15))
    shift, critical = 0.05 / error, stats.t.ppf(0.975, 3)  # the spread of all, the test of four
    power = stats.nct.sf(critical, 3, shift) + stats.nct.cdf(-critical, 3, shift)
    assert check.power == pytest.approx(power, abs=1e-6)
    assert below(pairs, "b", "", 0.05).supports

    quiet = pd.DataFrame(draw.normal(0, 0.001, (4, 6)), columns=list("abcdef"))
    quiet["b"] += np.array([-0.05, 0.03, -0.02, 0.01])
    only = contrasted(quiet, {"b": 1.0, "a": -1.0})
    assert only is not None
    assert not below(only, "", "", 0.05).supports


def test_of_two_arms_the_pooled_error_is_that_of_the_pairs() -> None:
    losses = pd.DataFrame({"a": [3.0, 3.1, 3.3], "b": [2.9, 3.05, 3.1]})
    found = contrasted(losses, {"b": 1.0, "a": -1.0})
    assert found is not None
    assert found == estimate(losses["b"] - losses["a"])
    assert contrasted(losses.iloc[:0], {"b": 1.0, "a": -1.0}) is None


def test_margins_are_one_sided_t_tests() -> None:
    for margin in (0.05, 0.2, 0.6):
        low = stats.ttest_1samp(VALUES, -margin, alternative="greater").pvalue
        high = stats.ttest_1samp(VALUES, margin, alternative="less").pvalue
        assert not_below(VALUES, margin, "", "").supports == (low < 0.05)
        assert equal(VALUES, margin, "", "").supports == (max(low, high) < 0.05)
    worse = not_below(VALUES - 1, 0.5, "", "")
    expected = 2 * stats.ttest_1samp(VALUES - 1, -0.5, alternative="less").pvalue
    for found in (worse, equal(VALUES - 1, 0.5, "", "")):
        assert found.against == pytest.approx(expected)
    assert not not_below([0.3], 1.0, "", "").supports  # nobody knows the spread of one


@pytest.mark.parametrize("n", [3, 8])
def test_power_is_how_often_such_studies_show_it(n: int) -> None:
    """Drawn studies with the spread that one study showed."""
    draw, sd, studies = np.random.default_rng(n), 0.01, 4000
    rows = draw.normal(0, sd, (studies, n))
    shape = np.linspace(-1, 1, n)
    seen = shape / shape.std(ddof=1) * sd  # a study of just this s.d.
    found = stats.ttest_1samp(rows - 0.015, 0, axis=1)
    shown = np.mean((found.pvalue < 0.05) & (found.statistic < 0))
    for check in (below(seen, "", "", 0.015), above(seen, "", "", 0.015)):
        assert check.power == pytest.approx(shown, abs=0.025)
    at_least = stats.ttest_1samp(rows, -0.015, axis=1, alternative="greater").pvalue < 0.05
    assert not_below(seen, 0.015, "", "").power == pytest.approx(at_least.mean(), abs=0.025)
    at_most = stats.ttest_1samp(rows, 0.015, axis=1, alternative="less").pvalue < 0.05
    both = float((at_least & at_most).mean())
    assert equal(seen, 0.015, "", "").power == pytest.approx(both, abs=0.025)


def test_all_must_show_a_claim_and_one_may_contradict_it() -> None:
    good, open_ = Check("", True, 1.0, 0.9), Check("", False, 0.6, 0.9)
    assert verdict_of([]) is Verdict.UNMEASURED
    assert verdict_of([good, good]) is Verdict.SUPPORTED
    assert verdict_of([good, open_]) is Verdict.NOISE
    for power in (0.3, nan):
        assert verdict_of([open_, Check("", False, 0.6, power)]) is Verdict.UNSEEN
    bad = Check("", False, 0.02, 0.9)
    assert verdict_of([good, bad]) is Verdict.CONTRADICTED  # 2 x 0.02 after Holm
    assert verdict_of([good, good, bad]) is Verdict.NOISE  # 3 x 0.02
    assert together([]) is None
    assert fact("", True).verdict is Verdict.SUPPORTED
    assert fact("", False).verdict is Verdict.CONTRADICTED


def test_of_scales_without_a_difference_one_in_twenty_claims_is_contradicted() -> None:
    """Three scales with four tasks each, all of them level: what a single interval would not do."""
    draw, alone, adjusted = np.random.default_rng(0), 0, 0
    for _ in range(200):
        checks = [below(draw.normal(0, 1, 8), "", "", 1.0) for _ in range(12)]
        alone += any(check.against < 0.05 for check in checks)
        adjusted += verdict_of(checks) is Verdict.CONTRADICTED
    assert alone / 200 > 0.2
    assert adjusted / 200 < 0.06
