"""Figures of attention profiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prism_transformer.plots.profiles import compare_profiles, sign_changes


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
