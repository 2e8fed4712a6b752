"""``prism report``: collected studies as a page, tables and figures."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from prism_transformer.cli.options import Json
from prism_transformer.cli.progress import show_progress
from prism_transformer.cli.terminal import make_console, print_json, say
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import silent


def report(
    *studies: Path, out: Path = Path("report"), docs: Path | None = None, as_json: Json = False
) -> None:
    """Write a page, Markdown, tables as LaTeX and CSV, and figures from collected studies.

    Every table and figure of the paper, with the paper's own number beside ours; its claims, each
    with a verdict by rule; and the paper against its own numbers.

    Parameters
    ----------
    studies
        A study's folder, what prism study collect wrote, or a folder of such folders; or runs, or
        folders of runs, which are compared as one study.
    out
        Folder for index.html, report.md, tables/ and figures/, both with their numbers as CSV;
        files of these names are replaced.
    docs
        Instead, rewrite docs/results.md and the results section of README.md in this folder, from
        its results/ or from the studies named.
    """
    if docs is None and not studies:
        raise InputError("name a study's folder, what prism study collect wrote, or runs")
    from prism_transformer.reporting import write
    from prism_transformer.reporting.claims import counts

    console = make_console()
    if docs is not None:
        rewritten = [str(file) for file in write.write_documents(docs, studies)]
        if as_json:
            print_json({"wrote": rewritten})
        else:
            say(console, "\n".join(f"wrote {file}" for file in rewritten))
        return
    with nullcontext(silent) if as_json else show_progress(console) as tell:
        written = write.report(studies, out, tell=tell)
    verdicts = counts(written.report.claims)
    if as_json:
        print_json({"page": str(written.page), "files": written.files, "claims": verdicts})
        return
    for section in written.report.sections:
        say(console, f"{section.view.name}: {section.state}")
        say(console, section.sentences[0])
    claims = ", ".join(f"{n} {verdict}" for verdict, n in verdicts.items())
    say(console, f"claims of the paper: {claims}")
    say(console, f"wrote {written.page} and {written.files - 1} files beside it")
