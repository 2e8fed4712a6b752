"""Figures of a report, from plain numbers: curves, differences, bars, fronts.

A picture is a matplotlib figure and its marks: which arm an artist belongs to and what each of its
points says when a reader points at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from prism_transformer.plots.figures import STYLE
from prism_transformer.report.palette import FAINT, INK, PAPER, REST, Tone

PAGE_STYLE: dict[Any, Any] = STYLE | {
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "axes.formatter.useoffset": False,
}
MOST_IN_LEGEND = 12
MOST_MARKED = 80  # points of a curve that answer to hovering; more would only make the page heavy


@dataclass(frozen=True)
class Mark:
    """An artist by its id in the SVG: its arm, and what each point says."""

    gid: str
    arm: str | None
    tips: tuple[str, ...]


@dataclass
class Picture:
    """A figure and its marks."""

    figure: Figure
    marks: list[Mark] = field(default_factory=list)

    def mark(self, artist: Artist, arm: str | None, tips: Sequence[str] = ()) -> None:
        """Say whose an artist is, and what its points or bars say."""
        gid = f"mark{len(self.marks)}"
        artist.set_gid(gid)
        self.marks.append(Mark(gid, arm, tuple(tips)))


@dataclass(frozen=True)
class Series:
    """One arm's line: points, a band around them, and words for each point."""

    arm: str
    tone: Tone
    x: NDArray[Any]
    y: NDArray[Any]
    low: NDArray[Any] | None = None
    high: NDArray[Any] | None = None
    tips: Sequence[str] = ()


@dataclass(frozen=True)
class Point:
    """One arm's or the paper's value, with its error and the values it comes from."""

    name: str
    tone: Tone
    x: float
    y: float
    x_error: float = 0.0
    y_error: float = 0.0
    tip: str = ""
    each: tuple[float, ...] = ()
    paper: float | None = None


def canvas(width: float, height: float, columns: int = 1) -> tuple[Picture, list[Axes]]:
    """An empty picture of one row of axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)
    return Picture(figure), list(axes[0])


@dataclass(frozen=True)
class Lines:
    """One panel of curves."""

    series: Sequence[Series]
    y_label: str
    zero: bool = False
    """draw the line of no difference"""


def curves(panels: Sequence[Lines], x_label: str, *, log_x: bool = False) -> Picture:
    """Lines over training or over positions, each with its band."""
    with mpl.rc_context(PAGE_STYLE):
        picture, axes = canvas(6.4 if len(panels) == 1 else 9.0, 3.6, len(panels))
        for ax, panel in zip(axes, panels, strict=True):
            if panel.zero:
                ax.axhline(0, color=FAINT, linewidth=0.8, zorder=1)
            for one in panel.series:
                _draw_series(picture, ax, one)
            if log_x:
                ax.set_xscale("log", base=2)
                ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.set_xlabel(x_label)
            ax.set_ylabel(panel.y_label)
        _legend(picture.figure, [(one.arm, one.tone) for one in panels[0].series])
        return picture


def _draw_series(picture: Picture, ax: Axes, one: Series) -> None:
    order = 2 if one.tone is REST else 3
    every = max(1, -(-len(one.x) // MOST_MARKED))
    marker = one.tone.marker if len(one.x) <= MOST_MARKED // 2 else "."
    (line,) = ax.plot(
        one.x, one.y, color=one.tone.light, marker=marker, markevery=every, markersize=3.2,
        zorder=order,
    )  # fmt: skip
    picture.mark(line, one.arm, one.tips[::every])
    if one.low is not None and one.high is not None and len(one.x) > 1 and one.tone is not REST:
        band = ax.fill_between(one.x, one.low, one.high, color=one.tone.light, alpha=0.18, lw=0)
        picture.mark(band, one.arm)


def _legend(figure: Figure, entries: Sequence[tuple[str, Tone]]) -> None:
    """Names of arms by colour and marker; those that share the grey are counted, not named."""
    named = [(name, tone) for name, tone in dict.fromkeys(entries) if tone is not REST]
    rest = len(set(entries)) - len(named)
    handles = [
        mpl.lines.Line2D([], [], color=tone.light, marker=tone.marker, label=plain_name(name))
        for name, tone in named[:MOST_IN_LEGEND]
    ]
    if rest:
        handles.append(
            mpl.lines.Line2D([], [], color=REST.light, marker=REST.marker, label=f"{rest} more")
        )
    if len(handles) > 1:
        figure.legend(handles=handles, loc="outside upper left", ncols=min(6, len(handles)))


def plain_name(name: str, most: int = 28) -> str:
    """A name that leaves room for the figure, with nothing that matplotlib reads as mathematics."""
    plain = " ".join(name.split())
    cut = plain if len(plain) <= most else plain[: most - 4] + " ..."
    return cut.replace("$", r"\$").lstrip("_")


def differences(points: Sequence[Point], x_label: str) -> Picture:
    """Arms against the baseline, one row each: seeds as dots, mean and interval, the paper's."""
    with mpl.rc_context(PAGE_STYLE):
        picture, (ax,) = canvas(6.4, 1.0 + 0.3 * max(len(points), 2))
        ax.axvline(0, color=FAINT, linewidth=0.8, zorder=1)
        for place, point in zip(range(len(points))[::-1], points, strict=True):
            colour = point.tone.light
            if point.each:
                seeds = ax.scatter(
                    point.each, [place - 0.22] * len(point.each), s=9, color=colour, alpha=0.5,
                    linewidths=0, zorder=2,
                )  # fmt: skip
                picture.mark(seeds, point.name)
            bar = ax.errorbar(
                point.x, place, xerr=point.x_error or None, color=colour, capsize=3,
                marker=point.tone.marker, markersize=6, zorder=3,
            )  # fmt: skip
            picture.mark(bar.lines[0], point.name, [point.tip])
            for part in (*bar.lines[1], *bar.lines[2]):
                picture.mark(part, point.name)
            if point.paper is not None:
                _paper_mark(picture, ax, point.paper, place + 0.24, point.name)
        ax.set_yticks(range(len(points))[::-1], [plain_name(point.name) for point in points])
        ax.set_ylim(-0.6, len(points) - 0.4)
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel(x_label)
        return picture


