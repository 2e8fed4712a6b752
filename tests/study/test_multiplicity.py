from __future__ import annotations

from itertools import combinations, product
from math import isnan, nan, sqrt

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from prism_transformer.core.errors import InputError
from prism_transformer.study.multiplicity import fit_blocks, holm, max_t
from prism_transformer.study.statistics import paired, sign_flip

pytestmark = pytest.mark.filterwarnings("error")

Numbers = npt.NDArray[np.float64]


def losses(seeds: int, arms: int, draw_seed: int = 0) -> Numbers:
    """Losses of a study in which seeds differ more than arms."""
    draw = np.random.default_rng(draw_seed)
    return 3 + draw.normal(0, 0.1, (seeds, 1)) + draw.normal(0, 0.01, (seeds, arms))


# -- the error of all arms together ----------------------------------------------------------------


def test_the_error_of_complete_blocks_by_hand() -> None:
    """Residuals of a two-way table are what its row and column means leave."""
    wide = losses(6, 4)
    rest = wide - wide.mean(0) - wide.mean(1, keepdims=True) + wide.mean()
    blocks = fit_blocks(wide)
    assert blocks is not None
    assert blocks.freedom == 5 * 3
    assert blocks.sd == pytest.approx(sqrt((rest**2).sum() / 15))
    found = blocks.contrast([1, -1, 0, 0])
    assert found is not None
    assert found.mean == pytest.approx((wide[:, 0] - wide[:, 1]).mean())
    assert found.difference_sd == pytest.approx(blocks.sd * sqrt(2))
    assert found.error == pytest.approx(blocks.sd * sqrt(2 / 6))
    half = stats.t.ppf(0.975, 15) * found.error
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(found.mean) / found.error, 15))
    # The noncentral t has the stated power at the detectable effect.
    shift, critical = found.detectable / found.error, stats.t.ppf(0.975, 15)
    power = stats.nct.sf(critical, 15, shift) + stats.nct.cdf(-critical, 15, shift)
    assert power == pytest.approx(0.8, abs=1e-6)


def test_of_two_arms_the_pooled_error_is_that_of_the_pairs() -> None:
    wide = losses(5, 2)
    blocks = fit_blocks(wide)
    assert blocks is not None
    found, pairs = blocks.contrast([-1, 1]), paired(wide[:, 1] - wide[:, 0])
    assert found is not None
    assert blocks.freedom == 4
    assert (found.mean, found.low, found.high) == pytest.approx((pairs.mean, pairs.low, pairs.high))
    assert found.detectable == pytest.approx(pairs.detectable)


@pytest.mark.parametrize("missing", [(), ((0, 1),), ((0, 1), (2, 3), (4, 0))])
def test_blocks_with_missing_runs_are_least_squares(missing: tuple[tuple[int, int], ...]) -> None:
    """Against the sums of squares of two nested models: F of one contrast is t squared."""
    wide = losses(6, 4)
    for at in missing:
        wide[at] = nan
    rows = [(s, a, wide[s, a]) for s, a in np.ndindex(wide.shape) if not isnan(wide[s, a])]
    y = np.array([value for _, _, value in rows])

    def rest(columns: list[list[float]]) -> float:
        design = np.array(columns).T
        return float(np.linalg.lstsq(design, y, rcond=None)[1][0])

    seeds = [[float(s == seed) for s, _, _ in rows] for seed in range(6)]
    arms = [[float(a == arm) for _, a, _ in rows] for arm in range(1, 4)]
    merged = [[float(a in (0, 1)) for _, a, _ in rows], *arms[1:-1]]  # arms 0 and 1 as one
    full, less = rest(seeds + arms), rest(seeds + merged)
    blocks = fit_blocks(wide)
    assert blocks is not None
    assert blocks.freedom == len(rows) - 9
    assert blocks.sd**2 == pytest.approx(full / blocks.freedom)
    found = blocks.contrast([1, -1, 0, 0])
    assert found is not None
    expected = stats.f.sf((less - full) / blocks.sd**2, 1, blocks.freedom)
    assert found.p == pytest.approx(expected)


