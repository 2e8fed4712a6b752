"""The numbers of one point, against the table itself."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from prism_transformer.study.points import Point
from tests.study.frames import make_collected

pytestmark = pytest.mark.filterwarnings("error")


def test_a_point_has_what_is_complete_and_nothing_of_other_points() -> None:
    points = [{"train.batch_tokens": 2048}, {"train.batch_tokens": 4096}]
    collected = make_collected(points=points, states={("prism", 1, 2): "failed"})
    point = Point.of(collected, 1, nan)
    table = collected.table
    mine = table[(table["metric"] == "final_val_loss") & (table["point"] == 1)]
    assert point.losses.notna().to_numpy().sum() == len(mine) == 5
    for row in mine.itertuples():
        assert point.losses.loc[row.seed, row.arm] == row.value
    assert point.rates.notna().equals(point.losses.notna())
    assert [(run.arm, run.seed) for run in point.lost] == [("prism", 2)]
    assert set(point.curve("uniform", (0, 1)).columns) == {
        step * 4096 for step in range(0, 121, 20)
    }
    summary = point.arm("prism", "2x2 4x2 8x4")
    assert summary.loss is not None
    assert (summary.loss.n, summary.loss.mean) == (2, pytest.approx(point.losses["prism"].mean()))


def test_rates_are_of_runs_alone_on_one_machine() -> None:
    collected = make_collected(seeds=range(4))
    first, second, *rest = collected.facts.runs
    runs = (
        first.model_copy(update={"hardware": {"processor": "another"}}),
        *(second, *rest)[:-1],
        rest[-1].model_copy(update={"rate_compares_nothing": True}),
    )
    facts = collected.facts.model_copy(update={"runs": runs})
    kept, beside = Point.of(replace(collected, facts=facts), 0, nan).rates_of("uniform", "prism")
    assert beside == 1
    assert list(kept.index) == [
        seed for seed in range(4) if seed not in (first.seed, rest[-1].seed)
    ]
