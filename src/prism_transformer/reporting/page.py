"""The report as one HTML file that needs nothing else, and as Markdown."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from prism_transformer.core.characters import KEPT, visible
from prism_transformer.core.table import PAPER, markdown_code, markdown_text, to_markdown
from prism_transformer.figures import page_css
from prism_transformer.figures.chart import inline_svg
from prism_transformer.figures.style import BASELINE, REST, TONES
from prism_transformer.models.cost import size_text
from prism_transformer.reporting.claims import Result, counts
from prism_transformer.reporting.contents import Report, StudyPart
from prism_transformer.reporting.exhibits import Drawing
from prism_transformer.reporting.latex import to_latex
from prism_transformer.reporting.verdicts import Verdict
from prism_transformer.reporting.views import View
from prism_transformer.study.best_rates import AT_BEST
from prism_transformer.study.collected import LEARNING_RATE

NAMES = {
    "supported": "measured, and so",
    "contradicted": "measured, and not so",
    "within noise": "measured, and too close to tell; a study of this size would have shown it",
    "could not be seen": "measured, but a study of this size would rather have missed it",
    "not measured": "no study of its scale and hardware decides it yet",
}


REFRESH = 30  # seconds between two looks of a live page at its file
MOST_STAIRS = 8
MOST_HEADS = 32  # beyond that no gaps between heads: they would hide the bars


@dataclass(frozen=True)
class Stairs:
    """One arm's heads as a small picture."""

    arm: str
    schedule: str
    changes: str
    """what else of the recipe it changes"""
    path: str
    width: float
    height: float


