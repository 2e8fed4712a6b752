"""Figures of one run and of attention profiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prism_transformer.figures.profiles import compare_profiles, loss_curve, sign_changes
from tests.figures.tables import charts


def test_signs_change_between_layers() -> None:
    assert sign_changes(np.array([-2.0, -1.0, 1.0, 3.0])) == [1.5]
    assert sign_changes(np.array([1.0, -3.0, 1.0])) == pytest.approx([0.25, 1.75])
    assert sign_changes(np.array([1.0, 2.0])) == []


def test_bands_phase_and_sign_change_are_drawn() -> None:
    uniform = [np.array([4.0, 5.0, 6.0]), np.array([6.0, 7.0, 8.0])]
    prism = [np.array([1.0, 4.0, 9.0]), np.array([3.0, 6.0, 11.0])]
    figure = compare_profiles(uniform, prism, ("4x3", "1x1 2x1 4x1"), 2)
    left: Any
    right: Any
    left, right = figure.axes
    (legend,) = figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named == ["4x3", "1x1 2x1 4x1", "sign changes at 1.2"]
    gap = right.lines[1].get_ydata()
    assert list(gap) == [-3.0, -1.0, 3.0]
    band = right.collections[0].get_paths()[0].vertices
    spread = np.hypot(2**0.5, 2**0.5)  # s.d. of (4, 6) and of (1, 3), propagated
    assert band[:, 1].max() == pytest.approx(3 + spread)
    shaded = [patch.get_extents() for patch in left.patches]
    assert len(shaded) == 1
    assert "2 and 2 seeds" in left.get_title()


def test_one_seed_has_no_band() -> None:
    figure = compare_profiles([np.array([1.0, 2.0])], [np.array([2.0, 2.0])], ("a", "b"), 0)
    assert figure.axes[0].get_title() == "one seed each: no band"


def test_the_legend_stands_above_the_curves_whatever_they_do() -> None:
    zigzag = np.array([40.0, 1.0] * 8)
    long = "a name of twenty-eight signs"
    figure = compare_profiles([zigzag], [zigzag[::-1]], (long, long), 4)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.y0 > max(ax.get_window_extent().y1 for ax in figure.axes)
    assert box.x1 < figure.bbox.x1
    assert legend.get_texts()[-1].get_text().endswith("and 9 more")


def test_a_table_of_two_arms_is_drawn_with_its_difference() -> None:
    chart = charts()["attention"]
    left: Any
    right: Any
    left, right = chart.figure.axes
    assert [list(line.get_ydata()) for line in left.lines] == [[10.0, 10.0], [7.0, 10.0]]
    assert list(right.lines[1].get_ydata()) == [-3.0, 0.0]
    tips = [mark.tips for mark in chart.marks if mark.tips]
    assert tips[1][0] == "prism, layer 0: 7.00 \u00b1 1.00 tokens"
    assert tips[2][0] == "layer 0: \u22123.00 \u00b1 1.40 tokens"


def test_both_curves_are_drawn_as_they_are() -> None:
    train, val = {1: 8.0, 2: 7.0, 3: 6.5}, {0: 8.3, 3: 6.6}
    figure = loss_curve(train, val, "2x1 4x1")
    (axes,) = figure.axes
    drawn = {line.get_label(): dict(np.asarray(line.get_data()).T.tolist()) for line in axes.lines}
    assert drawn == {"training": train, "validation": val}
    assert axes.get_xlabel() == "step"
    assert "nats" in axes.get_ylabel()
    assert axes.get_title() == "2x1 4x1"
