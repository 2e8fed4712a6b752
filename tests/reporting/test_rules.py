"""Rules of claims on drawn studies whose truth is known: those that only an ablation can answer."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats

from prism_transformer.study.collected import Collected, LooksFacts, without_rates
from prism_transformer.study.compare import compare
from tests.reporting.studies import PAIRS, Judge, at_scale, drawn, renamed

LOW: dict[str, Any] = {"noise": 0.0003, "tasks": {}}
CONTROLS = {
    "uniform": "12x12", "prism": "3x2 6x2 8x2 12x6", "reversed": "12x6 8x2 6x2 3x2",
    "eight": "8x12", "tiled": "3x2 6x2 8x2 12x6",
}  # fmt: skip


def tiled(study: Collected) -> Collected:
    arms = tuple(
        arm.model_copy(update={"changes": {"model.rope_frequencies": "tiled"}})
        if arm.name == "tiled"
        else arm
        for arm in study.facts.arms
    )
    return renamed(study, arms=arms)


@pytest.mark.parametrize(
    ("prism", "expected"), [(-0.02, "supported"), (-0.008, "contradicted"), (0.0, "contradicted")]
)
def test_order_and_number(judged: Judge, prism: float, expected: str) -> None:
    """The line of uniforms at 8.83 heads is 0.0095 lower; the reverse 0.005 higher than -0.01."""
    effect = {"prism": prism, "reversed": -0.01, "eight": -0.012, "tiled": prism / 2}
    found = judged(tiled(at_scale("small", arms=CONTROLS, effect=effect, **LOW)))
    assert found["number"].verdict == expected
    assert found["order"].verdict == expected
    assert "from eight to uniform at 8.83 heads" in found["number"].deciding[0].words
    assert found["rotary"].verdict != "not measured"
    if prism == -0.02:
        assert found["rotary"].verdict == "supported"


def test_configs_of_table_5_are_level(judged: Judge) -> None:
    arms = PAIRS["small"] | {
        "config-1": "3x1 6x1 8x1 12x9", "config-2": "6x2 8x2 12x8", "config-3": "4x2 8x2 12x8",
        "config-4": "6x4 12x8", "config-6": "3x2 6x2 12x8",
    }  # fmt: skip
    level = at_scale("small", arms=arms, seeds=range(4), **LOW)
    assert judged(level)["level-rates"].verdict == "supported"
    slow = at_scale("small", arms=arms, speed=0.95, seeds=range(4), **LOW)
    assert judged(slow)["level-rates"].verdict == "contradicted"
    four = {name: heads for name, heads in arms.items() if name != "config-6"}
    some = judged(at_scale("small", arms=four, **LOW))["level-rates"]
    assert some.evidence[0].why_not == "not all arms or tasks of the claim"


def test_another_precision_decides_no_claim_of_speed(judged: Judge) -> None:
    found = judged(at_scale("small", precision="fp32", **LOW))
    for key in ("rate", "inference"):
        assert found[key].evidence[0].why_not == "another precision"
    assert found["lower-loss"].deciding


def test_rates_that_compare_nothing_judge_nothing(judged: Judge) -> None:
    study = at_scale("small", speed=0.9, **LOW)
    assert judged(study)["rate"].verdict == "contradicted"
    found = judged(renamed(study, runs=without_rates(study.facts).runs))
    assert not found["rate"].evidence


@pytest.mark.parametrize(("others", "expected"), [(0.004, "supported"), (-0.006, "contradicted")])
def test_the_optimum_of_a_grid(judged: Judge, others: float, expected: str) -> None:
    found = []
    for scale, more in (
        ("medium", ("4x4 16x20", "8x3 16x21")),
        ("large", ("6x3 16x21", "8x3 16x21")),
    ):
        arms = PAIRS[scale] | {"a": more[0], "b": more[1]}
        effect = {"prism": -0.01, "a": -0.01 + others, "b": -0.005}
        found.append(at_scale(scale, arms=arms, effect=effect, **LOW))
    assert judged(*found)["grid"].verdict == expected
    assert "grid" not in {key for key, one in judged(drawn()).items() if one.evidence}


def test_wikitext(judged: Judge) -> None:
    """Perplexity follows the drawn loss."""
    tasks = {"wikitext": "word_perplexity"}
    better = [at_scale(s, tasks=tasks, effect=-0.3, noise=0.0003) for s in PAIRS]
    assert judged(*better)["wikitext"].verdict == "supported"
    worse = at_scale("small", tasks=tasks, effect=0.3, noise=0.0003)
    assert judged(worse)["wikitext"].verdict == "contradicted"


def test_a_look_before_the_last_decides_no_claim(judged: Judge) -> None:
    study = at_scale("small", seeds=range(4), **LOW)
    looks = LooksFacts(seeds=(4, 8), spending="pocock")
    (one,) = judged(renamed(study, looks=looks))["lower-loss"].evidence
    assert one.why_not == "a look before the last"


def test_looks_hold_for_claims_of_several_studies(judged: Judge) -> None:
    looks = LooksFacts(seeds=(4, 8), spending="pocock")
    small = renamed(at_scale("small", seeds=range(4), **LOW), looks=looks)
    found = judged(small, at_scale("large", seeds=range(4), **LOW))["scale"]
    assert found.verdict == "not measured"
    assert {one.why_not for one in found.evidence} == {"a look before the last"}


def agreeing() -> Collected:
    """Two seeds whose differences of Prism happen to agree, among arms that differ by far more."""
    study = at_scale("small", arms=CONTROLS, effect=0.0, noise=0.03, seeds=(0, 1), tasks={})
    table = study.table
    final = table["metric"] == "final_val_loss"
    for seed, gap in ((0, 0.0065), (1, 0.0077)):
        base = table.loc[final & (table["arm"] == "uniform") & (table["seed"] == seed), "value"]
        mine = final & (table["arm"] == "prism") & (table["seed"] == seed)
        table.loc[mine, "value"] = float(base.iloc[0]) + gap
    return study


def test_two_pairs_that_agree_are_no_surer_than_all_arms(judged: Judge) -> None:
    """As the study's own comparison has it, whose least effect is by the pooled error."""
    study = agreeing()
    (one,) = judged(study)["lower-loss"].evidence
    assert one.verdict == "could not be seen"

    wide = study.final_loss().to_numpy()
    rest = wide - wide.mean(0) - wide.mean(1, keepdims=True) + wide.mean()
    sd = sqrt((rest**2).sum() / 4)  # of a run: 2 seeds less 1, times 5 arms less 1
    critical, shift = stats.t.ppf(0.975, 1), 0.0144 / (sd * sqrt(2) / sqrt(2))
    power = stats.nct.sf(critical, 1, shift) + stats.nct.cdf(-critical, 1, shift)
    assert f"power {power:.2f} for 0.014" in one.words
    row = next(row for row in compare(study).rows if row.arm.name == "prism")
    assert row.pooled is not None
    assert row.pooled.sd == pytest.approx(sd)
    ends = " to ".join(
        f"{end:+.4f}".replace("-", "\u2212") for end in (row.pooled.low, row.pooled.high)
    )
    assert f"by the pooled error {ends}" in one.words


def test_a_difference_that_only_the_pairs_show_supports_nothing(judged: Judge) -> None:
    study = agreeing()
    prism = (study.table["metric"] == "final_val_loss") & (study.table["arm"] == "prism")
    for shift, seen in ((0.0171, "could not be seen"), (0.5, "supported")):
        less = study.table.copy()
        less.loc[prism, "value"] -= shift
        (one,) = judged(Collected(study.facts, less, study.items))["lower-loss"].evidence
        low, high = np.array([0.0065, 0.0077]) - shift
        mean, half = (low + high) / 2, stats.t.ppf(0.975, 1) * 0.0006
        assert mean + half < 0  # by the pairs alone it would be supported
        assert one.verdict == seen
