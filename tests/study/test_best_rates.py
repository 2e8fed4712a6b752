"""The best rate of one arm against other fits; arms at their best rates, swept and tuned."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, isnan, log2
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from prism_transformer.core.errors import InputError
from prism_transformer.study.best_rates import (
    AT_BEST,
    BestRate,
    Noise,
    around_best,
    best_rate,
    envelopes,
    extended,
    pooled_noise,
)
from prism_transformer.study.collected import LEARNING_RATE, Collected, RateFacts, TuningFacts
from prism_transformer.study.compare import compare
from prism_transformer.study.sentences import answer, remarks, sentences
from tests.study.frames import make_collected

Array = npt.NDArray[np.float64]

GRID = [4e-3, 8e-3, 1.6e-2, 3.2e-2]

RATES = (1e-3, 2e-3, 4e-3, 8e-3)
ARMS = {"uniform": "8x8", "prism": "2x2 4x2 8x4", "reversed": "8x4 4x2 2x2"}
BEST = {"uniform": 2.2e-3, "prism": 4.5e-3, "reversed": 3e-3}
LOWEST = {"uniform": 3.5, "prism": 3.48, "reversed": 3.51}
SEEDS = (0, 1, 2, 3)


# -- one arm --------------------------------------------------------------------------------------


def parabola(rate: float, best: float, lowest: float = 3.0, curve: float = 0.02) -> float:
    return lowest + curve * log2(rate / best) ** 2


def drawn(draw: np.random.Generator, best: float, n_seeds: int, sd: float) -> Array:
    """Losses of an arm: a parabola, what seeds share, and the noise of runs."""
    seeds = draw.normal(size=(n_seeds, 1)) * 0.05  # shared by the rates: moves no vertex
    noise = draw.normal(size=(n_seeds, len(GRID))) * sd
    return np.array([[parabola(rate, best) for rate in GRID]]) + seeds + noise


@pytest.mark.parametrize("truth", [6.5e-3, 8e-3, 1.1e-2, 1.6e-2, 2.1e-2])
def test_the_vertex_of_a_parabola_is_found(truth: float) -> None:
    found = best_rate(GRID, [[parabola(rate, truth) for rate in GRID]] * 2)
    assert found.rate == pytest.approx(truth, rel=0.04)  # two digits
    assert found.loss == pytest.approx(3.0)
    assert found.edge == ""
    # Without noise nothing lies between the vertex and the lowest rate that was tried.
    tried = min(GRID, key=lambda rate: abs(log2(rate / truth)))
    ends = min(truth, tried), max(truth, tried)
    assert (found.low, found.high) == pytest.approx(ends, rel=1e-3)


def test_against_numpys_fit_of_three_points() -> None:
    losses = drawn(np.random.default_rng(1), 1.2e-2, 3, 0.003)
    found, means = best_rate(GRID, losses), losses.mean(0)
    best = int(np.argmin(means))
    x, y = np.log2(GRID[best - 1 : best + 2]), means[best - 1 : best + 2]
    fit = np.poly1d(np.polyfit(x, y, 2))
    vertex = fit.deriv().roots[0]
    assert found.rate == pytest.approx(2**vertex, rel=0.05)
    assert found.loss == pytest.approx(fit(vertex), abs=1e-9)
    # Seed by seed, at the rate of all: what each one's own parabola has there.
    own = [np.poly1d(np.polyfit(x, row[best - 1 : best + 2], 2))(vertex) for row in losses]
    assert found.at_best(losses) == pytest.approx(np.array(own))
    assert sum(found.weights) == pytest.approx(1)


@pytest.mark.parametrize(("truth", "edge"), [(1e-3, "low"), (3e-3, "low"), (4e-2, "high")])
def test_an_edge_is_never_taken(truth: float, edge: str) -> None:
    assert best_rate(GRID, [[parabola(rate, truth) for rate in GRID]]).edge == edge


def test_a_grid_is_extended_at_its_edge() -> None:
    assert extended(GRID, "high") == [*GRID, 6.4e-2]
    assert extended(GRID, "low") == [2e-3, *GRID]
    assert extended(GRID, "") == GRID


@pytest.mark.parametrize("truth", [3e-4, 6e-3, 0.12])
def test_extending_comes_to_the_best_rate_from_any_grid(truth: float) -> None:
    rates, added = GRID, 0
    while (found := best_rate(rates, [[parabola(rate, truth) for rate in rates]])).edge:
        rates, added = extended(rates, found.edge), added + 1
    assert found.rate == pytest.approx(truth, rel=0.04)
    assert added == {3e-4: 5, 6e-3: 0, 0.12: 3}[truth]  # one beyond it, and no more


def test_a_rate_that_diverged_is_a_bound() -> None:
    found = best_rate(GRID, [[3.2, 3.1, 3.0, inf], [3.2, 3.1, 3.0, 3.05]])
    assert (found.rate, found.edge, found.loss) == (1.6e-2, "", 3.0)
    assert found.means[-1] == inf
    assert found.at_best([[3.2, 3.1, 3.0, inf]]) == pytest.approx([3.0])
    assert isnan(found.low)
    assert around_best([[3.2, 3.1, 3.0, inf]]) is None
    assert best_rate(GRID, [[inf] * 4]).edge == "low"


def test_the_interval_has_what_a_t_test_of_the_slope_does_not_reject() -> None:
    losses = drawn(np.random.default_rng(2), 1.2e-2, 3, 0.002)
    noise = Noise(0.0025, 7)
    best = int(np.argmin(losses.mean(0)))
    near = slice(best - 1, best + 2)  # three rates: nothing that a cubic could go through
    found = best_rate(GRID[near], losses[:, near], noise)
    x, means = np.log2(GRID[near]), losses.mean(0)[near]

    def rejected(at: float) -> bool:
        """By the slope of Lagrange's polynomials there."""
        weights = np.array(
            [np.polyval(np.polyder(np.polyfit(x, unit, 2)), at) for unit in np.eye(3)]
        )
        error = noise.sd * np.linalg.norm(weights) / np.sqrt(3)
        return bool(abs(weights @ means) / error > stats.t.ppf(0.975, noise.freedom))

    kept = [at for at in np.linspace(x[0] - 1, x[2] + 1, 2001) if not rejected(at)]
    ends = min(kept[0], x[1]), max(kept[-1], x[1])  # the lowest rate that was tried is never out
    assert (log2(found.low), log2(found.high)) == pytest.approx(ends, abs=0.003)
    flat = best_rate(GRID, losses, Noise(1.0, 7))
    assert (flat.low, flat.high) == (0, inf)


