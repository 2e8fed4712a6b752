from __future__ import annotations

from dataclasses import replace
from math import comb, isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from prism_transformer.core.errors import InputError
from prism_transformer.study.benchmarks import ScoreDifference, Scores, item_test, mcnemar
from prism_transformer.study.collected import Collected
from prism_transformer.study.statistics import sign_flip
from tests.study.frames import make_collected

pytestmark = pytest.mark.filterwarnings("error")


def benchmarks(collected: Collected) -> tuple[ScoreDifference, ...]:
    return Scores.of(collected, 0).compare("uniform", "prism")


def test_benchmarks_over_seeds_and_over_items() -> None:
    collected = make_collected(n_items=500, effect=-0.2)
    piqa, wikitext = benchmarks(collected)
    assert (piqa.task, piqa.metric) == ("piqa", "acc")
    assert (wikitext.task, wikitext.metric) == ("wikitext", "word_perplexity")
    scores = collected.by_seed("eval.piqa.acc")
    assert piqa.difference.mean == pytest.approx((scores["prism"] - scores["uniform"]).mean())
    assert piqa.items is not None
    assert (piqa.items.n_items, piqa.items.n_seeds) == (500, 3)
    assert piqa.items.mean == pytest.approx(piqa.difference.mean)
    items = collected.items[collected.items["task"] == "piqa"]
    means = items.pivot_table(index="item", columns="arm", values="value")
    expected = stats.ttest_rel(means["prism"], means["uniform"]).confidence_interval(0.95)
    assert (piqa.items.low, piqa.items.high) == pytest.approx(tuple(expected))
    assert piqa.items.p < 0.001
    assert wikitext.difference.mean < 0
    assert wikitext.items is not None
    assert wikitext.items.mean > 0  # log-likelihoods


def test_only_items_that_both_arms_have_in_every_seed_count() -> None:
    collected = make_collected()
    items = collected.items
    gone = (items["arm"] == "prism") & (items["seed"] == 1) & (items["item"] < 10)
    piqa, _ = benchmarks(replace(collected, items=items[~gone]))
    assert piqa.items is not None
    assert (piqa.items.n_items, piqa.items.n_seeds) == (30, 3)


def test_a_seed_without_items_leaves_the_others() -> None:
    collected = make_collected()
    items = collected.items
    gone = (items["arm"] == "prism") & (items["seed"] == 1)
    piqa, _ = benchmarks(replace(collected, items=items[~gone]))
    assert piqa.items is not None
    assert (piqa.items.n_items, piqa.items.n_seeds) == (40, 2)
    none = replace(collected, items=items[items["arm"] == "uniform"])
    assert [each.items for each in benchmarks(none)] == [None, None]


# -- items ---------------------------------------------------------------------------------------


def test_mcnemar_by_hand() -> None:
    first = [1] * 9 + [0] * 2 + [1, 0] * 20
    second = [0] * 9 + [1] * 2 + [1, 0] * 20
    tail = sum(comb(11, k) for k in range(3)) / 2**11
    assert mcnemar(first, second) == pytest.approx(2 * tail)
    assert mcnemar(first, first) == 1
    with pytest.raises(InputError):
        mcnemar([0.5], [1])
    with pytest.raises(InputError):
        mcnemar([1, 0], [1])


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20))
@settings(deadline=None)
def test_mcnemar_is_a_sign_flip_over_items(pairs: list[tuple[bool, bool]]) -> None:
    first, second = np.array(pairs, dtype=float).T
    assert mcnemar(first, second) == pytest.approx(sign_flip(second - first))


def test_items_over_seeds_by_hand() -> None:
    first = [[0, 0, 1, 1], [0, 1, 1, 0]]
    second = [[1, 0, 1, 1], [1, 1, 0, 1]]
    found = item_test(first, second)  # item by item: 1, 0, -1/2, 1/2
    assert (found.n_items, found.n_seeds, found.mean) == (4, 2, 0.25)
    expected = stats.ttest_1samp([1, 0, -0.5, 0.5], 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(expected))
    assert found.p == sign_flip([1, 0, -0.5, 0.5])


def test_one_pair_of_runs_is_mcnemars() -> None:
    first, second = np.random.default_rng(7).random((2, 1, 300)) < [[[0.5]], [[0.6]]]
    assert item_test(first, second).p == mcnemar(first[0], second[0])
    likelihoods = item_test(first * 1.5, second * 1.5)
    assert likelihoods.p == pytest.approx(mcnemar(first[0], second[0]), abs=0.02)


def test_items_raise_few_false_alarms() -> None:
    """Two equal models of three seeds; items differ in how hard they are."""
    draw, alarms = np.random.default_rng(8), []
    for _ in range(300):
        chance = draw.uniform(0.2, 0.9, 200)
        first, second = draw.random((2, 3, 200)) < chance
        alarms.append(item_test(first, second).p < 0.05)
    assert np.mean(alarms) == pytest.approx(0.05, abs=0.035)


# -- clusters of items ---------------------------------------------------------------------------


def drawn(draw: np.random.Generator, n_seeds: int, n_clusters: int, each: int) -> np.ndarray:
    """Differences in which items of a cluster, and of a seed, go together."""
    clusters = np.repeat(draw.normal(0, 0.05, (1, n_clusters)), each, axis=1)
    seeds = draw.normal(0, 0.05, (n_seeds, 1))
    return clusters + seeds + draw.normal(0, 0.1, (n_seeds, n_clusters * each))


