"""The results of searches as a folder small enough to commit: the verb ``write_search``.

predictors.csv, .svg     every predictor against stand-alone runs
paths.csv, .svg          runs that changed their schedule on the way
summary.md               both as text; a README may hold it between two lines
learned.json             what ``prism schedule design --learned`` starts from
RUN-one-shot.json, RUN-blocks.json   the scores themselves, so that the runs are not needed again
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import relpath
from pathlib import Path

from prism_transformer.core.disk import read_text, write_whole, writing
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Tell, silent
from prism_transformer.core.table import Table, markdown_text, to_csv, to_markdown
from prism_transformer.figures.search import changed_on_the_way, rankings
from prism_transformer.figures.style import save
from prism_transformer.search.judge import Verdicts, judge
from prism_transformer.search.learned import (
    Learned,
    blocks_alike,
    blocks_source,
    effects_source,
    write_learned,
)
from prism_transformer.search.paths import path_lines, paths_sentence, paths_table
from prism_transformer.search.scores import Blocks, file_of, find_scores, score_files, write_scores
from prism_transformer.study.collected import read_collected

SUMMARY, LEARNED = "summary.md", "learned.json"
SECTION = re.compile(r"(?<=<!-- search: begin -->\n).*?(?=<!-- search: end -->)", re.DOTALL)
PARTIAL = "Not measured yet: {}."
FOLDED = "<details><summary>Runs that changed their schedule, with intervals</summary>"


@dataclass(frozen=True)
class Written:
    """What was found and where it is."""

    verdicts: Verdicts
    paths: Table | None
    learned: Learned
    summary: Path


def write_search(
    out: Path | str,
    truths: Sequence[Path | str],
    scores: Sequence[Path | str] = (),
    paths: Path | str | None = None,
    *,
    readme: Path | None = None,
    tell: Tell = silent,
) -> Written:
    """Judge predictors and write everything; scores that the folder holds already count as well.

    ``truths`` are collected studies, ``paths`` one with arms that leave others. ``readme`` is a
    file whose section between ``<!-- search: begin -->`` and ``end`` gets the summary.
    """
    out = Path(out)
    if readme is not None and not SECTION.search(read_text(readme)):
        raise InputError(f"{readme}: has no line '<!-- search: begin -->' with an end to it")
    kept = [out] if score_files(out) else []
    places = [*scores, *kept]
    verdicts = judge(truths, places, tell=tell)
    known = find_scores(places) if places else []
    changed = None if paths is None else read_collected(Path(paths))
    table = None if changed is None else paths_table(changed)
    if not verdicts.judged and not (table and table.rows):
        raise InputError(f"nothing could be judged: {'; '.join(verdicts.left_out)}")
    blocks, others = blocks_alike([each for each in known if isinstance(each, Blocks)])
    verdicts = replace(verdicts, left_out=(*verdicts.left_out, *others))
    studies = [read_collected(Path(each)) for each in truths]
    found = [effects_source(each, verdicts) for each in studies]
    sources = [each for each in (*found, blocks_source(blocks, verdicts)) if each is not None]
    learned = Learned(sources=tuple(sources))
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for each in known:
            write_scores(file_of(out, each.kind, each.asked, f"{each.run}-"), each)
        write_whole(out / "predictors.csv", to_csv(verdicts.table))
        save(rankings(verdicts.table), out / "predictors.svg")
        if changed is not None and table is not None and table.rows:
            write_whole(out / "paths.csv", to_csv(table))
            if lines := path_lines(changed):
                save(changed_on_the_way(lines, changed.baseline).figure, out / "paths.svg")
        write_learned(out / LEARNED, learned)
        write_whole(out / SUMMARY, _summary(verdicts, table, ""))
    if readme is not None:
        # Links are read from where the text stands.
        text = _summary(verdicts, table, f"{Path(relpath(out, readme.parent)).as_posix()}/")
        write_whole(readme, SECTION.sub(lambda _: f"\n{text}\n", read_text(readme)))
    return Written(verdicts, table, learned, out / SUMMARY)


def _summary(verdicts: Verdicts, paths: Table | None, folder: str) -> str:
    """As Markdown, with what is missing; ``folder`` leads to the figures."""
    lines = [to_markdown(verdicts.table).strip(), ""]
    lines += [f"![Tau and regret of every predictor]({folder}predictors.svg)", ""]
    sentence = "" if paths is None else paths_sentence(paths)
    if paths is not None and sentence:
        lines += [f"![{markdown_text(sentence)}]({folder}paths.svg)", ""]
        lines += [FOLDED, "", to_markdown(paths).strip(), "", "</details>", ""]
    missing = list(verdicts.left_out)
    if not sentence:
        missing.append("runs that changed their schedule on the way")
    if missing:
        lines += [markdown_text(PARTIAL.format("; ".join(missing))), ""]
    return "\n".join(lines)
