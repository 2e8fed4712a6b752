from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from prism_transformer.core.errors import InputError
from prism_transformer.schedule import HeadSchedule
from prism_transformer.study.collected import ContrastFacts, FactorialFacts, finite
from prism_transformer.study.compare import compare
from prism_transformer.study.factorial import (
    UNIFORM,
    Fit,
    Prediction,
    design,
    fit,
    hadamard,
    layer_effects,
    levels,
    schedules,
)
from prism_transformer.study.sentences import layers_said, remarks
from prism_transformer.study.statistics import Array, detectable_effect
from tests.study.frames import make_collected

# The 2^(8-4) fraction of resolution IV as it is printed in textbooks, here with counts 1 and 4.
EIGHT = (
    "11111111", "11114444", "11441144", "11444411",
    "14141414", "14144141", "14411441", "14414114",
)  # fmt: skip


# All arms for 8 layers but the one without a wide layer, which studies call uniform.
DESIGN = {name: str(each) for name, each in schedules(8, 1, 4).items() if name != "wide-none"}


def test_eight_layers_are_the_textbook_fraction() -> None:
    swapped = [row.translate(str.maketrans("14", "41")) for row in EIGHT]
    found = {"".join(map(str, each.heads)) for each in schedules(8, 1, 4).values()}
    assert found == {*EIGHT, *swapped}


@pytest.mark.parametrize(("n_layers", "n_arms"), [(4, 8), (8, 16), (12, 24), (24, 48), (32, 64)])
def test_layers_are_orthogonal_to_each_other_and_to_every_pair(n_layers: int, n_arms: int) -> None:
    rows = design(n_layers)
    assert rows.shape == (n_arms, n_layers)
    assert set(np.unique(rows)) == {-1, 1}
    assert len({tuple(row) for row in rows}) == n_arms
    assert np.array_equal(rows.sum(0), np.zeros(n_layers))
    assert np.array_equal(rows.T @ rows, n_arms * np.eye(n_layers))
    pairs = np.array([rows[:, i] * rows[:, j] for i, j in combinations(range(n_layers), 2)])
    assert not (pairs @ rows).any()  # no layer is mixed up with two others acting together


@pytest.mark.parametrize("order", [1, 2, 4, 8, 12, 16, 20, 24, 32, 48])
def test_hadamard_matrices(order: int) -> None:
    matrix = hadamard(order)
    assert matrix is not None
    assert np.array_equal(matrix @ matrix.T, order * np.eye(order))
    assert matrix[0].tolist() == matrix[:, 0].tolist() == [1] * order


@pytest.mark.parametrize("order", [3, 6, 10, 14, 28])
def test_orders_without_a_construction_of_ours(order: int) -> None:
    assert hadamard(order) is None
    assert len(design(order)) > 2 * order  # a larger one is cut


def test_levels_lie_between_the_two_counts() -> None:
    assert levels(HeadSchedule.parse("1 2 4"), 1, 4).tolist() == [1, 0, -1]
    assert levels(HeadSchedule.parse("3 12"), 3, 12).tolist() == [1, -1]


def test_the_fit_equals_least_squares_by_hand_and_finds_what_was_put_in() -> None:
    draw = np.random.default_rng(0)
    rows, truth = design(8), draw.normal(size=8)
    seeds = draw.normal(size=3)
    clean = seeds[:, None] + rows @ truth / 2
    exact = fit(rows, clean + 0)
    assert [each.mean for each in exact.effects] == pytest.approx(truth)
    noisy = clean + draw.normal(size=clean.shape) * 0.1
    found = fit(rows, noisy)
    # Orthogonal: each effect is the mean of arms in which the layer is wide less the others'.
    by_hand = [noisy[:, rows[:, i] > 0].mean() - noisy[:, rows[:, i] < 0].mean() for i in range(8)]
    assert [each.mean for each in found.effects] == pytest.approx(by_hand)
    # Closed form: sd * sqrt(1/24 + 1/24) over 48 runs, 24 on either side.
    assert found.freedom == 30
    assert {round(each.se, 12) for each in found.effects} == {round(found.sd * (2 / 24) ** 0.5, 12)}


