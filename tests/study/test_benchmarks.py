from __future__ import annotations

from dataclasses import replace

import pytest
from scipy import stats

from prism_transformer.study.benchmarks import Benchmark, Scores
from prism_transformer.study.table import Collected
from tests.study.frames import make_collected

pytestmark = pytest.mark.filterwarnings("error")


def benchmarks(collected: Collected) -> tuple[Benchmark, ...]:
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
