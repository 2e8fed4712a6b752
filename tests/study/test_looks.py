from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from prism_transformer.core.errors import InputError
from prism_transformer.study.looks import (
    OBRIEN_FLEMING,
    Spending,
    false_alarms,
    plan_looks,
    spent_by,
)
from prism_transformer.study.multiplicity import max_t

pytestmark = pytest.mark.filterwarnings("error")

# Two-sided 5 % limits in standard errors at K equal looks under these spending functions, as tables
# of group sequential designs print them for the last look of O'Brien-Fleming's and the first of
# Pocock's.
LAST = {2: 1.969, 3: 1.993, 4: 2.014, 5: 2.031}
FIRST = {2: 2.157, 3: 2.279, 4: 2.368, 5: 2.438}


def normal_limits(shares: list[float], spending: Spending) -> list[float]:
    """Limits as p values of correlated normal looks, by scipy's multivariate normal integral."""
    correlation = [[sqrt(min(s, t) / max(s, t)) for s in shares] for t in shares]
    found: list[float] = []
    for k, share in enumerate(shares, start=1):
        law = stats.multivariate_normal(np.zeros(k), np.array(correlation)[:k, :k], seed=0)
        kept = [stats.norm.isf(p / 2) for p in found]

        def excess(z: float, law: Any = law, kept: list[float] = kept, share: float = share) -> Any:
            limits = np.array([*kept, z])
            return 1 - law.cdf(limits, lower_limit=-limits) - spent_by(share, spending)

        found.append(2 * stats.norm.sf(optimize.brentq(excess, 1.5, 6, xtol=1e-6)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_of_many_seeds_limits_are_those_of_the_tables(k: int) -> None:
    seeds = tuple(2000 * each for each in range(1, k + 1))
    first, last = plan_looks(seeds, "pocock")[0], plan_looks(seeds)[-1]
    assert stats.norm.isf(first.limit / 2) == pytest.approx(FIRST[k], abs=0.001)
    assert stats.norm.isf(last.limit / 2) == pytest.approx(LAST[k], abs=0.01)


@pytest.mark.parametrize("spending", ["pocock", OBRIEN_FLEMING])
def test_of_many_seeds_limits_are_those_of_correlated_normal_looks(spending: Spending) -> None:
    expected = normal_limits([0.25, 0.5, 1.0], spending)
    rough = {"pocock": [0.01787, 0.01791, 0.02601], OBRIEN_FLEMING: [0.0000147, 0.003045, 0.0490]}
    assert expected == pytest.approx(rough[spending], rel=0.005)
    found = [look.limit for look in plan_looks((1000, 2000, 4000), spending)]
    assert found == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("spending", ["pocock", OBRIEN_FLEMING])
def test_what_is_spent_grows_to_five_percent(spending: Spending) -> None:
    spent = [spent_by(share, spending) for share in np.linspace(0.05, 1, 20)]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(0.05)
    assert [look.spent for look in plan_looks((8, 16, 32), spending)] == pytest.approx(
        [spent_by(share, spending) for share in (0.25, 0.5, 1)]
    )


def test_limits_at_8_16_and_32_seeds() -> None:
    """Few seeds: between the two bounds that hold whatever the looks have in common."""
    for spending in ("pocock", OBRIEN_FLEMING):
        before = 0.0
        for look in plan_looks((8, 16, 32), spending):
            assert look.spent - before <= look.limit <= look.spent
            before = look.spent
    assert plan_looks((2, 3, 32))[-1].limit <= 0.05  # nothing to speak of was spent before
    assert false_alarms(tuple(range(3, 33))) == pytest.approx(0.27, abs=0.01)


def test_one_look_spends_all() -> None:
    (look,) = plan_looks((5,))
    assert (look.limit, look.spent) == pytest.approx((0.05, 0.05), abs=0.002)
    assert false_alarms((8,)) == pytest.approx(0.05, abs=0.002)
    assert false_alarms(()) == 0
    assert false_alarms((8, 16)) > false_alarms((8,))
    for wrong in ((), (8, 8), (16, 8), (1, 2)):
        with pytest.raises(InputError):
            plan_looks(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(8, 16, 32), (2, 4, 6)])
@pytest.mark.parametrize("spending", ["pocock", OBRIEN_FLEMING])
def test_the_error_spent_over_looks_is_five_percent(
    seeds: tuple[int, ...], spending: Spending
) -> None:
    """Other draws, seed by seed, and t tests of scipy."""
    looks = plan_looks(seeds, spending)
    rows = np.random.default_rng(9).normal(0, 0.01, (40_000, 32))
    alarm = np.zeros(len(rows), dtype=bool)
    for look in looks:
        alarm |= stats.ttest_1samp(rows[:, : look.seeds], 0, axis=1).pvalue < look.limit
        assert alarm.mean() == pytest.approx(look.spent, abs=0.0035)
    assert alarm.mean() == pytest.approx(0.05, abs=0.0035)


@pytest.mark.slow
def test_adjusted_flips_held_against_limits_raise_few_false_alarms() -> None:
    """Several contrasts and several looks at once: what a study with looks does."""
    looks, alarms = plan_looks((8, 16), "pocock"), 0
    for study in range(600):
        arms = np.random.default_rng(study).normal(3, 0.01, (16, 4))
        wide = arms[:, 1:] - arms[:, :1]
        alarms += any(min(max_t(wide[: look.seeds])) < look.limit for look in looks)
    assert alarms / 600 < 0.075
