"""``prism report``: collected studies as a page, tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prism_transformer.cli.output import Json, print_json
from prism_transformer.errors import InputError

DOCUMENTS = (
    "Instead, rewrite docs/results.md and the results section of README.md in this folder, from "
    "its results/ or from the studies named."
)


def report(
    *studies: Path,
    out: Path = Path("report"),
    docs: Annotated[Path | None, Parameter(help=DOCUMENTS)] = None,
    as_json: Json = False,
) -> None:
    """Write a page, Markdown, LaTeX tables and figures from collected studies.

    Every table and figure of the paper, with the paper's own number beside ours; its claims, each
    with a verdict by rule; and the paper against its own numbers.

    Parameters
    ----------
    studies
        A study's folder, what prism study collect wrote, or a folder of such folders; or runs, or
        folders of runs, which are compared as one study.
    out
        Folder for index.html, report.md, tables/ and figures/; files of these names are replaced.
    """
    if docs is not None:
        _documents(docs, studies, as_json)
        return
    if not studies:
        raise InputError("name a study's folder, what prism study collect wrote, or runs")
    from prism_transformer.report.claims import counts
    from prism_transformer.report.write import write_report

    written = write_report(studies, out)
    verdicts = counts(written.report.claims)
    if as_json:
        print_json({"page": str(written.page), "files": written.files, "claims": verdicts})
        return
    from prism_transformer.terminal import make_console, say

    console = make_console()
    for section in written.report.sections:
        say(console, f"{section.view.name}: {section.state}")
        say(console, section.sentences[0])
    claims = ", ".join(f"{n} {verdict}" for verdict, n in verdicts.items())
    say(console, f"claims of the paper: {claims}")
    say(console, f"wrote {written.page} and {written.files - 1} files beside it")


def _documents(root: Path, studies: tuple[Path, ...], as_json: bool) -> None:
    from prism_transformer.report.documents import write_documents

    files = [str(file) for file in write_documents(root, studies)]
    if as_json:
        print_json({"wrote": files})
        return
    from prism_transformer.terminal import make_console, say

    for file in files:
        say(make_console(), f"wrote {file}")
