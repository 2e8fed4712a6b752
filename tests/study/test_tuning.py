from __future__ import annotations

from math import inf, isnan, log2

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from prism_transformer.core.errors import InputError
from prism_transformer.study.tuning import (
    BestRate,
    Noise,
    around_best,
    best_rate,
    extended,
    pooled_noise,
)

RATES = [4e-3, 8e-3, 1.6e-2, 3.2e-2]
Array = npt.NDArray[np.float64]


def parabola(rate: float, best: float, lowest: float = 3.0, curve: float = 0.02) -> float:
    return lowest + curve * log2(rate / best) ** 2


def drawn(draw: np.random.Generator, best: float, n_seeds: int, sd: float) -> Array:
    """Losses of an arm: a parabola, what seeds share, and the noise of runs."""
    seeds = draw.normal(size=(n_seeds, 1)) * 0.05  # shared by the rates: moves no vertex
    noise = draw.normal(size=(n_seeds, len(RATES))) * sd
    return np.array([[parabola(rate, best) for rate in RATES]]) + seeds + noise


@pytest.mark.parametrize("truth", [6.5e-3, 8e-3, 1.1e-2, 1.6e-2, 2.1e-2])
def test_the_vertex_of_a_parabola_is_found(truth: float) -> None:
    found = best_rate(RATES, [[parabola(rate, truth) for rate in RATES]] * 2)
    assert found.rate == pytest.approx(truth, rel=0.04)  # two digits
    assert found.loss == pytest.approx(3.0)
    assert found.edge == ""
    assert (found.low, found.high) == (pytest.approx(truth), pytest.approx(truth))


def test_against_numpys_fit_of_three_points() -> None:
    losses = drawn(np.random.default_rng(1), 1.2e-2, 3, 0.003)
    found, means = best_rate(RATES, losses), losses.mean(0)
    best = int(np.argmin(means))
    x, y = np.log2(RATES[best - 1 : best + 2]), means[best - 1 : best + 2]
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
    assert best_rate(RATES, [[parabola(rate, truth) for rate in RATES]]).edge == edge


def test_a_grid_is_extended_at_its_edge() -> None:
    assert extended(RATES, "high") == [*RATES, 6.4e-2]
    assert extended(RATES, "low") == [2e-3, *RATES]
    assert extended(RATES, "") == RATES


@pytest.mark.parametrize("truth", [3e-4, 6e-3, 0.12])
def test_extending_comes_to_the_best_rate_from_any_grid(truth: float) -> None:
    rates, added = RATES, 0
    while (found := best_rate(rates, [[parabola(rate, truth) for rate in rates]])).edge:
        rates, added = extended(rates, found.edge), added + 1
    assert found.rate == pytest.approx(truth, rel=0.04)
    assert added == {3e-4: 5, 6e-3: 0, 0.12: 3}[truth]  # one beyond it, and no more


def test_a_rate_that_diverged_is_a_bound() -> None:
    found = best_rate(RATES, [[3.2, 3.1, 3.0, inf], [3.2, 3.1, 3.0, 3.05]])
    assert (found.rate, found.edge, found.loss) == (1.6e-2, "", 3.0)
    assert found.means[-1] == inf
    assert found.at_best([[3.2, 3.1, 3.0, inf]]) == pytest.approx([3.0])
    assert isnan(found.low)
    assert around_best([[3.2, 3.1, 3.0, inf]]) is None
    assert best_rate(RATES, [[inf] * 4]).edge == "low"


def test_the_interval_has_what_a_t_test_of_the_slope_does_not_reject() -> None:
    losses = drawn(np.random.default_rng(2), 1.2e-2, 3, 0.002)
    noise = Noise(0.0025, 7)
    found = best_rate(RATES, losses, noise)
    best = int(np.argmin(losses.mean(0)))
    x, means = np.log2(RATES[best - 1 : best + 2]), losses.mean(0)[best - 1 : best + 2]

    def rejected(at: float) -> bool:
        """By the slope of Lagrange's polynomials there."""
        weights = np.array(
            [np.polyval(np.polyder(np.polyfit(x, unit, 2)), at) for unit in np.eye(3)]
        )
        error = noise.sd * np.linalg.norm(weights) / np.sqrt(3)
        return bool(abs(weights @ means) / error > stats.t.ppf(0.975, noise.freedom))

    kept = [at for at in np.linspace(x[0] - 1, x[2] + 1, 2001) if not rejected(at)]
    assert (log2(found.low), log2(found.high)) == pytest.approx((kept[0], kept[-1]), abs=0.003)
    flat = best_rate(RATES, losses, Noise(1.0, 7))
    assert (flat.low, flat.high) == (0, inf)


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
        found: BestRate = best_rate(RATES, tables[0], pooled_noise(near))
        covered += found.low <= truth <= found.high
        wide += found.high == inf
    assert covered / studies == pytest.approx(0.95, abs=0.025)
    assert wide / studies < 0.1


def test_one_seed_has_no_interval() -> None:
    assert isnan(best_rate(RATES, [[parabola(rate, 8e-3) for rate in RATES]]).low)


def test_shapes_are_checked() -> None:
    with pytest.raises(InputError, match="ascending"):
        best_rate(RATES[::-1], [[1.0] * 4])
    with pytest.raises(InputError, match="do not fit"):
        best_rate(RATES, [[1.0] * 3])
