"""A figure of a table: what is drawn, whose it is, and what each point says.

A chart is a matplotlib figure and its marks: which arm an artist belongs to, and what its points
say when a reader points at them. What they say is read from the rows of the table, and so is the
text alternative of the whole. Within a page a chart is SVG whose colours follow the page, and whose
marks answer to hovering.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from prism_transformer.core.characters import KEPT, visible
from prism_transformer.core.table import NONE, Column, Interval, Row, Table, Value
from prism_transformer.figures.style import (
    BACKGROUND,
    BASELINE,
    FAINT,
    INK,
    PAGE_STYLE,
    REST,
    SHADE,
    TONES,
    Tones,
    plain_name,
    plain_text,
)

MOST_IN_LEGEND = 12
MOST_LISTED = 12
ENTRY, LETTER = 0.62, 0.075  # inches of a legend's entry: its line and gaps, and each letter
LINE = 0.2  # inches of a legend's line


@dataclass(frozen=True)
class Mark:
    """An artist by its id in the SVG: its arm, and what each point says."""

    gid: str
    arm: str | None
    tips: tuple[str, ...]


@dataclass
class Chart:
    """A figure and its marks."""

    figure: Figure
    marks: list[Mark] = field(default_factory=list)

    def mark(self, artist: Artist, arm: str | None, tips: Sequence[str] = ()) -> None:
        """Say whose an artist is, and what its points or bars say."""
        gid = f"mark{len(self.marks)}"
        artist.set_gid(gid)
        self.marks.append(Mark(gid, arm, tuple(tips)))

    def mark_errorbar(self, bar: ErrorbarContainer, arm: str | None, tip: str = "") -> None:
        """The point says the tip; its whiskers only have an arm."""
        point, caps, whiskers = bar.lines
        if point is not None:
            self.mark(point, arm, [tip])
        for part in (*caps, *whiskers):
            self.mark(part, arm)

    @property
    def ends(self) -> list[str]:
        """The last that each line, and all that each point says: the figure in words."""
        return [mark.tips[-1] for mark in self.marks if mark.tips]


def canvas(
    width: float, height: float, columns: int = 1, rows: int = 1, *, sharey: bool = False
) -> tuple[Chart, list[Axes]]:
    """An empty chart, its size in inches, and its axes, row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=sharey, squeeze=False)
    return Chart(figure), list(axes.flat)


def by_arm(table: Table) -> dict[str, list[Row]]:
    """The rows of each arm, in the table's order."""
    found: dict[str, list[Row]] = {}
    for row in table.rows:
        found.setdefault(str(row["arm"]), []).append(row)
    return found


def axis_label(column: Column) -> str:
    """Name and unit, as they stand at an axis."""
    return plain_text(f"{column.label}, {column.unit}" if column.unit else column.label)


def values_text(table: Table, row: Row, *keys: str) -> str:
    """Values of a row in words, a common unit once; what is not known is left out."""
    parts: list[str] = []
    units: list[str] = []
    for key in keys:
        column, value = table.column(key), row[key]
        if (text := column.text(value)) != NONE:
            parts.append(f"{column.label} {text}" if isinstance(value, Interval) else text)
            units.append(column.unit)
    if len(set(units)) == 1:
        return f"{', '.join(parts)} {units[0]}".strip()
    return ", ".join(f"{part} {unit}".strip() for part, unit in zip(parts, units, strict=True))


def place_text(column: Column, value: Value) -> str:
    """Where a point stands: ``layer 3``, or ``2.5 millions of tokens``."""
    text = column.text(value)
    return f"{text} {column.unit}" if column.unit else f"{column.key} {text}"


def listed(parts: Sequence[str]) -> str:
    """Parts of a text alternative; where there are many, the first and how many more."""
    more = len(parts) - MOST_LISTED
    shown = [*parts[:MOST_LISTED], *([f"{more} more are in the data"] if more > 0 else [])]
    return "; ".join(shown) + "."


