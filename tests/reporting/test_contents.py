from __future__ import annotations

from prism_transformer.reporting.contents import Report


def test_every_figure_of_the_paper_is_drawn(report: Report) -> None:
    names = {one.key for one in report.drawings if one.chart is not None}
    for key in ("nano", "small"):
        assert {
            f"{key}-{name}"
            for name in ("schedules", "differences", "gap", "loss", "benchmarks", "attention",
                         "pareto", "positions")
        } <= names  # fmt: skip
    assert {"gap-scales", "nano-schedule-map"} <= names