def test_equal_clusters_are_a_t_test_of_their_means() -> None:
    rows = drawn(np.random.default_rng(1), 3, 6, 10)
    names = [f"task{item // 10}" for item in range(60)]
    found = item_test(np.zeros_like(rows), rows, names).clustered
    assert found is not None
    means = rows.mean(axis=0).reshape(6, 10).mean(axis=1)
    expected = stats.ttest_1samp(means, 0)
    assert (found.n, found.p) == (6, pytest.approx(expected.pvalue))
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_unequal_clusters_by_hand() -> None:
    """The mean is over items; its variance sums what each cluster is away from it, squared."""
    rows, names = [[1.0, 0.0, 0.5, -0.5, 0.5, 0.3]], list("aabbbc")
    found = item_test(np.zeros((1, 6)), rows, names).clustered
    mean = 1.8 / 6
    away = [(1.0 - 2 * mean), (0.5 - 3 * mean), (0.3 - mean)]
    error = np.sqrt(sum((each / 6) ** 2 for each in away) * 3 / 2)
    assert found is not None
    assert found.p == pytest.approx(2 * stats.t.sf(mean / error, 2))
    assert found.high - mean == pytest.approx(stats.t.ppf(0.975, 2) * error)


@pytest.mark.parametrize("draw_seed", [2, 3, 5])  # the first has less than one of its parts
def test_seeds_crossed_with_clusters_by_brute_force(draw_seed: int) -> None:
    """Products of all pairs of deviations that share a seed or a cluster."""
    rows = drawn(np.random.default_rng(draw_seed), 4, 5, 3)
    names = np.repeat(np.arange(5), 3)
    found = item_test(np.zeros_like(rows), rows, [str(name) for name in names]).crossed
    away = (rows - rows.mean()) / rows.size
    cells = [(s, names[i], away[s, i]) for s in range(4) for i in range(15)]
    sums = {"seed": 0.0, "cluster": 0.0, "both": 0.0}
    for s, c, one in cells:
        for t, d, other in cells:
            sums["seed"] += one * other * (s == t)
            sums["cluster"] += one * other * (c == d)
            sums["both"] += one * other * (s == t and c == d)
    variance = sums["seed"] * 4 / 3 + sums["cluster"] * 5 / 4 - sums["both"] * 20 / 19
    variance = max(variance, sums["seed"] * 4 / 3, sums["cluster"] * 5 / 4)
    assert found is not None
    assert found.n == 4
    assert found.p == pytest.approx(2 * stats.t.sf(abs(rows.mean()) / np.sqrt(variance), 3))


@pytest.mark.slow  # for the import
@pytest.mark.filterwarnings("default")
def test_clusters_are_those_of_statsmodels() -> None:
    models = pytest.importorskip("statsmodels.api")
    rows = drawn(np.random.default_rng(5), 6, 9, 4)
    groups = np.repeat(np.arange(9), 4)
    found = item_test(np.zeros_like(rows), rows, [str(group) for group in groups])
    clusters, seeds = np.tile(groups, 6), np.repeat(np.arange(6), 36)
    fitted = models.OLS(rows.ravel(), np.ones(rows.size)).fit()
    both = (found.clustered, clusters), (found.crossed, np.stack([clusters, seeds], axis=1))
    for ours, by in both:
        theirs = fitted.get_robustcov_results("cluster", groups=by, use_t=True)
        assert ours is not None
        assert ours.p == pytest.approx(theirs.pvalues[0])
        assert (ours.low, ours.high) == pytest.approx(tuple(theirs.conf_int()[0]))


def test_clusters_that_say_nothing() -> None:
    rows = drawn(np.random.default_rng(3), 2, 1, 8)
    one = item_test(np.zeros_like(rows), rows, ["a"] * 8)
    assert one.clustered is not None
    assert isnan(one.clustered.p)
    each = item_test(np.zeros_like(rows), rows, list("abcdefgh"))
    assert each.clustered is None  # every item by itself is what the item test is
    assert item_test(np.zeros((1, 8)), rows[:1]).crossed is None
    with pytest.raises(InputError, match="8 items and 2 clusters"):
        item_test(np.zeros_like(rows), rows, ["a", "b"])


def test_p_values_of_items_are_adjusted_over_tasks() -> None:
    tasks = {"piqa": "acc", "arc_easy": "acc", "wikitext": "word_perplexity"}
    found = benchmarks(make_collected(tasks=tasks, n_items=300, effect=-0.1))
    p = sorted((each.items.strictest_p, each.items.adjusted_p) for each in found if each.items)
    assert p[0][1] == pytest.approx(min(1, 3 * p[0][0]))
    assert all(adjusted >= single for single, adjusted in p)


def test_clusters_come_from_the_table_of_items() -> None:
    collected = make_collected()
    items = collected.items
    clusters = "t" + (items["item"] // 8).astype(str)
    piqa, _ = benchmarks(replace(collected, items=items.assign(cluster=clusters)))
    assert piqa.items is not None
    assert piqa.items.clustered is not None
    assert piqa.items.clustered.n == 5
    plain, _ = benchmarks(collected)
    assert plain.items is not None
    assert plain.items.clustered is None
    assert plain.items.p == piqa.items.p


@pytest.mark.slow
def test_clusters_and_seeds_raise_few_false_alarms_where_items_raise_many() -> None:
    draw, alarms = np.random.default_rng(4), np.zeros(3)
    names = [f"t{item // 10}" for item in range(240)]
    for _ in range(600):
        rows = drawn(draw, 8, 24, 10)
        found = item_test(np.zeros_like(rows), rows, names)
        assert found.clustered is not None
        assert found.crossed is not None
        alarms += [each < 0.05 for each in (found.p, found.clustered.p, found.crossed.p)]
    by_item, by_cluster, crossed = alarms / 600
    assert by_item > 0.3
    assert by_item > by_cluster > crossed  # seeds of 0.05 each are more than clusters see
    assert crossed < 0.08
