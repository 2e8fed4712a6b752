"""Numbers before the end of training, computed again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from prism_transformer.core.table import Interval, Spread
from prism_transformer.reporting.milestones import milestones
from prism_transformer.study.collected import Collected
from tests.reporting.studies import drawn, views_of

EARLY = {"eval.piqa.acc": 0.1, "attention.distance": 3.0, "loss_at_position": -0.5}


def with_milestones(study: Collected) -> Collected:
    """The numbers of the end, and at a half of training others by so much."""
    rows = study.table[study.table["metric"].isin(EARLY)]
    less = rows["metric"].map(EARLY)
    early = rows.assign(metric=rows["metric"] + "@0.5", value=rows["value"] - less, step=60)
    return replace(study, table=pd.concat([study.table, early], ignore_index=True))


def test_values_and_differences_at_a_half_and_at_the_end(tmp_path: Path) -> None:
    study = with_milestones(drawn(seeds=range(4)))
    (view,) = views_of(tmp_path, study)
    table = milestones([view])
    shown = {(row["arm"], row["training"], row["what"]): row for row in table.rows}
    assert len(shown) == 2 * 2 * 3
    found = view.collected.by_seed("eval.piqa.acc")
    half, end = (shown["prism", share, "piqa acc"] for share in (50, 100))
    assert isinstance(half["value"], Spread)
    assert half["value"].mean == pytest.approx(100 * (found["prism"].mean() - 0.1))
    gaps = 100 * (found["prism"] - found["uniform"])
    for row in (half, end):
        assert row["difference"] == pytest.approx(gaps.mean())
        expected = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
        interval = row["95 % interval"]
        assert isinstance(interval, Interval)
        assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    assert half["tokens"] == round(0.5 * view.recipe.n_steps) * view.batch_tokens
    rows = view.collected.metric("attention.distance")
    mean = rows[rows["arm"] == "uniform"]["value"].mean()
    distance = shown["uniform", 50, "attention distance"]
    assert isinstance(distance["value"], Spread)
    assert distance["value"].mean == pytest.approx(mean - 3)
    rows = view.collected.metric("loss_at_position")
    last = rows[(rows["arm"] == "prism") & (rows["index"] == 256)]["value"].mean()
    value = shown["prism", 50, "loss at the last positions"]["value"]
    assert isinstance(value, Spread)
    assert value.mean == pytest.approx(last + 0.5)


def test_a_study_without_milestones_says_what_would_fill_it(tmp_path: Path) -> None:
    table = milestones(views_of(tmp_path, drawn()))
    assert not table.rows
    assert "`at`" in table.command