STEEP = [3.3500, 3.0896, 3.0565, 3.1576]  # a cubic's lowest point is on the far side of the vertex


def test_the_interval_reaches_to_the_lowest_point_of_a_cubic() -> None:
    cubic = np.poly1d(np.polyfit(np.log2(GRID), STEEP, 3))
    (lowest,) = [at for at in cubic.deriv().roots if cubic.deriv(2)(at) > 0]
    exact = best_rate(GRID, [STEEP, STEEP], Noise(1e-9, 7))
    x = np.log2(GRID[1:])
    vertex = np.poly1d(np.polyfit(x, STEEP[1:], 2)).deriv().roots[0]
    assert lowest < vertex < x[1]
    assert (log2(exact.low), log2(exact.high)) == pytest.approx((lowest, x[1]), abs=0.002)
    assert log2(exact.rate) == pytest.approx(vertex, abs=0.06)  # two digits

    draw, covered, alone = np.random.default_rng(5), 0, 0
    for _ in range(400):
        losses = STEEP + draw.normal(0, 0.004, (3, 4))
        found = best_rate(GRID, losses, Noise(0.004, 1000))
        three = best_rate(GRID[1:], losses[:, 1:], Noise(0.004, 1000))
        covered += log2(found.low) <= lowest <= log2(found.high)
        alone += log2(three.low) <= lowest <= log2(three.high)
    assert covered / 400 >= 0.95
    assert alone / 400 < 0.5  # what the parabola by itself would claim


def test_the_interval_reaches_to_the_foot_of_a_wall() -> None:
    """Losses that fall slowly and climb e^2-fold with each doubling, as the study lr's may."""

    def wall(rate: float) -> float:
        x = log2(rate / 8e-3)
        return 2.444 + 0.632 * exp(-0.076 * x) + 0.0033 * exp(2 * x)

    truth = min(np.geomspace(GRID[0], GRID[-1], 2001), key=wall)
    assert 1.5e-2 < truth < 1.6e-2
    draw, covered, studies = np.random.default_rng(6), 0, 300
    for _ in range(studies):
        losses = [wall(rate) for rate in GRID] + draw.normal(0, 0.01, (3, 4))
        found = best_rate(GRID, losses, Noise(0.01, 18))
        covered += found.low <= truth <= found.high
    assert covered / studies >= 0.95


def test_noise_is_that_of_a_block_design() -> None:
    draw = np.random.default_rng(3)
    tables = [drawn(draw, 1e-2, 4, 0.01)[:, :3] for _ in range(5)]
    found = pooled_noise(tables)
    assert found is not None
    assert found.freedom == 5 * 3 * 2
    squares = 0.0
    for table in tables:  # least squares on seeds and rates
        y, (n, k) = table.ravel(), table.shape
        design = np.hstack((np.repeat(np.eye(n), k, 0), np.tile(np.eye(k), (n, 1))))
        squares += float(np.linalg.lstsq(design, y, rcond=None)[1].sum()) or float(
            ((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2).sum()
        )
    assert found.sd == pytest.approx(np.sqrt(squares / found.freedom))
    assert pooled_noise([tables[0][:1]]) is None


@pytest.mark.parametrize(("arms", "n_seeds"), [(4, 2), (1, 4)])
def test_intervals_cover_the_best_rate_in_95_of_100_studies(arms: int, n_seeds: int) -> None:
    draw, truth, covered, wide = np.random.default_rng(4), 1.1e-2, 0, 0
    studies = 400
    for _ in range(studies):
        tables = [drawn(draw, truth, n_seeds, 0.004) for _ in range(arms)]
        near = [each for table in tables if (each := around_best(table)) is not None]
        found: BestRate = best_rate(GRID, tables[0], pooled_noise(near))
        covered += found.low <= truth <= found.high
        wide += found.high == inf
    assert covered / studies == pytest.approx(0.95, abs=0.025)
    assert wide / studies < 0.1


def test_one_seed_has_no_interval() -> None:
    assert isnan(best_rate(GRID, [[parabola(rate, 8e-3) for rate in GRID]]).low)


def test_shapes_are_checked() -> None:
    with pytest.raises(InputError, match="ascending"):
        best_rate(GRID[::-1], [[1.0] * 4])
    with pytest.raises(InputError, match="do not fit"):
        best_rate(GRID, [[1.0] * 3])


# -- all arms -------------------------------------------------------------------------------------


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
