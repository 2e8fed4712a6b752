"""What is drawn is what the rows hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prism_transformer.core.table import Column, Table, words
from prism_transformer.figures.comparisons import bars, by_length, curves
from prism_transformer.figures.style import arm_tones
from tests.figures.tables import LOSS, SCORES, TONES, charts


def test_a_line_for_each_arm_and_a_panel_for_each_value() -> None:
    losses: Any
    gaps: Any
    losses, gaps = charts()["loss"].figure.axes
    assert [list(line.get_ydata()) for line in losses.lines] == [
        [4.0, 3.0, 2.0], [5.0, 4.0, 3.0], [6.0, 5.0, 4.0],
    ]  # fmt: skip
    assert len(gaps.lines) == 1 + 2  # the line of no difference, and no arm against itself
    assert losses.get_xlabel() == "training, thousands of tokens"
    assert gaps.get_ylabel() == "loss minus uniform's, nats/token"
    band = losses.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((1.9, 4.1))


def test_values_that_nobody_has_get_no_panel() -> None:
    alone = replace(LOSS, rows=LOSS.rows[:3])
    assert len(curves(alone, "training", ["loss", "gap"], TONES).figure.axes) == 1


def test_lengths_have_a_panel_for_each_scaling_and_every_seed() -> None:
    columns = (*words("arm", "scaling"), *map(Column, ("length", "loss", "seed 0", "seed 1")))
    rows = [
        {"arm": arm, "scaling": scaling, "length": length, "loss": 3.0 + n,
         "seed 0": 2.5 + n, "seed 1": 3.5 + n if length < 512 else None}
        for n, arm in enumerate(("uniform", "prism"))
        for scaling in ("none", "yarn")
        for length in (128, 256, 512)
    ]  # fmt: skip
    chart = by_length(Table("lengths", columns, tuple(rows)), "scaling", "length", "loss", TONES)
    panels: Any = chart.figure.axes
    assert [ax.get_title() for ax in panels] == ["scaling: none", "scaling: yarn"]
    for ax in panels:
        lines = [dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in ax.lines]
        assert lines == [  # two seeds and their mean, of each arm
            dict.fromkeys((128, 256, 512), 2.5), dict.fromkeys((128, 256), 3.5),
            dict.fromkeys((128, 256, 512), 3.0), dict.fromkeys((128, 256, 512), 3.5),
            dict.fromkeys((128, 256), 4.5), dict.fromkeys((128, 256, 512), 4.0),
        ]  # fmt: skip
    assert panels[0].get_ylim() == panels[1].get_ylim()
    assert chart.ends[0] == "uniform, none, 512: 3"


def test_bars_have_their_heights_whiskers_and_the_papers_mark() -> None:
    chart = charts()["scores"]
    first, second = chart.figure.axes
    heights: list[Any] = [bar.get_height() for bar in first.patches]  # type: ignore[attr-defined]
    assert heights == [50.0, 51.0, 52.0]
    assert (first.get_ylabel(), second.get_ylabel()) == ("acc, %", "word perplexity")
    assert "prism, piqa acc, paper: 52" in {tip for mark in chart.marks for tip in mark.tips}
    (legend,) = chart.figure.legends
    assert [text.get_text() for text in legend.get_texts()][-1] == "the paper's"


def test_of_many_arms_only_the_first_have_bars() -> None:
    names = [f"arm-{n}" for n in range(20)]
    rows = tuple({**SCORES.rows[0], "arm": name} for name in names)
    chart = bars(replace(SCORES, rows=rows), "score", "paper's", arm_tones([], names))
    assert len(chart.figure.axes[0].patches) == 8
    assert len(chart.figure.legends[0].get_texts()) == 8


def test_the_papers_points_are_hollow_and_named() -> None:
    chart = charts()["sizes"]
    (legend,) = chart.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ours", "the paper's"]
    assert chart.ends == ["nano, 500K: \u22120.0200", "paper, 124M: \u22120.0144"]