def test_intervals_and_lack_of_fit_keep_their_word() -> None:
    """Simulated: 95 % intervals cover, the test of additivity errs in 5 %, and sees interaction."""
    draw, rows = np.random.default_rng(1), design(8)
    truth = np.linspace(-0.02, 0.02, 8)
    covered, errs, sees, rounds = 0, 0, 0, 400
    for _ in range(rounds):
        losses = draw.normal(size=(3, 1)) + rows @ truth / 2 + draw.normal(size=(3, 16)) * 0.01
        found = fit(rows, losses)
        covered += sum(e.low < t < e.high for e, t in zip(found.effects, truth, strict=True))
        errs += found.p < 0.05
        sees += fit(rows, losses + 0.02 * rows[:, 0] * rows[:, 1]).p < 0.05
    assert 0.935 < covered / (8 * rounds) < 0.965
    assert 0.02 < errs / rounds < 0.08
    assert sees / rounds > 0.9


def held(found: Fit, at: Array, losses: Array) -> Prediction:
    """One schedule outside of the design."""
    return found.predict(np.zeros(16), np.ones(1), at[None], losses.mean(keepdims=True))


def test_contrasts_within_the_design_and_without_have_their_own_error() -> None:
    """Against the spread of what is simulated: number is of the design, order is not."""
    draw, rows = np.random.default_rng(6), design(8)
    order = np.array(
        [levels(HeadSchedule.parse(each), 1, 4) for each in ("1x2 2x2 4x4", "4x4 2x2 1x2")]
    )
    alike = np.abs(rows.mean(1)) == 1
    number = np.where(alike, 1 / 2, -1 / 14)
    truth, left, errors = np.linspace(-0.02, 0.02, 8), [], []
    for _ in range(800):
        seeds = draw.normal(size=(3, 1))
        found = fit(rows, seeds + rows @ truth / 2 + draw.normal(size=(3, 16)) * 0.01)
        own = seeds + order @ truth / 2 + draw.normal(size=(3, 2)) * 0.01
        told = (
            found.predict(number, np.zeros(0), np.zeros((0, 8)), np.zeros(0)),
            found.predict(np.zeros(16), np.array([1.0, -1.0]), order, own.mean(0)),
        )
        left.append([each.residual for each in told])
        errors.append(
            [(each.high - each.low) / 2 / stats.t.ppf(0.975, found.freedom) for each in told]
        )
    assert told[0].predicted == pytest.approx(0)  # both kinds have half of their layers wide
    opposite = np.where(rows.mean(1) == 1, 1.0, 0) - (rows.mean(1) == -1)
    same = found.predict(opposite, np.zeros(0), np.zeros((0, 8)), np.zeros(0))
    assert same.predicted == pytest.approx(found.halves.sum() * 2)
    assert same.residual == pytest.approx(0)  # whatever was measured
    assert np.std(left, axis=0) == pytest.approx(np.mean(errors, axis=0), rel=0.08)
    assert np.abs(np.mean(left, axis=0)).max() < 0.001


def test_held_out_schedules_are_predicted_by_the_sum_of_their_layers() -> None:
    draw, rows = np.random.default_rng(2), design(8)
    truth, prism = np.linspace(-0.02, 0.02, 8), levels(HeadSchedule.parse("1x2 2x2 4x4"), 1, 4)
    inside, beyond, rounds = 0, 0, 400
    for _ in range(rounds):
        seeds = draw.normal(size=(3, 1))
        found = fit(rows, seeds + rows @ truth / 2 + draw.normal(size=(3, 16)) * 0.01)
        own = seeds[:, 0] + prism @ truth / 2 + draw.normal(size=3) * 0.01
        told = held(found, prism, own)
        inside += told.low < 0 < told.high
        beyond += held(found, prism, own - 0.04).p < 0.05
        assert told.residual == pytest.approx(told.observed - told.predicted)
    assert 0.92 < inside / rounds < 0.98
    assert beyond / rounds > 0.9


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(InputError, match="cannot tell"):
        fit(design(8)[:9], np.zeros((2, 9)))
    with pytest.raises(InputError, match="wide heads are the fewer"):
        schedules(8, 4, 4)


