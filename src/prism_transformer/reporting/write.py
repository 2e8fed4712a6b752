"""Write a report: as a folder of its own, or into a project's documents.

A folder has the page, Markdown, tables as LaTeX and CSV, every figure in three formats. A project
has docs/results.md with its figures, and a section of README.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from prism_transformer.analysis import VIEW_FILE
from prism_transformer.core.characters import KEPT, visible
from prism_transformer.core.disk import read_text, write_whole, writing
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Tell, counted, silent
from prism_transformer.core.table import markdown_code, markdown_text, to_csv, to_markdown
from prism_transformer.figures.chart import svg_text
from prism_transformer.figures.style import save
from prism_transformer.models.cost import size_text
from prism_transformer.reporting.contents import Report, StudyPart, make_report
from prism_transformer.reporting.contrasts import overview
from prism_transformer.reporting.latex import to_latex
from prism_transformer.reporting.page import to_html, to_text
from prism_transformer.reporting.reading import read_views
from prism_transformer.study.collected import RUNS

PAGE, TEXT, VIEWERS = "index.html", "report.md", "attention"
RESULTS, DOCUMENT, FIGURES, README = "results", "docs/results.md", "docs/results", "README.md"
SECTION = re.compile(r"(?<=<!-- results: begin -->\n).*?(?=<!-- results: end -->)", re.DOTALL)

HEAD = """# Results

Written by `prism report --docs .` from `results/`; do not edit.
"""
NOTHING = (
    "No study has been committed to `results/` yet, so nothing is reported here: no loss, no "
    "score, no speed of ours. `prism study run nano` trains the CPU-size replication."
)
LIMITS = (
    "What runs of this size can and cannot say: they show whether the effect is there in models of "
    "their own size, and each difference says whether its seeds tell it from noise. They do not "
    "decide claims about 124M to 757M parameters trained on billions of tokens on eight GPUs."
)
BELOW_ZERO = (
    "Differences of final validation loss within seeds: below 0 the first is better. Verdicts are "
    "adjusted for all comparisons of a study. Every table, figure and claim: "
    "[docs/results.md](docs/results.md)."
)


@dataclass(frozen=True)
class Written:
    """A report and where it is."""

    report: Report
    page: Path
    files: int


def report(
    places: Path | str | Sequence[Path | str], out: Path | str = "report", *, tell: Tell = silent
) -> Written:
    """Read collected studies or runs and write all of their report; what was there is replaced."""
    given = [places] if isinstance(places, Path | str) else places
    made = make_report(read_views([Path(place) for place in given], tell))
    out = Path(out)
    with writing(out):
        for folder in (out / "tables", out / "figures"):
            folder.mkdir(parents=True, exist_ok=True)
        pictures = write_figures(made, out / "figures", (".pdf", ".png"), tell=tell)
        for table in made.tables:
            _write(out / "tables" / f"{table.key}.tex", to_latex(table))
            _write(out / "tables" / f"{table.key}.csv", to_csv(table))
        for drawing in made.drawings:
            if drawing.chart is not None:
                _write(out / "figures" / f"{drawing.key}.csv", to_csv(drawing.table))
        viewers = _keep_viewers([Path(place) for place in given], made, out)
        _write(out / TEXT, to_text(made))
        write_whole(out / PAGE, to_html(made, pictures, viewers))
    files = 2 + 2 * len(made.tables) + 4 * len(pictures) + len(viewers)
    return Written(made, out / PAGE, files)


def _keep_viewers(places: Sequence[Path], report: Report, out: Path) -> dict[str, str]:
    """Copy the pages that look into the attention of runs; links to them, by the run's name."""
    runs = {run.run for section in report.sections for run in section.view.runs}
    found: dict[str, Path] = {}
    for place in places:
        for folder in (place, *place.glob("*"), *(place / RUNS).glob("*")):
            if folder.name in runs and (views := sorted(folder.glob(f"analysis/*/{VIEW_FILE}"))):
                found[folder.name] = max(views, key=lambda file: file.stat().st_mtime)
    links = {}
    for run, file in sorted(found.items()):
        (out / VIEWERS).mkdir(exist_ok=True)
        write_whole(out / VIEWERS / f"{run}.html", file.read_bytes())
        links[run] = quote(f"{VIEWERS}/{run}.html")
    return links


