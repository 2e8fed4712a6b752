"""Every table and figure says what it shows, or what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prism_transformer.reporting.contents import Report, make_report
from prism_transformer.reporting.evaluation import benchmark_differences, benchmarks, inference
from tests.reporting.again import drawing
from tests.reporting.studies import drawn, views_of


def test_every_figure_says_what_it_shows(report: Report) -> None:
    for one in report.drawings:
        assert one.chart is not None
        assert one.alt.endswith(".")
        assert one.table.note
        assert one.table.command.startswith("prism study run")
        assert one.table.rows
        for ax in one.chart.figure.axes:
            if ax.axison:
                words = ax.get_xlabel() + ax.get_ylabel() + ax.get_title()
                assert words or one.chart.figure.get_supxlabel()


@pytest.mark.parametrize(
    ("key", "unit"),
    [
        ("nano-loss", "nats/token"),
        ("nano-gap", "nats/token"),
        ("nano-differences", "nats/token"),
        ("nano-pareto", "tokens/s"),
        ("nano-positions", "tokens"),
        ("nano-attention", "tokens"),
        ("gap-scales", "nats/token"),
    ],
)
def test_axes_have_units(report: Report, key: str, unit: str) -> None:
    chart = drawing(report, key).chart
    assert chart is not None
    assert any(unit in ax.get_xlabel() + ax.get_ylabel() for ax in chart.figure.axes)


def test_without_benchmarks_the_gap_is_labelled(tmp_path: Path) -> None:
    study = drawn(tasks={})
    rows = study.table["metric"].str.startswith("inference.")
    views = views_of(tmp_path, replace(study, table=study.table[~rows]))
    assert not inference(views).rows
    assert "[inference]" in inference(views).command
    for table in (benchmarks(views), benchmark_differences(views)):
        assert not table.rows
        assert table.missing
        assert "prism eval" in table.command
    assert json.dumps(views[0].collected.facts.model_dump(mode="json"))


def test_missing_inputs_leave_labelled_gaps(tmp_path: Path) -> None:
    study = drawn(tasks={})
    gone = study.table["metric"].str.startswith(("attention.", "loss_at_position", "val_loss"))
    study = replace(study, table=study.table[~gone])
    found = {one.key: one for one in make_report(views_of(tmp_path, study)).drawings}
    for name, command in (
        ("benchmarks", "prism eval"),
        ("attention", "prism analyze"),
        ("positions", "prism study run, of a study with [loss]"),
        ("loss", "prism study run"),
        ("gap", "prism study run"),
    ):
        one = found[f"nano-{name}"]
        assert one.chart is None
        assert one.table.missing
        assert one.table.command.startswith(command)
