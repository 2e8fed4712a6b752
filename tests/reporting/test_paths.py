"""Runs that changed their schedule on the way, on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.core.table import signed
from prism_transformer.figures.style import arm_tones
from prism_transformer.reporting.paths import path_figure, paths
from tests.reporting.studies import drawn, views_of
from tests.search.test_paths import changed


def test_each_change_has_a_row_and_a_place_in_the_figure(tmp_path: Path) -> None:
    collected = changed()
    (view,) = views_of(tmp_path, collected)
    late, back = paths([view]).rows
    losses = collected.final_loss()
    by_hand = (losses["late"] - losses["uniform"]).mean()
    assert late["to where it came from"] == pytest.approx(by_hand)
    assert (back["arm"], back["study"]) == ("back", view.name)
    figure = path_figure(view, arm_tones([view.baseline], view.arms))
    assert figure is not None
    assert figure.chart is not None
    said = [tip for mark in figure.chart.marks for tip in mark.tips]
    assert f"uniform to prism at 90%: {signed(by_hand)}" in said
    assert figure.says[0].startswith("Final loss of runs that changed")


def test_other_studies_have_none(tmp_path: Path) -> None:
    views = views_of(tmp_path, drawn(tasks={}))
    assert paths(views).missing
    assert path_figure(views[0], arm_tones(["uniform"], ["prism"])) is None