def _write(file: Path, text: str) -> None:
    """Write text in which names of users are seen and not obeyed."""
    write_whole(file, visible(text, keep=KEPT))


def write_figures(
    report: Report, folder: Path, more: Sequence[str], *, tell: Tell = silent
) -> dict[str, str]:
    """Write each figure as SVG, and in more formats; the SVG by key."""
    pictures = {}
    drawn = [each for each in report.drawings if each.chart is not None]
    for drawing in counted(tell, "figures", drawn, len(drawn), "figures"):
        assert drawing.chart is not None
        figure = drawing.chart.figure
        pictures[drawing.key] = svg_text(figure)
        write_whole(folder / f"{drawing.key}.svg", pictures[drawing.key])
        for ending in more:
            save(figure, folder / f"{drawing.key}{ending}")
    return pictures


# -- a project's own documents --------------------------------------------------------------------


@dataclass(frozen=True)
class Documents:
    """What is generated, as text, and the report it comes from if there is one."""

    results: str
    readme: str
    report: Report | None


def write_documents(root: Path, studies: Sequence[Path] = ()) -> list[Path]:
    """Rewrite what is generated; gives the files, without the figures."""
    made = make_documents(root, studies)
    files = [root / DOCUMENT, root / README]
    with writing(root):
        files[0].parent.mkdir(exist_ok=True)
        _write(files[0], made.results)
        write_whole(files[1], made.readme)
        if made.report is not None:
            (root / FIGURES).mkdir(exist_ok=True)
            drawn = write_figures(made.report, root / FIGURES, ())
            for file in (root / FIGURES).glob("*.svg"):
                if file.stem not in drawn:  # of a study that is no more
                    file.unlink()
    return files


def make_documents(root: Path, studies: Sequence[Path] = ()) -> Documents:
    """Both documents as they should be; without results they say so."""
    readme = root / README
    if not readme.is_file() or not SECTION.search(read_text(readme)):
        raise InputError(f"{readme}: no place for results: no line '<!-- results: begin -->'")
    places = list(studies) or [root / RESULTS]
    known = bool(studies) or places[0].is_dir()
    report = make_report(read_views(places)) if known else None
    section = SECTION.sub(lambda _: _readme(report), read_text(readme))
    if report is None:
        return Documents(f"{HEAD}\n{NOTHING}\n", section, None)
    body = to_text(report, figures="results").split("\n", 1)[1].lstrip()
    return Documents("\n".join([HEAD, *_limits(report), body]), section, report)


def _limits(report: Report) -> list[str]:
    """The honest sentence, where no study is of the paper's size."""
    return [] if any(part.view.scale for part in report.sections) else [LIMITS, ""]


def _readme(report: Report | None) -> str:
    """What each study asked and found in a few sentences, then its numbers in one table."""
    if report is None:
        return f"\n{NOTHING}\n\n"
    numbers = overview([[each.view for each in part.sections] for part in report.studies])
    folded = f"<details><summary>All {len(numbers)} contrasts, with intervals</summary>"
    parts = ["\n".join(map(_study, report.studies)), folded, to_markdown(numbers).strip()]
    parts += [BELOW_ZERO, "</details>"]
    parts += _limits(report)[:1]
    return "\n" + "\n\n".join(parts) + "\n\n"


def _study(part: StudyPart) -> str:
    """A study at all its points: its question, its answer, its doubt, and how far it is."""
    view, answer = part.view, part.answer
    runs = [run for section in part.sections for run in section.view.runs]
    done = sum(run.state == "complete" for run in runs)
    state = f"{done} of {len(runs)} runs, {size_text(view.parameters)} parameters"
    told = " ".join(filter(None, [answer.answer, answer.doubt]))
    return (
        f"- **{markdown_text(view.facts.name)}**: *{markdown_text(answer.question)}* "
        f"{markdown_text(told)} ({state}; {markdown_code(view.facts.command)})"
    )
