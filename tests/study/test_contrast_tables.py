"""Contrasts as tables, against the losses they are of."""

from __future__ import annotations

import io
from dataclasses import replace
from math import isnan

import pandas as pd
import pytest
from scipy import stats

from prism_transformer.core.table import Interval, Table
from prism_transformer.study.collected import Collected, ContrastFacts, LooksFacts
from prism_transformer.study.compare import Comparison, compare
from tests.study.frames import make_collected
from tests.study.test_best_rates import swept
from tests.study.test_lengths import longer, value

FOUR = {"uniform": "8x8", "prism": "2x2 4x2 8x4", "reversed": "8x4 4x2 2x2", "fewer": "4x8"}


def row(table: Table, contrast: str) -> dict[str, object]:
    return next(dict(each) for each in table.rows if each["contrast"] == contrast)


def lines(comparison: Comparison) -> pd.DataFrame:
    """As a spreadsheet reads them."""
    return pd.read_csv(io.StringIO(comparison.by_seed.to_csv(index=False)))


def test_the_p_that_decides_is_shown_and_named() -> None:
    few = compare(make_collected(arms=FOUR, seeds=range(3), effect=-0.05, tasks={}))
    prism = few.rows[0]
    assert prism.pooled is not None
    shown = row(few.contrast_table, "prism against uniform")
    assert (shown["adjusted p"], shown["by"]) == (prism.pooled.adjusted_p, "pooled")
    assert (shown["flip p"], shown["pooled p"]) == (0.25, prism.pooled.p)
    arm = next(each for each in few.table.rows if each["arm"] == "prism")
    assert (arm["adjusted p"], arm["by"]) == (prism.pooled.adjusted_p, "pooled")
    many = compare(make_collected(arms=FOUR, seeds=range(8), effect=-0.05, tasks={}))
    shown = row(many.contrast_table, "prism against uniform")
    assert (shown["adjusted p"], shown["by"]) == (many.rows[0].adjusted_p, "flips")


def test_between_looks_no_p_decides_and_none_is_shown() -> None:
    collected = make_collected(seeds=range(5), tasks={})
    facts = collected.facts.model_copy(update={"looks": LooksFacts(seeds=(4, 8))})
    found = compare(replace(collected, facts=facts))
    shown = row(found.contrast_table, "prism against uniform")
    assert (shown["adjusted p"], shown["by"]) == (None, "")
    assert isnan(found.rows[0].deciding_p)
    assert shown["flip p"] is not None


def test_an_adjusted_estimate_stands_beside_its_interval() -> None:
    """With runs missing, least squares on arms and seeds; here solved by hand."""
    whole = make_collected(arms=FOUR, seeds=range(3), tasks={})
    assert "pooled difference" not in [c.key for c in compare(whole).contrast_table.columns]
    states = {("prism", 0, 2): "missing"}
    collected = make_collected(arms=FOUR, seeds=range(3), states=states, tasks={})
    table = compare(collected).contrast_table
    shown = row(table, "prism against uniform")
    wide = collected.final_loss()
    # What the seed that is missing would have been: the mean of the arm in the other seeds, moved
    # by what that seed did to the other arms.
    others = wide.drop(columns="prism")
    moved = wide["prism"].mean() + others.loc[2].mean() - others.loc[:1].to_numpy().mean()
    filled = wide.fillna({"prism": moved})
    assert shown["pooled difference"] == pytest.approx(
        filled["prism"].mean() - filled["uniform"].mean()
    )
    assert shown["difference"] == pytest.approx((wide["prism"] - wide["uniform"]).mean())
    interval = shown["pooled interval"]
    assert isinstance(interval, Interval)
    assert (interval.low + interval.high) / 2 == pytest.approx(shown["pooled difference"])
    assert table.note == "Where runs are missing, the pooled difference is adjusted for them."


def test_every_contrast_has_a_line_for_each_seed() -> None:
    points = [{"train.tokens": 1}, {"train.tokens": 2}]
    states = {("fewer", 1, seed): "missing" for seed in range(4)}
    collected = make_collected(arms=FOUR, points=points, seeds=range(4), states=states, tasks={})
    named = (ContrastFacts(name="number", weights={"fewer": 1.0, "uniform": -1.0}),)
    facts = collected.facts.model_copy(update={"contrasts": named})
    found = compare(replace(collected, facts=facts))
    table = lines(found)
    assert len(table) == 2 * 2 * 4 + 4 + 1  # of the contrast without a seed one line
    for point, tokens in ((0, 1), (1, 2)):
        wide = collected.final_loss(point)
        mine = table[(table["point"] == point) & (table["contrast"] == "prism against uniform")]
        gaps = (wide["prism"] - wide["uniform"]).tolist()
        assert mine["train.tokens"].unique().tolist() == [tokens]
        assert mine["seed"].tolist() == [0, 1, 2, 3]
        assert mine["seed_difference"].tolist() == pytest.approx(gaps)
        interval = stats.ttest_1samp(gaps, 0).confidence_interval()
        first = mine.iloc[0]
        assert (first["low"], first["high"]) == pytest.approx(tuple(interval))
        assert first["difference"] == pytest.approx(sum(gaps) / 4)
        assert mine["verdict"].nunique() == mine["weights"].nunique() == 1
    assert "fewer against uniform" not in set(table["contrast"])  # number is its name
    (none,) = table[(table["contrast"] == "number") & (table["point"] == 1)].to_dict("records")
    assert (none["seeds"], none["verdict"]) == (0, "undecided")
    assert isnan(none["seed"])


def test_best_against_best_and_longer_texts_have_lines_too() -> None:
    found = compare(swept())
    best = lines(found)
    mine = best[best["point"].isna() & (best["contrast"] == "prism against reversed")]
    (contrast,) = [e for e in found.envelopes[0].contrasts if e.name == "prism against reversed"]
    assert contrast.difference is not None
    assert mine["seed_difference"].tolist() == pytest.approx(contrast.difference.differences)
    assert set(mine["optim.lr"]) == {"each arm's best"}
    study: Collected = longer()
    far = lines(compare(study))
    far = far[far["measure"] == "rise of the loss in 1024 tokens"]
    mine = far[(far["scaling"] == "yarn") & (far["contrast"] == "frequencies")]
    rises = [
        [value(study, arm, seed, "yarn", 1024) - value(study, arm, seed, "none", 128)
         for seed in range(4)]
        for arm in ("prism", "tiled")
    ]  # fmt: skip
    gaps = [one - other for one, other in zip(*rises, strict=True)]
    assert mine["seed_difference"].tolist() == pytest.approx(gaps)


def test_a_study_of_one_arm_has_a_heading_and_no_line() -> None:
    alone = compare(make_collected(arms={"uniform": "8x8"}, tasks={}))
    assert list(lines(alone).columns) == ["measure", "point", "contrast", "seed"]
    assert lines(alone).empty