def to_html(
    report: Report, pictures: Mapping[str, str], viewers: Mapping[str, str] | None = None
) -> str:
    """The page; ``pictures`` are the figures as SVG by their key.

    ``viewers`` are links to pages that look into the attention of runs, by the run's name.
    """
    environment = Environment(
        loader=PackageLoader("prism_transformer.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _asset("page.js")
    inline = {
        drawing.key: Markup(
            inline_svg(pictures[drawing.key], drawing.chart, drawing.key, drawing.alt, report.arms)
        )
        for drawing in report.drawings
        if drawing.chart is not None
    }
    alone = len(report.studies) == 1
    verdicts = list(Verdict)
    text = environment.get_template("page.html").render(
        report=report,
        pictures=inline,
        viewers=viewers or {},
        contents=list(_contents(report, bool(viewers))),
        counts=counts(report.claims),
        ranked=sorted(report.claims, key=lambda result: verdicts.index(result.verdict)),
        in_a_line=_in_a_line,
        stairs=stairs,
        most_stairs=MOST_STAIRS,
        runs_line=_runs_line,
        size=size_text,
        of=lambda section: "" if alone or section.view.swept else f": {section.view.name}",
        of_study=lambda study: "" if alone else f": {study.view.facts.name}",
        refresh=REFRESH,
        refreshes=report.live and not report.stopped,
        tones=(BASELINE, *TONES, REST),
        latex=to_latex,
        paper=PAPER,
        style=Markup(page_css() + _asset("page.css")),
        script=Markup(script),
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        meanings=NAMES,
    )
    return visible(text, keep=KEPT)  # a name may hold what a terminal or a reader would obey


def _contents(report: Report, viewers: bool) -> Iterator[tuple[str, str]]:
    """Every section below the answers: its id and its name."""
    for study in report.studies:
        name = f": {study.view.facts.name}" if len(report.studies) > 1 else ""
        yield from ((id_, f"{words}{name}") for id_, words in _of_study(study))
    known = {
        "scales": ("Across scales", report.scales is not None and report.scales.chart is not None),
        "attention": ("Attention, looked into", viewers),
        "claims": ("Claims of the paper", bool(report.claims)),
        "tables": ("Tables", True),
        "audit": ("The paper's own numbers", bool(report.audit)),
    }
    yield from ((id_, words) for id_, (words, there) in known.items() if there)


def _of_study(study: StudyPart) -> Iterator[tuple[str, str]]:
    if len(study.sections) > 1:
        yield f"points-{study.view.key}", "Each setting"
        return
    (section,) = study.sections
    shown = {each.key for each in study.front}
    for kind, words, drawings in (
        ("contrasts", "Contrasts", section.contrasted),
        ("measured", "Loss, attention, scores, speed", section.measured),
    ):
        if any(each.chart is not None and each.key not in shown for each in drawings):
            yield f"{kind}-{study.view.key}", words


def _runs_line(study: StudyPart) -> str:
    """How much of a study is there."""
    runs = study.view.facts.runs
    seeds = len(study.view.facts.seeds)
    done = sum(run.state == "complete" for run in runs)
    return f"{seeds} seed{'s' if seeds > 1 else ''} \u00b7 {done} of {len(runs)} runs complete"


def _in_a_line(result: Result) -> str:
    """The evidence on a claim in short: what decides, else what stands beside it."""
    for one in (*result.deciding, *result.beside):
        return f"{one.source}: {one.words}"
    return "no study at hand says anything of it"


def stairs(view: View) -> Iterator[Stairs]:
    """The heads of a study's arms, on one scale: a column for each layer, a block for each head."""
    arms = view.arms[:MOST_STAIRS]
    most = max(max(view.schedule(arm).heads) for arm in arms)
    depth = max(len(view.schedule(arm)) for arm in arms)
    tall = min(1.0, 0.6 * depth / most)  # of one head; a column is one wide
    gap = 0.12 * tall if most <= MOST_HEADS else 0.0
    for arm in arms:
        schedule = view.schedule(arm)
        blocks = [
            (layer, (most - head - 1) * tall, tall - gap)
            for layer, heads in enumerate(schedule.heads)
            for head in range(heads)
        ]
        path = "".join(f"M{x} {y:.4g}h.88v{h:.4g}h-.88z" for x, y, h in blocks)
        told = view.changes_told(arm)
        yield Stairs(arm, str(schedule), told, path, depth, round(most * tall, 4))


def _asset(name: str) -> str:
    """A file that goes into the page as it is."""
    return files("prism_transformer.reporting").joinpath("templates", name).read_text("utf-8")


def to_text(report: Report, figures: str = "figures") -> str:
    """The report as Markdown, with its figures beside it."""
    parts = [f"# {markdown_text(report.title)}"]
    for study in report.studies:
        parts += _study(study, figures)
    if report.scales is not None:
        parts += ["## Across scales", *_figure(report.scales, figures)]
    parts += ["## Claims of the paper", _claims(report)]
    parts.append("## Tables")
    parts += [to_markdown(table) for table in report.tables]
    parts += ["## The paper against its own numbers", _audit(report)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _study(study: StudyPart, figures: str) -> Iterator[str]:
    """The answer and what shows it, then every point."""
    facts, found = study.view.facts, study.answer
    yield f"## {markdown_text(facts.name)}"
    yield f"*{markdown_text(found.question)}*"
    yield f"**Answer.** {markdown_text(found.answer)}"
    if found.doubt:
        yield f"**Doubt.** {markdown_text(found.doubt)}"
    for drawing in study.front:
        yield from _figure(drawing, figures)
    shown = {each.key for each in study.front}
    whole = [*study.sections[0].remarks, *([facts.note] if facts.note else [])]
    if len(study.sections) > 1:
        yield from _of_all_points(study, whole)
        whole = []
    for section in study.sections:
        if section.view.swept:
            yield f"### {markdown_text(section.view.name)}"
        yield _listed([f"{section.state}, on {section.hardware}.", *section.own, *whole])
        for drawing in section.drawings:
            if drawing.key not in shown:
                yield from _figure(drawing, figures)
    yield f"Made by {markdown_code(facts.command)}."


def _of_all_points(study: StudyPart, whole: Sequence[str]) -> Iterator[str]:
    """What is of no point of a sweep: remarks, and arms at their best learning rates."""
    if whole:
        yield _listed(whole)
    for section in study.sections:
        if section.best:
            rest = {key: value for key, value in section.view.swept.items() if key != LEARNING_RATE}
            names = [study.view.facts.name, *(f"{key}={value}" for key, value in rest.items())]
            yield f"### {markdown_text(', '.join([*names, f'{AT_BEST} learning rate']))}"
            yield _listed(section.best)


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {markdown_text(line)}" for line in lines)


def _figure(drawing: Drawing, figures: str) -> Iterator[str]:
    table = drawing.table
    if drawing.chart is None:
        yield f"*{table.title}: not measured, {table.missing}.* `{table.command}` fills it."
    else:
        yield f"![{markdown_text(drawing.alt)}]({figures}/{drawing.key}.svg)"
        yield f"**{markdown_text(drawing.title)}.** {markdown_text(table.note)}"


def _claims(report: Report) -> str:
    lines = ["| claim | scale | hardware | verdict |", "| :-- | :-- | :-- | :-- |"]
    for result in report.claims:
        claim = result.claim
        scales = ", ".join(claim.scales)
        lines.append(
            f"| {markdown_text(claim.text)} ({claim.where}) | {scales} | {claim.hardware} "
            f"| {result.verdict.value} |"
        )
    beside = [
        f"- {markdown_text(result.claim.text)}: {markdown_text(one.source)} "
        f"({one.why_not}): {one.verdict.value}; {markdown_text(one.words)}."
        for result in report.claims
        for one in result.beside
    ]
    if beside:
        lines += ["", "Beside it, and deciding nothing:", "", *beside]
    return "\n".join(lines)


def _audit(report: Report) -> str:
    return "\n".join(
        f"- {markdown_text(one.says)} ({one.where}): {'meets' if one.meets else 'does not meet'}. "
        f"{markdown_text(one.found)}"
        for one in report.audit
    )
