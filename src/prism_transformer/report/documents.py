"""The results in a project's own documents: docs/results.md, and a section of README.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prism_transformer.errors import InputError
from prism_transformer.folders import write_whole
from prism_transformer.report.contents import Report, Section, make_report
from prism_transformer.report.page import to_text
from prism_transformer.report.table import markdown_code, markdown_text
from prism_transformer.report.views import View, read_views
from prism_transformer.report.write import write_figures

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
SHOWN = ("differences", "gap")  # figures of a study that the README has


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
    try:
        files[0].parent.mkdir(exist_ok=True)
        write_whole(files[0], made.results)
        write_whole(files[1], made.readme)
        if made.report is not None:
            (root / FIGURES).mkdir(exist_ok=True)
            drawn = write_figures(made.report, root / FIGURES, ())
            for file in (root / FIGURES).glob("*.svg"):
                if file.stem not in drawn:  # of a study that is no more
                    file.unlink()
    except OSError as error:
        raise InputError(f"{root}: cannot be written: {error.strerror or error}") from None
    return files


def make_documents(root: Path, studies: Sequence[Path] = ()) -> Documents:
    """Both documents as they should be; without results they say so."""
    readme = root / README
    if not readme.is_file() or not SECTION.search(readme.read_text("utf-8")):
        raise InputError(f"{readme}: no place for results: no line '<!-- results: begin -->'")
    places = list(studies) or [root / RESULTS]
    known = bool(studies) or places[0].is_dir()
    report = make_report(read_views(places)) if known else None
    section = SECTION.sub(lambda _: _readme(report), readme.read_text("utf-8"))
    if report is None:
        return Documents(f"{HEAD}\n{NOTHING}\n", section, None)
    body = to_text(report, figures="results").split("\n", 1)[1].lstrip()
    return Documents("\n".join([HEAD, *_limits(report), body]), section, report)


def _limits(report: Report) -> list[str]:
    """The honest sentence, where no study is of the paper's size."""
    return [] if any(part.view.scale for part in report.sections) else [LIMITS, ""]


def _readme(report: Report | None) -> str:
    if report is None:
        return f"\n{NOTHING}\n\n"
    parts = [_study(section) for section in report.sections]
    parts += _limits(report)[:1]
    parts.append("Every table, figure and claim: [docs/results.md](docs/results.md).")
    return "\n" + "\n\n".join(parts) + "\n\n"


def _study(section: Section) -> str:
    view: View = section.view
    lines = [f"**{markdown_text(view.name)}** ({markdown_code(view.command)}): {section.state}."]
    told = [*section.sentences, *([view.note] if view.note else [])]
    lines += [f"- {markdown_text(line)}" for line in told]
    drawings = {drawing.key: drawing for drawing in section.drawings}
    for name in SHOWN:
        drawing = drawings.get(f"{view.key}-{name}")
        if drawing is not None and drawing.picture is not None:
            lines += ["", f"![{markdown_text(drawing.alt)}]({FIGURES}/{drawing.key}.svg)"]
    return "\n".join(lines)
