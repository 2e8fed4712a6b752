"""Arms at their own best rates, from sweeps and tunings, against a computation of its own."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log2
from typing import Any

import numpy as np
import pytest

from prism_transformer.study.collected import LEARNING_RATE, Collected, RateFacts, TuningFacts
from prism_transformer.study.compare import compare
from prism_transformer.study.envelope import AT_BEST, envelopes
from prism_transformer.study.sentences import answer, remarks, sentences
from tests.study.frames import make_collected

RATES = (1e-3, 2e-3, 4e-3, 8e-3)
ARMS = {"uniform": "8x8", "prism": "2x2 4x2 8x4", "reversed": "8x4 4x2 2x2"}
BEST = {"uniform": 2.2e-3, "prism": 4.5e-3, "reversed": 3e-3}
LOWEST = {"uniform": 3.5, "prism": 3.48, "reversed": 3.51}
SEEDS = (0, 1, 2, 3)


def swept(rates: tuple[float, ...] = RATES, best: dict[str, float] | None = None) -> Collected:
    """Losses on parabolas about each arm's best rate, with noise; the sweep is not in order."""
    points: list[dict[str, Any]] = [{LEARNING_RATE: rate} for rate in rates[::-1]]
    collected = make_collected(arms=ARMS, seeds=SEEDS, points=points, tasks={})
    table = collected.table.copy()
    draw, best = np.random.default_rng(0), best or BEST
    for place in table.index[table["metric"] == "final_val_loss"]:
        row = table.loc[place]
        away = log2(points[row["point"]][LEARNING_RATE] / best[row["arm"]])
        noise = 0.02 * int(row["seed"]) + draw.normal(0, 0.001)
        table.loc[place, "value"] = LOWEST[row["arm"]] + 0.02 * away**2 + noise
    return replace(collected, table=table)


def losses(collected: Collected, arm: str) -> np.ndarray:
    """Seeds by ascending rates."""
    n = len(collected.points)
    return np.column_stack([collected.final_loss(n - 1 - at)[arm] for at in range(n)])


def lowest(table: np.ndarray) -> tuple[float, np.ndarray]:
    """The vertex by numpy's fit, and each seed's own parabola there."""
    best = int(np.argmin(table.mean(0)))
    near = slice(best - 1, best + 2)
    x = np.log2(RATES[near])
    vertex = np.poly1d(np.polyfit(x, table.mean(0)[near], 2)).deriv().roots[0]
    return 2**vertex, np.array([np.polyval(np.polyfit(x, row[near], 2), vertex) for row in table])


def test_best_against_best_is_that_of_the_parabolas_seed_by_seed() -> None:
    collected = swept()
    comparison = compare(collected)
    (envelope,) = comparison.envelopes
    found = {each.arm: lowest(losses(collected, each.arm)) for each in envelope.arms}
    for each in envelope.arms:
        assert each.best is not None
        assert each.best.rate == pytest.approx(found[each.arm][0], rel=0.05)
        assert each.best.low < BEST[each.arm] < each.best.high
    named = {each.name: each for each in envelope.contrasts}
    prism = named["prism against uniform"]
    assert prism.values == {LEARNING_RATE: AT_BEST}
    assert prism.difference is not None
    by_hand = found["prism"][1] - found["uniform"][1]
    assert prism.difference.differences == pytest.approx(by_hand)
    assert prism.difference.mean == pytest.approx(-0.02, abs=0.003)
    assert prism.comparisons == 3  # adjusted among themselves: two arms, and prism less reversed
    told = "\n".join(sentences(comparison))
    assert "optim.lr=each arm's best, prism against uniform" in told
    assert "Best learning rates: uniform 0.0022 (95 % 0.002" in told
    assert "tuned for none" not in told
    assert any(
        " at each arm's best optim.lr" in line for line in answer(collected.facts, comparison)
    )


def test_an_edge_is_no_best_and_says_so() -> None:
    comparison = compare(swept(RATES[:3], BEST | {"prism": 9e-3, "reversed": 2.4e-3}))
    (envelope,) = comparison.envelopes
    assert list(envelope.at_edge) == ["prism"]
    named = {each.name: each for each in envelope.contrasts}
    assert named["prism against uniform"].difference is None
    assert named["reversed against uniform"].difference is not None
    assert any("prism is best at the highest rate tried, 0.004" in e for e in remarks(comparison))
    row = {row["arm"]: row for row in envelope.table.rows}["prism"]
    assert row["best rate"] is None


def test_a_rate_at_which_a_run_diverged_is_worse_than_all_others() -> None:
    collected = swept()
    lost = [
        run.model_copy(update={"state": "failed", "failure": "stopped before the update"})
        if (run.arm, run.point, run.seed) == ("prism", 0, 1)
        else run
        for run in collected.facts.runs
    ]
    rows = collected.table
    gone = (rows["arm"] == "prism") & (rows["point"] == 0) & (rows["seed"] == 1)
    facts = collected.facts.model_copy(update={"runs": tuple(lost)})
    (envelope,) = envelopes(Collected(facts, rows[~gone], collected.items), 0.05)
    prism = {each.arm: each for each in envelope.arms}["prism"]
    assert prism.losses[1][-1] == inf
    assert prism.best is not None
    assert (prism.best.rate, prism.best.edge) == (4e-3, "")


def test_a_tuned_study_says_which_rates_and_on_which_seeds() -> None:
    collected = make_collected(arms=ARMS, tasks={})
    curves = swept()
    arms = tuple(
        RateFacts(
            arm=arm, rates=RATES, best=BEST[arm.name],
            losses=tuple(map(tuple, losses(curves, arm.name))),
        )
        for arm in collected.facts.arms
    )  # fmt: skip
    tuning = TuningFacts(rates=RATES, seeds=(7, 8), recipe=collected.facts.recipe, arms=arms)
    tuned = replace(collected, facts=collected.facts.model_copy(update={"tuning": tuning}))
    comparison = compare(tuned)
    (envelope,) = comparison.envelopes
    assert envelope.tuned
    assert not envelope.contrasts
    (told,) = remarks(comparison)
    assert "found with seeds 7, 8, which the comparison does not have: uniform 0.0022" in told
    assert not any("tuned for none" in line for line in answer(tuned.facts, comparison))
    assert compare(collected).one_rate == collected.facts.recipe.optim.lr
    assert comparison.to_json()["envelopes"][0]["arms"][0]["best"]["rate"] == 2.2e-3


def test_two_rates_are_no_curve() -> None:
    points = [{LEARNING_RATE: rate} for rate in RATES[:2]]
    assert not envelopes(make_collected(points=points, tasks={}), 0.05)