def arm_legend(figure: Figure, arms: Iterable[str], tones: Tones) -> None:
    """Names of arms by colour and marker; several that share the grey are counted, not named."""
    tone_of = {arm: tones[arm] for arm in arms}
    named = [(arm, tone) for arm, tone in tone_of.items() if tone is not REST]
    grey = [arm for arm, tone in tone_of.items() if tone is REST]
    shown = [(plain_name(name), tone) for name, tone in named[:MOST_IN_LEGEND]]
    if grey:
        shown.append((plain_name(grey[0]) if len(grey) == 1 else f"{len(grey)} more", REST))
    handles = [
        mpl.lines.Line2D([], [], color=tone.light, marker=tone.marker, label=name)
        for name, tone in shown
    ]
    if len(handles) > 1:
        longest = max(len(str(each.get_label())) for each in handles)
        room = int(figure.get_figwidth() / (ENTRY + LETTER * longest))
        ncols = max(1, min(6, room, len(handles)))
        figure.legend(handles=handles, loc="outside upper left", ncols=ncols)
        # Many names must not press the plot below its own label.
        figure.set_figheight(figure.get_figheight() + LINE * (ceil(len(handles) / ncols) - 1))


# -- within a page --------------------------------------------------------------------------------

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)

# Colours by what they mean; the page sets the variables for light and for dark paper.
VARIABLES = {tone.light: f"var(--arm-{tone.name})" for tone in (BASELINE, *TONES, REST)} | {
    INK: "var(--ink)",
    "#000000": "var(--ink)",
    "#333333": "var(--ink)",
    FAINT: "var(--faint)",
    "#888888": "var(--faint)",
    SHADE: "var(--shade)",
    BACKGROUND: "var(--paper)",
    "#228833": "var(--good)",
}
COLOUR = re.compile(r"#[0-9a-f]{6}\b")


@mpl.rc_context(PAGE_STYLE)
def svg_text(figure: Figure) -> str:
    """The figure as a file would have it; its layout is then settled for other formats."""
    engine = figure.get_layout_engine()
    if engine is not None:  # once for all formats, and without drawing everything for it
        engine.execute(figure)
        figure.set_layout_engine(None)
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return visible(stream.getvalue(), keep=KEPT)


def inline_svg(source: str, chart: Chart, key: str, alt: str, arms: Mapping[str, int]) -> str:
    """The same, ready to stand in a page: an image with a text, ids that are its own."""
    root = ElementTree.fromstring(source)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    _drop_background(root)
    _attach_marks(root, chart, arms)
    for element in root.iter():
        _rename(element, key)
        style = element.get("style")
        if style:
            element.set("style", COLOUR.sub(lambda m: VARIABLES.get(m[0], m[0]), style))
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", visible(alt))
    width = float((root.get("viewBox") or "0 0 460 0").split()[2])
    root.set("style", f"--natural:{width * 4 / 3:.0f}px")
    return ElementTree.tostring(root, encoding="unicode")


def _drop_background(root: ElementTree.Element) -> None:
    """White sheets under the figure and its axes: the page is their paper."""
    for group in root.iter(f"{{{SVG}}}g"):
        if re.fullmatch(r"patch_\d+", group.get("id", "")):
            for path in group.findall(f"{{{SVG}}}path"):
                if path.get("style", "").replace(" ", "") == "fill:#ffffff":
                    group.remove(path)


def _attach_marks(root: ElementTree.Element, chart: Chart, arms: Mapping[str, int]) -> None:
    """Say on every marked element which arm it is of, and on each point what it says."""
    places = {element.get("id"): element for element in root.iter() if element.get("id")}
    for mark in chart.marks:
        element = places.get(mark.gid)
        if element is None:  # matplotlib drew nothing: all of it lies outside
            continue
        if mark.arm is not None and mark.arm in arms:
            element.set("data-arm", str(arms[mark.arm]))
        points = list(element.iter(f"{{{SVG}}}use")) or list(element.iter(f"{{{SVG}}}path"))
        if mark.tips and len(points) == len(mark.tips):
            for point, tip in zip(points, mark.tips, strict=True):
                point.set("class", "point")
                ElementTree.SubElement(point, f"{{{SVG}}}title").text = visible(tip)


def _rename(element: ElementTree.Element, key: str) -> None:
    """Ids and the references to them, with the figure's key before them."""
    for name, value in list(element.attrib.items()):
        if name == "id":
            element.set(name, f"{key}-{value}")
        elif name == f"{{{XLINK}}}href" and value.startswith("#"):
            del element.attrib[name]  # the plain attribute does it now
            element.set("href", f"#{key}-{value[1:]}")
        elif "url(#" in value:
            element.set(name, value.replace("url(#", f"url(#{key}-"))
