"""Figures of searches say what their tables say."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from prism_transformer.figures.chart import svg_text
from prism_transformer.figures.search import changed_on_the_way, rankings
from prism_transformer.search.judge import judge
from tests.search.studies import factorial_study, written
from tests.search.test_judge import oracle


def test_rankings_have_every_predictor_and_a_ceiling(tmp_path: Path) -> None:
    truth = written(tmp_path / "truth", factorial_study(0.1))
    table = judge([truth], [oracle(tmp_path / "scores", 1.0)]).table
    figure = rankings(table)
    text = svg_text(figure)
    for name in ("one-shot", "layer effects", "mean head count", "random"):
        assert f">{name}<" in text
    assert "95 % interval" in text
    assert "half of the seeds, judged by the others" in text
    left, right = figure.axes
    points = [line for line in left.lines if line.get_marker() == "o"]
    assert [np.asarray(line.get_xdata())[0] for line in points] == table.values("tau")[:-1]
    dashed = [line for line in right.lines if line.get_linestyle() == "--"]
    assert [np.asarray(line.get_xdata())[0] for line in dashed] == table.values("regret")[-1:]


def test_changes_are_lines_through_the_means_of_seeds() -> None:
    figure = changed_on_the_way([("a to b", [(0.0, [-0.1, -0.3]), (1.0, [0.0])])], "a").figure
    (ax,) = figure.axes
    assert np.asarray(ax.lines[0].get_ydata()).tolist() == [-0.2, 0.0]
    text = svg_text(figure)
    assert "final loss less a's, nats" in text
    assert ">one seed<" in text
