from __future__ import annotations

from math import exp, inf, isnan, log, nan, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from prism_transformer.core.errors import InputError
from prism_transformer.study.statistics import (
    DRAWS,
    MOST_PAIRS,
    detectable_effect,
    equivalence,
    gap_curve,
    margin_power,
    paired,
    pareto,
    power_of,
    ratio,
    seeds_needed,
    sign_flip,
    sign_flip_floor,
    sign_test,
    summarise,
    tokens_to_reach,
)

pytestmark = pytest.mark.filterwarnings("error")

finite = st.floats(-1e100, 1e100)
plain = st.floats(-100, 100).map(lambda value: round(value, 3))
DIFFERENCES = [-0.012, -0.004, -0.0023, 0.001, -0.009]


# -- over seeds ----------------------------------------------------------------------------------


def test_a_summary_by_hand() -> None:
    found = summarise([1, 2, 3, 6])
    assert (found.n, found.mean) == (4, 3)
    assert found.sd == pytest.approx(sqrt((4 + 1 + 0 + 9) / 3))
    one = summarise([2.5])
    assert (one.n, one.mean) == (1, 2.5)
    assert isnan(one.sd)


def test_a_t_interval_by_hand() -> None:
    # mean 2, s.d. 1, and a table's t(2) = 4.303
    found = paired([1, 2, 3])
    assert (found.n, found.mean, found.sd) == (3, 2, 1)
    half = 4.303 / sqrt(3)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), abs=1e-3)
    assert found.differences == (1, 2, 3)
    assert not found.excludes_zero


def test_the_interval_is_scipys() -> None:
    for confidence in (0.9, 0.95, 0.99):
        found = paired(DIFFERENCES, confidence)
        expected = stats.ttest_1samp(DIFFERENCES, 0).confidence_interval(confidence)
        assert (found.low, found.high) == pytest.approx(tuple(expected))


def test_one_difference_says_little() -> None:
    found = paired([-0.01])
    assert (found.mean, found.p, found.p_floor) == (-0.01, 1, 1)
    assert all(isnan(each) for each in (found.sd, found.low, found.high, found.detectable))
    assert not found.excludes_zero


def test_no_difference_at_all() -> None:
    found = paired([0.0, 0.0, 0.0])
    assert (found.mean, found.low, found.high, found.detectable, found.p) == (0, 0, 0, 0, 1)
    assert not found.excludes_zero


@given(st.lists(finite, min_size=1, max_size=12))
@settings(deadline=None)
def test_whatever_is_finite_is_summarised_without_a_warning(values: list[float]) -> None:
    found = paired(values)
    assert found.p_floor <= found.p <= 1
    assert isnan(found.low) if found.n == 1 else found.low <= found.mean <= found.high
    ratio(np.abs(values) + 1, np.ones(len(values)))
    equivalence(values, 1)
    seeds_needed(found.mean, found.sd)


@pytest.mark.parametrize("values", [[], [1, nan], [1, inf], [[1, 2]], [1e200]], ids=repr)
def test_what_is_no_list_of_finite_numbers_is_refused(values: list[float]) -> None:
    for function in (summarise, paired, sign_flip):
        with pytest.raises(InputError):
            function(values)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_intervals_cover_the_truth_as_often_as_they_say(n: int) -> None:
    """Twenty thousand studies of a true difference of 0.01, whose noise is as large."""
    draws = np.random.default_rng(1).normal(0.01, 0.01, (n, 20_000))
    band = gap_curve(range(20_000), draws)
    covered = np.mean((np.array(band.low) < 0.01) & (np.array(band.high) > 0.01))
    assert covered == pytest.approx(0.95, abs=0.006)


def test_sign_flip_by_hand() -> None:
    # of 8 flips of 1, 2, 4 the sums are +-7, +-5, +-3, +-1: at least 5 in size are 4
    assert sign_flip([-1, 2, 4]) == 4 / 8
    assert sign_flip([1, 2, 4]) == 2 / 8 == sign_flip_floor(3)
    assert sign_flip([1, 2, 4, 0]) == 2 / 8
    assert [sign_flip_floor(n) for n in (1, 2, 6)] == [1, 0.5, 2 / 64]


def test_sums_that_are_equal_but_for_rounding_tie() -> None:
    # 0.1 + 0.2 - 0.3 is 5.6e-17, and 0.3 - 0.1 - 0.2 is -2.8e-17: all are 0
    assert sign_flip([0.1, 0.2, -0.3]) == 1
    assert sign_flip([0.1, 0.2, 0.3, 0.6, -0.6]) == sign_flip([1, 2, 3, 6, -6])


