"""The report as one HTML file that needs nothing else, and as Markdown."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from prism_transformer.core.table import PAPER, markdown_code, markdown_text, to_markdown
from prism_transformer.figures.chart import inline_svg
from prism_transformer.figures.style import BASELINE, REST, TONES
from prism_transformer.reporting.claims import counts
from prism_transformer.reporting.contents import Report
from prism_transformer.reporting.latex import to_latex

NAMES = {
    "supported": "measured, and so",
    "contradicted": "measured, and not so",
    "within noise": "measured, and too close to tell; a study of this size would have shown it",
    "could not be seen": "measured, but a study of this size would rather have missed it",
    "not measured": "no study of its scale and hardware yet",
}


def to_html(report: Report, pictures: Mapping[str, str]) -> str:
    """The page; ``pictures`` are the figures as SVG by their key."""
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
    return environment.get_template("page.html").render(
        report=report,
        pictures=inline,
        counts=counts(report.claims),
        tones=(BASELINE, *TONES, REST),
        latex=to_latex,
        paper=PAPER,
        style=Markup(_asset("page.css")),
        script=Markup(script),
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        meanings=NAMES,
    )


def _asset(name: str) -> str:
    """A file that goes into the page as it is."""
    return files("prism_transformer.reporting").joinpath("templates", name).read_text("utf-8")


def to_text(report: Report, figures: str = "figures") -> str:
    """The report as Markdown, with its figures beside it."""
    parts = [f"# {markdown_text(report.title)}", *_studies(report)]
    parts += ["## Claims of the paper", _claims(report)]
    parts.append("## Tables")
    parts += [to_markdown(table) for table in report.tables]
    parts.append("## Figures")
    for drawing in report.drawings:
        table = drawing.table
        if drawing.chart is None:
            fills = f"`{table.command}` fills it."
            parts.append(f"*{table.title}: not measured, {table.missing}.* {fills}")
        else:
            alt = markdown_text(drawing.alt)
            parts.append(f"![{alt}]({figures}/{drawing.key}.svg)")
            parts.append(f"**{drawing.title}.** {markdown_text(table.note)}")
    parts += ["## The paper against its own numbers", _audit(report)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _studies(report: Report) -> list[str]:
    parts = []
    for section in report.sections:
        facts = section.view.facts
        parts.append(f"## {markdown_text(section.view.name)}")
        if facts.question:
            parts.append(f"*{markdown_text(facts.question)}*")
        lines = [f"{section.state}, on {section.hardware}.", *section.sentences]
        lines += [facts.note] if facts.note else []
        parts.append("\n".join(f"- {markdown_text(line)}" for line in lines))
        parts.append(f"Made by {markdown_code(facts.command)}.")
    return parts


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
