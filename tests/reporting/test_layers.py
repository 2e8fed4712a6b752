"""What a wide head is worth, on the page: the numbers of the fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prism_transformer.figures.style import arm_tones
from prism_transformer.reporting.layers import beyond, effects, layer_figure
from prism_transformer.study.factorial import UNIFORM
from tests.reporting.studies import WORTH, drawn, factorial, views_of


def test_layers_with_intervals_and_what_is_left_of_prism(tmp_path: Path) -> None:
    """Arms whose loss is the sum of their layers; Prism is 0.05 better than that."""
    views = views_of(tmp_path, factorial())
    base, arms = views[0].baseline, views[0].arms
    found = effects(views)
    assert [row["effect"] for row in found.rows] == pytest.approx(WORTH, abs=0.003)
    row, number = beyond(views).rows  # as the losses are made, number is nothing by itself
    assert abs(number["residual"]) < 0.01  # type: ignore[arg-type]
    assert (row["schedule"], row["residual"]) == ("prism", pytest.approx(-0.05, abs=0.004))
    tones = arm_tones([base], arms)
    drawn = layer_figure(views[0], tones)
    assert drawn is not None
    assert drawn.chart is not None
    ax: Any = drawn.chart.figure.axes[0]
    labels = [text.get_text() for text in ax.get_yticklabels()]
    residuals = ["prism, residual", f"{UNIFORM}, residual"]
    assert labels == [*(f"layer {n}" for n in range(8)), *residuals]
    assert "lack of fit" in drawn.table.note
    assert "prism is predicted at" in drawn.table.note


def test_other_studies_have_none(tmp_path: Path) -> None:
    views = views_of(tmp_path, drawn(tasks={}))
    assert layer_figure(views[0], arm_tones(["uniform"], ["prism"])) is None
    assert effects(views).missing == beyond(views).missing != ""
