"""Rankings against scipy, closed forms and chance."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest
from scipy.stats import kendalltau

from prism_transformer.search.ranking import (
    MOST_SPLITS,
    halves,
    interval,
    kendall,
    regret,
    split_mean,
)


def test_tau_is_scipys_with_ties_as_well() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        one, other = random.integers(0, 6, (2, 15)).astype(float)
        assert kendall(one, other) == pytest.approx(kendalltau(one, other).statistic)
    assert isnan(kendall(np.ones(4), np.arange(4.0)))


def test_regret_is_what_is_lost_and_ties_share_it() -> None:
    truth = np.array([3.0, 1.0, 2.0])
    assert regret(np.array([0.0, 5.0, 6.0]), truth) == 2.0
    assert regret(truth, truth) == 0.0
    assert regret(np.array([1.0, 9.0, 1.0]), truth) == 1.5


def test_every_way_to_part_seeds_once() -> None:
    assert list(halves(1)) == []
    assert [one.tolist() for one, _ in halves(3)] == [
        [True, False, False], [False, True, False], [False, False, True],
    ]  # fmt: skip
    assert sum(1 for _ in halves(4)) == 6
    assert all((one ^ other).all() for one, other in halves(5))


def test_many_seeds_are_parted_by_chance_and_each_as_often_as_others() -> None:
    """Of 15 seeds there are 6,435 ways; the first 200 of them all have the first four alike."""
    masks = np.array([one for one, _ in halves(15)])
    assert masks.shape == (MOST_SPLITS, 15)
    assert (masks.sum(1) == 7).all()
    assert (np.abs(masks.mean(0) - 7 / 15) < 0.15).all()
    assert masks.tolist() == [one.tolist() for one, _ in halves(15)]


def test_halves_of_runs_without_noise_agree_and_of_noise_alone_do_not() -> None:
    random = np.random.default_rng(1)
    arms = random.normal(size=12)
    assert split_mean(np.tile(arms, (4, 1)), kendall) == 1.0
    noise = [split_mean(random.normal(size=(4, 12)), kendall) for _ in range(60)]
    assert abs(np.mean(noise)) < 0.1
    assert isnan(split_mean(arms[None], kendall))


def test_intervals_are_the_middle_of_what_is_drawn() -> None:
    low, high = interval(lambda random: float(random.uniform()))
    assert low == pytest.approx(0.025, abs=0.015)
    assert high == pytest.approx(0.975, abs=0.015)
    assert interval(lambda random: float(random.uniform())) == (low, high)
    assert isnan(interval(lambda _: float("nan"))[0])
