from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from prism_transformer.core.errors import InputError
from prism_transformer.study.collected import ContrastFacts, read_collected
from prism_transformer.study.compare import Comparison, compare
from prism_transformer.study.contrasts import (
    Contrast,
    adjust,
    contrasts_of,
    described,
    measured,
    read_weights,
)
from prism_transformer.study.multiplicity import fit_blocks
from tests.study.frames import make_collected

pytestmark = pytest.mark.filterwarnings("error")

NANO = Path(__file__).parents[2] / "results" / "nano"
FOUR = {"uniform": "8x8", "prism": "2x2 4x2 8x4", "reversed": "8x4 4x2 2x2", "fewer": "4x8"}
LINE = {"prism": 0.5, "reversed": 0.5, "fewer": -0.625, "uniform": -0.375}


def asked(contrasts: dict[str, dict[str, float]], **what: Any) -> Comparison:
    """A study of four arms that names these contrasts."""
    collected = make_collected(**{"arms": FOUR, "seeds": range(6)} | what)
    named = tuple(ContrastFacts(name=name, weights=w) for name, w in contrasts.items())
    facts = collected.facts.model_copy(update={"contrasts": named})
    return compare(replace(collected, facts=facts))


# -- which ones a study asks for -------------------------------------------------------------------


def test_a_pair_and_a_table_of_weights() -> None:
    assert read_weights(["prism", "reversed"], list(FOUR)) == {"prism": 1, "reversed": -1}
    assert read_weights(LINE | {"uniform": -0.375}, list(FOUR)) == LINE
    assert read_weights({"prism": 1, "reversed": 0, "fewer": -1}, list(FOUR)) == {
        "prism": 1,
        "fewer": -1,
    }
    assert described({"prism": 1.0, "reversed": -1.0}) == "prism minus reversed"
    assert described({"reversed": -1.0, "prism": 1.0}) == "prism minus reversed"
    assert described(LINE) == "0.5 prism + 0.5 reversed - 0.625 fewer - 0.375 uniform"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (["prism"], "name two arms"),
        (["prism", "reversed", "fewer"], "name two arms"),
        (["prism", "prism"], "name two arms"),
        (["prism", "revresed"], "'revresed' is none of the arms: uniform, prism"),
        ({"prism": 1, "reversed": -0.5}, "sum to 0.5"),
        ({"prism": nan, "reversed": -1}, "finite"),
        ({}, "two arms at least"),
    ],
)
def test_contrasts_that_are_none(value: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_weights(value, list(FOUR))


def test_without_names_prism_is_held_against_each_control() -> None:
    facts = make_collected(arms=FOUR).facts
    assert [each.name for each in contrasts_of(facts)] == [
        "prism against reversed",
        "prism against fewer",
    ]
    assert contrasts_of(make_collected().facts) == ()
    other = make_collected(arms={"prism": "2x8", "uniform": "8x8", "fewer": "4x8"})
    assert contrasts_of(other.facts) == ()  # Prism is the baseline itself
    nameless = make_collected(arms={"uniform": "8x8", "a": "4x8", "b": "2x8"})
    assert contrasts_of(nameless.facts) == ()


# -- what the losses say ---------------------------------------------------------------------------


def test_a_weighted_group_is_a_t_test_of_its_sums() -> None:
    comparison = asked({"line": LINE})
    (line,) = comparison.contrasts
    wide = make_collected(arms=FOUR, seeds=range(6)).final_loss()
    sums = sum(weight * wide[arm] for arm, weight in LINE.items())
    expected = stats.ttest_1samp(sums, 0)
    assert line.difference is not None
    assert line.difference.differences == pytest.approx(tuple(sums))
    interval = expected.confidence_interval(0.95)
    assert (line.difference.low, line.difference.high) == pytest.approx(tuple(interval))
    assert line.pooled is not None
    assert line.pooled.mean == pytest.approx(line.difference.mean)
    assert line.pooled.freedom == 5 * 3
    assert line.seeds == tuple(range(6))


def test_only_seeds_complete_in_all_arms_of_a_contrast_count() -> None:
    states = {("reversed", 0, 1): "failed", ("uniform", 0, 4): "missing"}
    found = asked({"order": {"prism": 1, "reversed": -1}, "line": LINE}, states=states)
    order, line = found.contrasts
    assert order.seeds == (0, 2, 3, 4, 5)
    assert line.seeds == (0, 2, 3, 5)
    assert [(each.arm, each.seed, each.diverged) for each in order.lost] == [("reversed", 1, False)]
    assert found.rows[0].lost == ()  # prism against uniform has lost no run
    assert order.pooled is not None
    assert order.pooled.freedom == (6 * 4 - 2) - (6 + 3)


def test_one_question_asked_twice_counts_once() -> None:
    """As an arm against the baseline, and turned around under another name."""
    named = {"number": {"uniform": 2.0, "fewer": -2.0}, "order": {"prism": 1.0, "reversed": -1.0}}
    found = asked(named)
    assert {each.comparisons for each in found.every} == {4}
    number, row = found.contrasts[0], found.rows[2]
    assert number.adjusted_p == row.adjusted_p
    assert number.difference is not None
    assert row.difference is not None
    assert number.difference.mean == pytest.approx(-2 * row.difference.mean)


def test_few_seeds_are_decided_by_the_pooled_error() -> None:
    """Three seeds have no sign-flip p below 0.25; the error of all arms has more to say."""
    found = asked({}, seeds=range(3), effect={"prism": -0.05})
    prism = found.rows[0]
    assert prism.difference is not None
    assert prism.difference.p_floor == 0.25
    assert not prism.by_flips
    assert prism.adjusted_p >= 0.25
    assert prism.pooled is not None
    assert prism.pooled.adjusted_p < 0.05
    assert prism.decided
    more = asked({}, seeds=range(8), effect={"prism": -0.05}).rows[0]
    assert more.by_flips
    assert more.decided
    assert more.adjusted_p == 2 / 2**8


def test_a_limit_below_the_least_flip_p_asks_the_pooled_error() -> None:
    contrast = asked({}, seeds=range(8), effect={"prism": -0.05}).rows[0]
    early = replace(contrast, limit=0.00007)
    assert not early.by_flips
    assert early.decided
    assert not replace(contrast, limit=nan).decided  # between two looks


def with_gaps(draw: np.random.Generator) -> list[Contrast]:
    """Eight seeds of two arms and four of the others, without an effect: flips and pooled error."""
    wide = make_wide(3 + draw.normal(0, 0.01, (8, 4)) + draw.normal(0, 0.05, (8, 1)))
    wide.iloc[4:, 2:] = nan
    family = [
        measured(Contrast(0, {}, f"{arm} against {other}", {arm: 1.0, other: -1.0}), wide, fit, ())
        for fit in [fit_blocks(wide)]
        for arm, other in combinations(FOUR, 2)
    ]
    return list(adjust(family))


def test_two_tests_that_decide_share_the_error() -> None:
    found = with_gaps(np.random.default_rng(0))
    assert {each.decided_by for each in found} == {"flips", "pooled"}
    assert {each.limit for each in found} == {0.025}
    assert {each.limit for each in asked({}, seeds=range(8)).every} == {0.05}


@pytest.mark.slow
def test_flips_and_pooled_error_together_raise_one_false_alarm_in_twenty_studies() -> None:
    draws = (np.random.default_rng([18, study]) for study in range(1500))
    alarms = sum(any(each.decided for each in with_gaps(draw)) for draw in draws)
    assert alarms / 1500 < 0.064  # 5 %, and two and a half standard errors


def test_seeds_are_counted_for_the_stated_effect_and_not_the_seen() -> None:
    near, far = (asked({}, effect={"prism": each}).rows[0] for each in (-0.001, -0.1))
    assert near.seeds_needed == far.seeds_needed is not None


@pytest.mark.slow
def test_a_study_without_effects_decides_something_in_five_percent() -> None:
    """The whole path, with three seeds and with seven."""
    for n in (3, 7):
        alarms = 0
        for study in range(200):
            draw = np.random.default_rng([n, study])
            wide = make_wide(3 + draw.normal(0, 0.01, (n, 4)) + draw.normal(0, 0.05, (n, 1)))
            family = [
                measured(Contrast(0, {}, name, weights), wide, fit_blocks(wide), ())
                for name, weights in (
                    ("a", {"prism": 1.0, "uniform": -1.0}),
                    ("b", {"reversed": 1.0, "uniform": -1.0}),
                    ("c", {"prism": 1.0, "reversed": -1.0}),
                    ("line", LINE),
                )
            ]
            alarms += any(each.decided for each in adjust(family))
        assert alarms / 200 < 0.09  # 5 %, and two and a half standard errors


def make_wide(values: np.ndarray) -> Any:
    import pandas as pd

    return pd.DataFrame(values, columns=list(FOUR))


# -- the study that is committed -------------------------------------------------------------------

# Computed independently, by other code: mean, 95 % interval, sign-flip p.
KNOWN = {
    "prism against uniform": (-0.0190, -0.0240, -0.0139, 0.008),
    "order": (-0.0226, -0.0355, -0.0097, 0.008),
    "prism-against-two": (-0.0077, -0.0198, 0.0044, 0.19),
    "reversed-against-two": (0.0150, 0.0011, 0.0288, 0.039),
    "line": (-0.0006, -0.0088, 0.0076, 0.86),
}


def test_the_contrasts_of_the_nano_study() -> None:
    collected = read_collected(NANO)
    more = ContrastFacts(name="reversed-against-two", weights={"reversed": 1, "bracketing-2": -1})
    facts = collected.facts.model_copy(update={"contrasts": (*collected.facts.contrasts, more)})
    found = {each.name: each for each in compare(replace(collected, facts=facts)).every}
    for name, (mean, low, high, p) in KNOWN.items():
        test = found[name].difference
        assert test is not None
        assert (test.mean, test.low, test.high) == pytest.approx((mean, low, high), abs=6e-5)
        assert test.p == pytest.approx(p, rel=0.03)
    pooled = found["prism against uniform"].pooled
    assert pooled is not None
    assert (pooled.sd, pooled.difference_sd) == pytest.approx((0.0097, 0.0137), abs=5e-5)
    assert pooled.freedom == 21
    assert (pooled.low, pooled.high) == pytest.approx((-0.0290, -0.0089), abs=6e-5)


def test_what_the_nano_study_decides() -> None:
    found = {each.name: each.decided for each in compare(read_collected(NANO)).every}
    assert found == {
        "prism against uniform": True,
        "reversed against uniform": False,
        "bracketing-2 against uniform": False,
        "order": True,
        "number": False,
        "prism-against-two": False,
        "line": False,
    }


def test_the_diagnostic_of_the_nano_study_by_template() -> None:
    prism = compare(read_collected(NANO), {"prism"}).rows[0]
    (pairs,) = [each.items for each in prism.benchmarks if each.task == "diagnostic_pairs"]
    assert pairs is not None
    assert pairs.p == pytest.approx(0.07, abs=0.005)
    assert pairs.clustered is not None
    assert (pairs.clustered.n, pairs.clustered.p) == (24, pytest.approx(0.44, abs=0.005))