def test_one_seed_has_the_error_of_the_fit_alone() -> None:
    rows = design(8)
    found = fit(rows, np.random.default_rng(3).normal(size=(1, 16)))
    assert found.freedom == 7
    assert np.isnan(found.p)


def test_effects_of_a_collected_study_and_what_it_says_of_them() -> None:
    """From a table of runs to tables, JSON and a sentence."""
    arms = {"uniform": "4x8", **DESIGN, "prism": "1x2 2x2 4x4", "tiled": "1x2 2x2 4x4"}
    worth = {name: -0.08 * HeadSchedule.parse(text).heads.count(1) for name, text in arms.items()}
    collected = make_collected(arms=arms, effect=worth)
    facts = collected.facts
    tiled = facts.arms[-1].model_copy(update={"changes": {"model.rope_frequencies": "tiled"}})
    facts = facts.model_copy(
        update={
            "arms": (*facts.arms[:-1], tiled), "factorial": FactorialFacts(wide=1, narrow=4),
            "contrasts": (
                ContrastFacts(name="prism-against-uniform", weights={"prism": 1, "uniform": -1}),
                ContrastFacts(name="tiling", weights={"tiled": 1, "prism": -1}),
            ),
        }
    )  # fmt: skip
    collected = replace(collected, facts=facts)
    found = layer_effects(collected)
    assert found is not None
    assert found.seeds == (0, 1, 2)
    losses = finite(collected.final_loss())
    for layer, effect in enumerate(found.layers):
        ones = [arm for arm in DESIGN if HeadSchedule.parse(arms[arm]).heads[layer] == 1]
        others = ["uniform", *(arm for arm in DESIGN if arm not in ones)]
        by_hand = losses[ones].to_numpy().mean() - losses[others].to_numpy().mean()
        assert effect.mean == pytest.approx(by_hand)
    # An arm that changes more is no schedule alone; the contrasts of a study join them.
    assert list(found.beyond) == ["prism", "prism-against-uniform", UNIFORM]
    both = found.beyond["prism-against-uniform"]
    assert both.observed == pytest.approx((losses["prism"] - losses["uniform"]).mean())
    assert found.beyond[UNIFORM].observed == pytest.approx(
        losses[["wide-0-1-2-3-4-5-6-7", "uniform"]].to_numpy().mean()
        - losses[[arm for arm in DESIGN if arm != "wide-0-1-2-3-4-5-6-7"]].to_numpy().mean()
    )
    assert len(found.table) == 8
    comparison = compare(collected)
    assert comparison.to_json()["layers"][0]["beyond"]["prism"]["observed"] == pytest.approx(
        losses["prism"].mean()
    )
    assert "A wide head changes the loss in layers 0 (" in remarks(comparison)[0]
    noise = replace(found, layers=tuple(replace(each, adjusted_p=0.3) for each in found.layers))
    seen = detectable_effect(found.freedom + 1, found.layers[0].se * np.sqrt(found.freedom + 1))
    assert layers_said(noise).startswith("Of no layer by itself is it shown that a wide head")
    assert f"asked alone, shows {seen:.4f} or more" in layers_said(noise)
    assert layer_effects(make_collected()) is None


def test_a_seed_that_is_not_complete_in_every_arm_of_the_design_waits() -> None:
    states = {("wide-0-1-2-3", 0, 1): "missing"}
    collected = make_collected(arms={"uniform": "4x8", **DESIGN}, seeds=range(2), states=states)
    facts = collected.facts.model_copy(update={"factorial": FactorialFacts(wide=1, narrow=4)})
    found = layer_effects(replace(collected, facts=facts))
    assert found is not None
    assert found.seeds == (0,)