@given(st.lists(plain, min_size=2, max_size=7))
@settings(deadline=None, max_examples=40)
def test_sign_flip_is_scipys_permutation_test(values: list[float]) -> None:
    found = stats.permutation_test(
        (np.array(values), np.zeros(len(values))),
        lambda x, y, axis: np.round(np.sum(x - y, axis), 6),  # rounded, as it knows few ties
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    assert sign_flip(values) == pytest.approx(found.pvalue)


@given(st.lists(plain, min_size=1, max_size=24), st.floats(0.001, 1000))
@settings(deadline=None)
def test_sign_flip_knows_neither_order_nor_sign_nor_unit(values: list[float], unit: float) -> None:
    p = sign_flip(values)
    assert sign_flip(values[::-1]) == p
    assert sign_flip([-value for value in values]) == p
    assert sign_flip([unit * value for value in values]) == pytest.approx(p)


def test_drawn_flips_are_close_to_all_flips() -> None:
    values = np.random.default_rng(2).normal(0.4, 1, 21)
    exact = np.zeros(1)
    for value in values:
        exact = np.concatenate((exact + value, exact - value))
    p = np.mean(np.abs(exact) >= abs(values.sum()) - 1e-9)
    assert 0.01 < p < 0.2
    assert sign_flip(values) == pytest.approx(p, abs=4 * sqrt(p / DRAWS))
    assert sign_flip(values) == sign_flip(values)
    assert sign_flip(np.ones(40)) == sign_flip_floor(40) == 1 / (DRAWS + 1)


def test_sign_flip_raises_few_false_alarms() -> None:
    """Of six pairs only 2 of 64 flips are below 5 %; skewed or wide, noise is noise."""
    draws = np.random.default_rng(3).standard_t(2, (4000, 6))
    rate = np.mean([sign_flip(each) <= 0.05 for each in draws])
    assert rate == pytest.approx(2 / 64, abs=0.008)


# -- power ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_the_detectable_effect_is_found_four_times_of_five(n: int) -> None:
    effect = detectable_effect(n, sd=0.005)
    draws = np.random.default_rng(4).normal(effect, 0.005, (n, 20_000))
    band = gap_curve(range(20_000), draws)
    found = np.mean((np.array(band.low) > 0) | (np.array(band.high) < 0))
    assert found == pytest.approx(0.8, abs=0.01)


def test_power_is_scipys_noncentral_t() -> None:
    for freedom in (1, 2.5, 21):
        shift, critical = 0.3 / 0.1, stats.t.ppf(0.975, freedom)
        expected = stats.nct.sf(critical, freedom, shift) + stats.nct.cdf(-critical, freedom, shift)
        for effect in (0.3, -0.3):
            assert power_of(effect, 0.1, freedom) == pytest.approx(expected, abs=1e-6)
    for error in (nan, 0.0):
        assert isnan(power_of(0.3, error, 3))
        assert isnan(margin_power(0.3, error, 3))


@pytest.mark.parametrize("n", [1, 2, 3, 6, 11])
def test_the_sign_test_is_an_exact_binomial_one(n: int) -> None:
    for against in range(n + 1):
        exact = stats.binomtest(against, n).pvalue if 2 * against > n else 1.0
        assert sign_test(against, n) == pytest.approx(exact)
    assert sign_test(n, n) == pytest.approx(2.0 ** (1 - n))
    assert sign_test(0, 0) == 1


def test_seeds_that_textbooks_ask_for() -> None:
    # small, medium and large effects (Cohen's d) at power 0.8, and a medium one at 0.95
    assert [seeds_needed(d, 1) for d in (0.2, 0.5, 0.8)] == [199, 34, 15]
    assert seeds_needed(-0.5, 1) == 34
    assert seeds_needed(0.5, 1, power=0.95) == 54
    assert paired([1, 2, 3]).detectable == detectable_effect(3, 1)
    assert isnan(detectable_effect(1, 1))


@given(st.floats(0.05, 50), st.floats(0.001, 10))
@settings(deadline=None, max_examples=50)
def test_seeds_needed_is_where_the_effect_becomes_detectable(size: float, sd: float) -> None:
    n = seeds_needed(size * sd, sd)
    assert n is not None
    assert detectable_effect(n, sd) <= size * sd * (1 + 1e-8)
    if n > 2:
        assert detectable_effect(n - 1, sd) > size * sd * (1 - 1e-8)


@given(st.lists(plain, min_size=2, max_size=12))
@settings(deadline=None)
def test_what_is_within_noise_needs_more_seeds(values: list[float]) -> None:
    found = paired(values)
    needed = seeds_needed(found.mean, found.sd)
    if not found.excludes_zero and needed is not None:
        assert needed > found.n


def test_no_number_of_seeds_for_no_effect() -> None:
    assert seeds_needed(0, 1) is None
    assert seeds_needed(0, 0) is None
    assert seeds_needed(1, nan) is None
    assert seeds_needed(nan, 1) is None
    assert seeds_needed(0.001, 1) is None  # about eight million
    assert seeds_needed(2.9 / sqrt(MOST_PAIRS), 1) is not None
    assert seeds_needed(0.1, 0) == 2
    for wrong in ({"power": 0.01}, {"power": 1}, {"sd": -1}):
        with pytest.raises(InputError):
            seeds_needed(**({"effect": 1, "sd": 1} | wrong))


# -- equal arms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [0.001, 0.01, 0.02])
def test_equivalence_is_two_one_sided_tests(margin: float) -> None:
    found = equivalence(DIFFERENCES, margin)
    above = stats.ttest_1samp(DIFFERENCES, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(DIFFERENCES, margin, alternative="less").pvalue
    assert found.p == pytest.approx(max(above, below))
    interval = paired(DIFFERENCES, confidence=0.9)
    assert found.equal == (-margin < interval.low and interval.high < margin)


def test_equivalence_at_its_edges() -> None:
    assert isnan(equivalence([0.0], 1).p)
    assert not equivalence([0.0], 1).equal  # one pair proves nothing
    assert isnan(equivalence([0.5, 0.5], 1).p)  # equal numbers do not say how sure they are
    t = sqrt(12) * sqrt(3)  # whole numbers: margin in standard errors of what rounding takes away
    p = 0.5 * (1 - t / sqrt(2 + t**2))
    assert equivalence([0.0, 0.0, 0.0], 1, grain=1.0).p == pytest.approx(p)
    for margin in (0, -1, nan, inf):
        with pytest.raises(InputError):
            equivalence([0.0, 1.0], margin)


def test_unequal_arms_pass_for_equal_one_time_in_twenty() -> None:
    draws = np.random.default_rng(6).normal(0.01, 0.003, (3000, 5))
    alarms = [equivalence(each, 0.01).equal for each in draws]
    assert np.mean(alarms) == pytest.approx(0.05, abs=0.012)


# -- over training -------------------------------------------------------------------------------


def test_a_gap_is_a_paired_interval_at_each_place() -> None:
    rows = np.random.default_rng(9).normal(size=(4, 3))
    curve = gap_curve([0, 10, 20], rows)
    assert curve.tokens == (0, 10, 20)
    for place in range(3):
        found = paired(rows[:, place])
        bands = (curve.mean[place], curve.low[place], curve.high[place])
        assert bands == pytest.approx((found.mean, found.low, found.high))
    one = gap_curve([0, 10], [[0.5, 0.25]])
    assert one.mean == (0.5, 0.25)
    assert all(isnan(each) for each in (*one.low, *one.high))
    with pytest.raises(InputError):
        gap_curve([0, 10], rows)


def test_tokens_to_reach_by_hand() -> None:
    tokens, losses = [0, 100, 200, 300], [8.0, 4.0, 3.0, 3.5]
    assert tokens_to_reach(tokens, losses, 6.0) == 50
    assert tokens_to_reach(tokens, losses, 3.25) == 175  # though it rises again
    assert tokens_to_reach(tokens, losses, 3.0) == 200
    assert tokens_to_reach(tokens, losses, 9.0) == 0
    assert tokens_to_reach(tokens, losses, 2.9) is None
    with pytest.raises(InputError):
        tokens_to_reach([0, 0], [2, 1], 1)


@given(st.lists(plain, min_size=1, max_size=8), plain)
def test_a_curve_is_at_its_target_where_it_first_reaches_it(
    losses: list[float], target: float
) -> None:
    tokens = np.arange(len(losses)) * 10.0
    found = tokens_to_reach(tokens, losses, target)
    if found is None:
        assert min(losses) > target
    else:
        assert np.interp(found, tokens, losses) == pytest.approx(min(target, losses[0]), abs=1e-9)
        assert all(loss > target for at, loss in zip(tokens, losses, strict=True) if at < found)


def test_ratios_by_hand() -> None:
    found = ratio([110, 240, 90], [100, 120, 100])
    assert found.ratios == pytest.approx((1.1, 2, 0.9))
    assert (found.median, found.least, found.most) == pytest.approx((1.1, 0.9, 2))
    assert found.mean == pytest.approx((1.1 * 2 * 0.9) ** (1 / 3))
    logs = paired([log(1.1), log(2), log(0.9)])
    assert (found.low, found.high) == pytest.approx((exp(logs.low), exp(logs.high)))
    turned = ratio([100, 120, 100], [110, 240, 90])
    assert (1 / turned.high, 1 / turned.mean) == pytest.approx((found.low, found.mean))
    one = ratio([3], [2])
    assert (one.mean, one.median) == pytest.approx((1.5, 1.5))
    assert isnan(one.low)
    for wrong in ([0, 1], [-1, 1], [nan, 1]):
        with pytest.raises(InputError):
            ratio(wrong, [1, 1])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_the_pareto_front_against_brute_force(points: list[tuple[int, int]]) -> None:
    def beats(one: tuple[int, int], other: tuple[int, int]) -> bool:
        return one != other and one[0] <= other[0] and one[1] >= other[1]

    best = [at for at, point in enumerate(points) if not any(beats(each, point) for each in points)]
    assert pareto(points) == tuple(best)


def test_a_pareto_front_by_hand() -> None:
    points = [(3.0, 100.0), (2.9, 90.0), (3.1, 95.0), (2.9, 80.0), (3.0, 100.0)]
    assert pareto(points) == (0, 1, 4)
    with pytest.raises(InputError):
        pareto([(nan, 1.0)])
