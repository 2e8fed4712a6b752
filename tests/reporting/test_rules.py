"""Rules of claims on drawn studies whose truth is known: those that only an ablation can answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from prism_transformer.reporting.claims import Result, judge_claims
from prism_transformer.study.collected import Collected, LooksFacts, without_rates
from tests.reporting.studies import PAIRS, at_scale, drawn, renamed, views_of

LOW: dict[str, Any] = {"noise": 0.0003, "tasks": {}}
CONTROLS = {
    "uniform": "12x12", "prism": "3x2 6x2 8x2 12x6", "reversed": "12x6 8x2 6x2 3x2",
    "eight": "8x12", "tiled": "3x2 6x2 8x2 12x6",
}  # fmt: skip


Judge = Callable[..., dict[str, Result]]


@pytest.fixture
def judged(tmp_path: Path) -> Judge:
    def judge(*studies: Collected) -> dict[str, Result]:
        views = views_of(tmp_path / uuid4().hex, *studies)
        return {result.claim.key: result for result in judge_claims(views)}

    return judge


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


def swept(losses: Mapping[str, Sequence[float]], scale: str | None = "small") -> Collected:
    """Final losses by arm at three learning rates, less 3.3."""
    points = [{"optim.lr": rate} for rate in (3e-4, 6e-4, 1.2e-3)]
    arms = {name: CONTROLS[name] for name in losses}
    study = at_scale("small", arms=arms, points=points, **LOW)
    table = study.table
    draw = np.random.default_rng(0)
    for place in table.index[table["metric"] == "final_val_loss"]:
        arm, point = table.loc[place, "arm"], int(table.loc[place, "point"])
        table.loc[place, "value"] = 3.3 + losses[arm][point] + draw.normal(0, 0.0005)
    return renamed(study, scale=scale)


def test_each_arm_at_its_own_learning_rate(judged: Judge) -> None:
    """At one rate Prism is ahead; at its own, a uniform arm is."""
    fair = {"uniform": (0.05, 0.03, 0.04), "prism": (0.02, 0.01, 0.03), "eight": (0.04, 0.02, 0.06)}
    assert judged(swept(fair))["own-rates"].verdict == "supported"
    late = fair | {"uniform": (0.05, 0.0, 0.04), "prism": (0.02, 0.03, 0.04)}
    (one,) = judged(swept(late))["own-rates"].evidence
    assert "prism at 0.0003" in one.words  # the first of three rates
    assert one.why_not == "a best rate is at the edge of the grid"
    behind = fair | {"uniform": (0.05, 0.0, 0.04)}
    found = judged(swept(behind))["own-rates"]
    assert found.verdict == "contradicted"
    assert "prism at 0.0006 minus uniform at 0.0006" in found.deciding[0].words
    assert judged(swept(fair, scale=None))["own-rates"].evidence[0].why_not == "another scale"


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


def test_a_spread_that_contracts(judged: Judge) -> None:
    """Eight seeds whose gaps are far apart at 1 billion tokens and near each other at the end."""
    study = at_scale("large", seeds=range(8), noise=0.0005, tasks={})
    table, draw = study.table, np.random.default_rng(5)
    prism = (table["arm"] == "prism") & (table["metric"] == "val_loss")
    for seed in range(8):
        shift = draw.normal(0, 0.02)
        mine = prism & (table["seed"] == seed)
        early = mine & (table["step"].astype(float) * 524_288 < 5e9)
        table.loc[early, "value"] += shift
    (one,) = judged(study)["spread"].evidence
    assert one.verdict == "supported"
    (one,) = judged(at_scale("large", noise=0.0005, tasks={}))["spread"].evidence
    assert one.verdict == "could not be seen"  # three seeds, as the paper has


def test_a_look_before_the_last_decides_no_claim(judged: Judge) -> None:
    study = at_scale("small", seeds=range(4), **LOW)
    looks = LooksFacts(seeds=(4, 8), spending="pocock")
    (one,) = judged(renamed(study, looks=looks))["lower-loss"].evidence
    assert one.why_not == "a look before the last"
