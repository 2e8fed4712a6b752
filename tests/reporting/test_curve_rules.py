"""Rules about the course of training, on drawn studies whose truth is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from prism_transformer.study.collected import Collected
from tests.reporting.studies import PAIRS, Judge, at_scale, renamed


def curve_of(study: Collected, arm: str = "prism") -> pd.Series:
    """Which rows of the table are validations of an arm."""
    return (study.table["arm"] == arm) & (study.table["metric"] == "val_loss")


def noisy(study: Collected, sd: float) -> Collected:
    """With noise of its own at every validation."""
    draw, mine = np.random.default_rng(6), curve_of(study)
    study.table.loc[mine, "value"] += draw.normal(0, sd, int(mine.sum()))
    return study


# -- the gap after warmup --------------------------------------------------------------------------


def test_one_validation_above_zero_does_not_decide(judged: Judge) -> None:
    """The mean after warmup supports; beyond a band of all validations one speaks against it."""
    study = at_scale("small", noise=0.0005, tasks={})
    assert judged(study)["persists"].evidence[0].verdict == "supported"
    steps = sorted(study.table.loc[curve_of(study), "step"].unique())
    at = curve_of(study) & (study.table["step"] == steps[10])
    study.table.loc[at, "value"] += 0.021
    (one,) = judged(study)["persists"].evidence
    assert one.verdict == "supported"
    assert "at 19 of 20 validations its mean is below 0" in one.words
    study.table.loc[at, "value"] += 0.1
    assert judged(study)["persists"].evidence[0].verdict == "contradicted"


@pytest.mark.parametrize(("effect", "expected"), [(0.0, "within noise"), (-0.01, "supported")])
def test_many_validations_are_one_mean(judged: Judge, effect: float, expected: str) -> None:
    """Of 156 validations with noise some are above 0 whatever the truth is."""
    steps = tuple(range(0, 4745, 30))
    study = at_scale("small", steps=steps, effect=effect, noise=0.001, seeds=range(6), tasks={})
    (one,) = judged(noisy(study, 0.03))["persists"].evidence
    assert one.verdict == expected
    known = at_scale("small", steps=steps, effect=effect, noise=0.001, seeds=range(6), tasks={})
    rows = noisy(known, 0.03).table
    late = rows[(rows["metric"] == "val_loss") & (rows["step"] > study.facts.recipe.warmup_steps)]
    wide = late.pivot(index=["step", "seed"], columns="arm", values="value")
    means = (wide["prism"] - wide["uniform"]).groupby("seed").mean()
    low, high = stats.t.interval(0.95, 5, means.mean(), stats.sem(means))
    ends = f"95 % {low:+.4f} to {high:+.4f}".replace("-", "\u2212")
    assert f"{ends}, 6 pairs" in one.words
    shift = 0.0143 / stats.sem(means)
    assert stats.nct.sf(stats.t.ppf(0.975, 5), 5, shift) > 0.99
    assert "power 1.00 for 0.0143" in one.words


# -- who is there first ----------------------------------------------------------------------------


def test_one_seed_contradicts_nothing(judged: Judge) -> None:
    study = at_scale("small", effect=0.0005, noise=0.0001, seeds=(0,), tasks={})
    (one,) = judged(study)["earlier"].evidence
    assert one.verdict == "could not be seen"
    assert "never reaches it in 1 of 1 seed (" in one.words


@pytest.mark.parametrize(
    ("n", "expected"), [(2, "could not be seen"), (5, "could not be seen"), (6, "contradicted")]
)
def test_never_getting_there_is_a_sign_test(judged: Judge, n: int, expected: str) -> None:
    study = at_scale("small", effect=0.02, noise=0.001, seeds=range(n), tasks={})
    (one,) = judged(study)["earlier"].evidence
    assert one.verdict == expected
    p = stats.binomtest(n, n).pvalue
    assert one.words == f"prism never reaches it in {n} of {n} seeds (sign test p {p:.2g})"


def test_seeds_that_are_late_or_never_there_count_together(judged: Judge) -> None:
    """Seven that never get there, and one that is far earlier: no mean, but a sign."""
    study = at_scale("small", effect=0.02, noise=0.001, seeds=range(8), tasks={})
    mine = study.table["arm"].eq("prism") & study.table["seed"].eq(0)
    mine &= study.table["metric"].isin(["val_loss", "final_val_loss"])
    study.table.loc[mine, "value"] -= 0.1
    (one,) = judged(study)["earlier"].evidence
    p = stats.binomtest(7, 8).pvalue
    assert p > 0.05
    assert one.verdict == "could not be seen"
    assert "in 7 of 8 seeds and needs \u2212" in one.words
    assert one.words.endswith(f"% tokens in the others (sign test p {p:.2g})")


# -- wider, level, closer together -----------------------------------------------------------------


def test_half_trained_runs_do_not_decide_the_plateau(judged: Judge) -> None:
    states = {("prism", 0, seed): "incomplete" for seed in (0, 1, 2)}
    study = at_scale("large", effect=-0.008, noise=0.0002, tasks={}, states=states)
    assert not judged(study)["plateau"].evidence


def test_widening_and_plateau(judged: Judge) -> None:
    """The drawn gap is level, so it never widens; from the paper's curve it does."""
    study = noisy(at_scale("large", effect=-0.008, noise=0.0002, tasks={}), 0.0001)
    assert judged(study)["plateau"].verdict in ("within noise", "contradicted")
    table = study.table
    tokens = table.loc[curve_of(study), "step"].astype(float)
    tokens *= study.facts.recipe.train.batch_tokens
    table.loc[curve_of(study), "value"] += 0.006 * np.clip(1 - tokens / 9e9, 0, 1)
    assert judged(study)["plateau"].verdict == "supported"


def test_a_spread_that_contracts(judged: Judge) -> None:
    """Eight seeds whose gaps are far apart at 1 billion tokens and near each other at the end."""
    study = at_scale("large", seeds=range(8), noise=0.0005, tasks={})
    table, draw = study.table, np.random.default_rng(5)
    for seed in range(8):
        mine = curve_of(study) & (table["seed"] == seed)
        early = mine & (table["step"].astype(float) * 524_288 < 5e9)
        table.loc[early, "value"] += draw.normal(0, 0.02)
    (one,) = judged(study)["spread"].evidence
    assert one.verdict == "supported"
    (one,) = judged(at_scale("large", noise=0.0005, tasks={}))["spread"].evidence
    assert one.verdict == "could not be seen"  # three seeds, as the paper has


def test_the_spread_is_asked_of_training_not_of_scale(judged: Judge) -> None:
    """The paper says it of the large model's training alone."""
    studies = [renamed(at_scale(scale, noise=0.0005, tasks={}), name=scale) for scale in PAIRS]
    found = judged(*studies)["spread"]
    assert found.claim.scales == ["large"]
    assert [one.source for one in found.deciding] == ["large"]
