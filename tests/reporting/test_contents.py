from __future__ import annotations

from prism_transformer.reporting.contents import Report, make_report
from prism_transformer.reporting.views import View


def test_every_figure_of_the_paper_is_drawn(report: Report) -> None:
    names = {one.key for one in report.drawings if one.chart is not None}
    for key in ("nano", "small"):
        assert {
            f"{key}-{name}"
            for name in ("schedules", "differences", "gap", "loss", "benchmarks", "attention",
                         "pareto", "positions")
        } <= names  # fmt: skip
    assert {"gap-scales", "nano-schedule-map"} <= names


def test_while_runs_come_in_no_figure_says_what_follows(report: Report, views: list[View]) -> None:
    assert any(one.says for one in report.drawings)
    live = make_report(views, live=True)
    assert live.drawings
    assert not any(one.says for one in live.drawings)
    assert not live.claims
    assert not {"differences", "contrasts"} & {table.key for table in live.tables}