def _paper_mark(picture: Picture, ax: Axes, x: float, y: float, arm: str | None) -> None:
    (hollow,) = ax.plot(
        x, y, marker="D", markersize=6, markerfacecolor=PAPER, markeredgecolor=INK, linestyle="",
        zorder=4,
    )  # fmt: skip
    picture.mark(hollow, arm, [f"paper: {x:+.4f}"])


def scatter(points: Sequence[Point], front: Sequence[str], x_label: str, y_label: str) -> Picture:
    """Arms in two measures with their spread; those of the front are joined and named."""
    with mpl.rc_context(PAGE_STYLE):
        picture, (ax,) = canvas(6.4, 4.0)
        best = sorted((p for p in points if p.name in front), key=lambda p: p.x)
        if len(best) > 1:
            ax.plot([p.x for p in best], [p.y for p in best], color=FAINT, lw=0.9, zorder=1)
        for point in points:
            plain = point.tone is REST  # whiskers of many arms would hide the arms
            bar = ax.errorbar(
                point.x, point.y, xerr=None if plain else point.x_error or None,
                yerr=None if plain else point.y_error or None, color=point.tone.light,
                marker=point.tone.marker, markersize=6, capsize=2,
                elinewidth=0.9,
            )  # fmt: skip
            picture.mark(bar.lines[0], point.name, [point.tip])
            for part in (*bar.lines[1], *bar.lines[2]):
                picture.mark(part, point.name)
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        ax.margins(0.12)
        _legend(picture.figure, [(point.name, point.tone) for point in points])
        return picture


@dataclass(frozen=True)
class Panel:
    """Bars of one benchmark: what it measures, and each arm's score."""

    title: str
    y_label: str
    bars: tuple[Point, ...]


def bar_panels(panels: Sequence[Panel]) -> Picture:
    """A panel for each benchmark, a bar for each arm from zero up, s.d. as whisker."""
    columns = min(len(panels), 4)
    rows = -(-len(panels) // columns)
    with mpl.rc_context(PAGE_STYLE):
        figure = Figure(figsize=(max(3.2, 2.1 * columns), 2.5 * rows + 0.4), layout="constrained")
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        picture = Picture(figure)
        for ax, panel in zip(grid, panels, strict=False):
            _draw_panel(picture, ax, panel)
        for ax in grid[len(panels) :]:
            ax.set_axis_off()
        bars = [(bar.name, bar.tone) for panel in panels for bar in panel.bars]
        handles: list[Artist] = [
            mpl.patches.Patch(color=tone.light, label=plain_name(name))
            for name, tone in dict.fromkeys(bars)
        ]
        if any(bar.paper is not None for panel in panels for bar in panel.bars):
            handles.append(
                mpl.lines.Line2D(
                    [], [], marker="D", color="none", markeredgecolor=INK, label="the paper's"
                )
            )
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
        return picture


def _draw_panel(picture: Picture, ax: Axes, panel: Panel) -> None:
    for place, bar in enumerate(panel.bars):
        (patch,) = ax.bar(place, bar.y, width=0.8, color=bar.tone.light)
        picture.mark(patch, bar.name, [bar.tip])
        if bar.y_error:
            whisker = ax.errorbar(place, bar.y, yerr=bar.y_error, color=INK, capsize=2, fmt="none")
            for part in (*whisker.lines[1], *whisker.lines[2]):
                picture.mark(part, bar.name)
        if len(panel.bars) <= 3:
            ax.annotate(
                f"{bar.y:.1f}", (place, bar.y + bar.y_error), xytext=(0, 3), ha="center",
                textcoords="offset points", fontsize=7,
            )  # fmt: skip
        if bar.paper is not None:
            (hollow,) = ax.plot(
                place, bar.paper, marker="D", markersize=5, markerfacecolor=PAPER,
                markeredgecolor=INK, linestyle="",
            )  # fmt: skip
            picture.mark(hollow, bar.name, [f"paper, {bar.name}: {bar.paper:.1f}"])
    ax.set_title(panel.title)
    ax.set_ylabel(panel.y_label)
    ax.set_xticks([])
    ax.margins(y=0.14)
