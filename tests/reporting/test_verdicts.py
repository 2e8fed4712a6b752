"""Tests of claims held against scipy, and their power against draws."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest
from scipy import stats

from prism_transformer.reporting.verdicts import (
    Check,
    Verdict,
    above,
    below,
    beyond,
    equal,
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
    assert (beyond([1, 1], 0.0), beyond([0, 0], 0.0)) == (0, 1)


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
