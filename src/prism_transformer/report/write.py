"""Write a report: the page, Markdown, LaTeX tables, and every figure in three formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prism_transformer.errors import InputError
from prism_transformer.folders import write_whole
from prism_transformer.plots.figures import save
from prism_transformer.report.contents import Report, make_report
from prism_transformer.report.latex import to_latex
from prism_transformer.report.page import to_html, to_text
from prism_transformer.report.svg import svg_text
from prism_transformer.report.views import read_views

PAGE, TEXT = "index.html", "report.md"


@dataclass(frozen=True)
class Written:
    """A report and where it is."""

    report: Report
    page: Path
    files: int


def write_report(places: Sequence[Path], out: Path) -> Written:
    """Read collected studies and write all of their report; what was there is replaced."""
    report = make_report(read_views(places))
    try:
        for folder in (out / "tables", out / "figures"):
            folder.mkdir(parents=True, exist_ok=True)
        pictures = write_figures(report, out / "figures", (".pdf", ".png"))
        for table in report.tables:
            write_whole(out / "tables" / f"{table.key}.tex", to_latex(table))
        write_whole(out / TEXT, to_text(report))
        write_whole(out / PAGE, to_html(report, pictures))
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror or error}") from None
    return Written(report, out / PAGE, 2 + len(report.tables) + 3 * len(pictures))


def write_figures(report: Report, folder: Path, more: Sequence[str]) -> dict[str, str]:
    """Write each figure as SVG, and in more formats; the SVG by key."""
    pictures = {}
    for drawing in report.drawings:
        if drawing.picture is not None:
            pictures[drawing.key] = svg_text(drawing.picture.figure)
            write_whole(folder / f"{drawing.key}.svg", pictures[drawing.key])
            for ending in more:
                save(drawing.picture.figure, folder / f"{drawing.key}{ending}")
    return pictures