@pytest.mark.slow  # for the import
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("missing", [0, 3])
def test_blocks_and_holm_are_those_of_statsmodels(missing: int) -> None:
    formulas = pytest.importorskip("statsmodels.formula.api")
    several = pytest.importorskip("statsmodels.stats.multitest")
    wide = losses(8, 4)
    wide[:missing, 1] = nan
    rows = [{"arm": a, "seed": s, "loss": wide[s, a]} for s, a in np.ndindex(wide.shape)]
    frame = pd.DataFrame(rows).dropna()
    fitted = formulas.ols("loss ~ 0 + C(arm) + C(seed)", frame).fit()
    weights = [0.5, 0.5, -0.625, -0.375]
    expected = fitted.t_test(weights + [0.0] * (len(fitted.params) - 4))
    blocks = fit_blocks(wide)
    assert blocks is not None
    found = blocks.contrast(weights)
    assert found is not None
    assert (found.freedom, found.sd) == (fitted.df_resid, pytest.approx(fitted.scale**0.5))
    assert (found.mean, found.p) == pytest.approx((expected.effect[0], float(expected.pvalue)))
    assert (found.low, found.high) == pytest.approx(tuple(expected.conf_int()[0]))
    p = [0.001, 0.04, 0.03, 0.2]
    assert holm(p) == pytest.approx(tuple(several.multipletests(p, method="holm")[1]))


def test_what_cannot_be_estimated_is_none() -> None:
    assert fit_blocks(np.full((3, 2), nan)) is None
    assert fit_blocks([[1.0, 2.0, 3.0]]) is None  # one seed: nothing is left over
    blocks = fit_blocks(np.hstack([losses(4, 2), np.full((4, 1), nan)]))
    assert blocks is not None
    assert blocks.contrast([1, 0, -1]) is None
    assert blocks.contrast([1, -1, 0]) is not None
    with pytest.raises(InputError):
        fit_blocks([[np.inf, 1.0]])


@pytest.mark.slow
def test_pooled_intervals_cover_and_tests_keep_their_level() -> None:
    weights, covered, alarms = [0.5, 0.5, -0.625, -0.375], 0, 0
    for study in range(4000):
        wide = losses(3, 4, study)
        if study % 3 == 0:
            wide[0, 1] = nan
        blocks = fit_blocks(wide)
        assert blocks is not None
        found = blocks.contrast(weights)
        assert found is not None
        covered += found.low <= 0 <= found.high
        alarms += found.p < 0.05
    assert covered / 4000 == pytest.approx(0.95, abs=0.011)
    assert alarms / 4000 == pytest.approx(0.05, abs=0.011)


# -- p values of several comparisons ---------------------------------------------------------------


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([]) == ()
    found = holm([0.02, nan, 0.03])
    assert (found[0], found[2]) == pytest.approx((0.04, 0.04))
    assert isnan(found[1])
    for wrong in ([-0.1], [0.5, 1.1]):
        with pytest.raises(InputError):
            holm(wrong)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(p_values: list[float]) -> None:
    """The largest Bonferroni p among all sets of hypotheses that hold this one."""
    for index, adjusted in enumerate(holm(p_values)):
        sets = [
            chosen
            for size in range(1, len(p_values) + 1)
            for chosen in combinations(range(len(p_values)), size)
            if index in chosen
        ]
        worst = max(len(chosen) * min(p_values[each] for each in chosen) for chosen in sets)
        assert adjusted == pytest.approx(min(worst, 1))


def test_holm_raises_one_false_alarm_in_twenty_studies() -> None:
    draws = np.random.default_rng(5).normal(size=(8, 2000 * 4))
    p_values = stats.ttest_1samp(draws, 0).pvalue.reshape(2000, 4)
    assert np.mean([min(holm(each)) < 0.05 for each in p_values]) == pytest.approx(0.05, abs=0.015)


def closed_max_t(wide: Numbers) -> list[float]:
    """For each contrast the largest p, over sets that hold it, that the set's largest t has."""
    flips = list(product((1, -1), repeat=len(wide)))
    t = np.array([np.abs(stats.ttest_1samp(np.array(f)[:, None] * wide, 0)[0]) for f in flips])
    found = []
    for index in range(wide.shape[1]):
        sets = [
            list(chosen)
            for size in range(1, wide.shape[1] + 1)
            for chosen in combinations(range(wide.shape[1]), size)
            if index in chosen
        ]
        p = [np.mean(t[:, s].max(1) >= t[0, s].max() * (1 - 1e-9)) for s in sets]
        found.append(float(max(p)))
    return found


@pytest.mark.parametrize("draw_seed", range(4))
def test_max_t_is_the_closed_test_of_the_largest_t(draw_seed: int) -> None:
    arms = losses(6, 4, draw_seed) + np.array([0, 0.01, 0.02, 0])
    wide = arms[:, [1, 2, 3, 2]] - arms[:, [0, 0, 0, 1]]
    assert max_t(wide) == pytest.approx(closed_max_t(wide))


def test_of_one_contrast_max_t_is_a_sign_flip() -> None:
    draw = np.random.default_rng(1)
    for n in (1, 2, 5, 9):
        wide = draw.normal(0.5, 1, (n, 1))
        assert max_t(wide) == (pytest.approx(sign_flip(wide[:, 0])),)
    many = draw.normal(0.3, 1, (40, 1))
    assert max_t(many)[0] == pytest.approx(sign_flip(many[:, 0]), abs=0.01)


def test_the_least_p_does_not_grow_with_the_number_of_contrasts() -> None:
    """Fifteen clear contrasts of eight seeds: Holm cannot see them, joint flips can."""
    wide = -1 + np.random.default_rng(2).normal(0, 0.01, (8, 15))
    assert max(max_t(wide)) == 2 / 2**8
    assert min(holm([sign_flip(each) for each in wide.T])) == pytest.approx(15 * 2 / 2**8)


def test_max_t_with_seeds_that_some_contrasts_lack() -> None:
    wide = np.random.default_rng(3).normal(1, 1, (7, 3))
    alone = max_t(wide[:, :1])[0]
    wide[:, 1] = nan
    wide[0, 2] = nan
    found = max_t(wide)
    assert isnan(found[1])
    assert found[0] >= alone - 1e-12
    assert found[2] >= sign_flip(wide[1:, 2]) - 1e-12
    assert max_t(np.empty((0, 0))) == ()
    assert max_t([[0.0, 1.0], [0.0, 1.0]]) == (1.0, 0.5)  # no difference at all, and a clear one
    with pytest.raises(InputError):
        max_t([1.0, 2.0])


@given(st.lists(st.lists(st.floats(-1, 1), min_size=3, max_size=3), min_size=2, max_size=6))
@settings(deadline=None, max_examples=50)
def test_max_t_is_between_the_single_p_and_holms(rows: list[list[float]]) -> None:
    wide = np.round(rows, 3)
    single = [sign_flip(each) for each in wide.T]
    for p, adjusted in zip(single, max_t(wide), strict=True):
        assert p - 1e-12 <= adjusted <= 1


@pytest.mark.slow
def test_max_t_raises_one_false_alarm_in_twenty_studies() -> None:
    """Seven seeds, six contrasts that share arms; then two real effects among them."""
    for shift, tested in (([0, 0, 0, 0], range(6)), ([0, 0, 0.05, 0.05], (0, 5))):
        alarms = 0
        for study in range(1500):
            arms = losses(7, 4, study) + shift
            pairs = list(combinations(range(4), 2))  # 0-1 and 2-3 have no effect in either case
            found = max_t(np.array([arms[:, b] - arms[:, a] for a, b in pairs]).T)
            alarms += any(found[at] < 0.05 for at in tested)
        # Exact flips of seven seeds come in steps of 1/64: at most 5 %.
        assert 0.025 < alarms / 1500 < 0.062
