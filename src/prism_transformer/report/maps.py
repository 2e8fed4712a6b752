"""Two more pictures from plain numbers: heads of many arms at a glance, gaps over model sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes

from prism_transformer.plots.figures import width_colour
from prism_transformer.report.drawing import PAGE_STYLE, Picture, Point, canvas, plain_name
from prism_transformer.report.palette import FAINT, INK, PAPER
from prism_transformer.schedule import HeadSchedule, Phase


def heads_map(schedules: Mapping[str, HeadSchedule], d_model: int) -> Picture:
    """A row for each arm, a bar for each phase: the count at its start, the width as colour."""
    depth = max(len(schedule) for schedule in schedules.values())
    with mpl.rc_context(PAGE_STYLE):
        picture, (ax,) = canvas(6.4, 0.9 + 0.26 * len(schedules))
        for row, (arm, schedule) in enumerate(schedules.items()):
            for phase in schedule.phases:
                _draw_phase(picture, ax, arm, row, phase, d_model)
        ax.vlines([n - 0.5 for n in range(1, depth)], 0.5 - len(schedules), 0.5, PAPER, lw=1.2)
        ax.set_xlim(-0.6, depth - 0.4)
        ax.set_ylim(-len(schedules) + 0.4, 0.6)
        ax.set_yticks([-row for row in range(len(schedules))], [plain_name(a) for a in schedules])
        ax.set_xticks(range(0, depth, max(1, depth // 12)))
        ax.set_xlabel("layer")
        ax.tick_params(length=0)
        for spine in ax.spines.values():
            spine.set_visible(False)
        return picture


def _draw_phase(picture: Picture, ax: Axes, arm: str, row: int, phase: Phase, d_model: int) -> None:
    width = d_model // phase.n_heads
    colour = width_colour(width)
    place = (phase.first_layer - 0.5, -row - 0.42)
    bar = mpl.patches.Rectangle(place, phase.n_layers, 0.84, color=colour, linewidth=0)
    ax.add_patch(bar)
    last = phase.layers[-1]
    where = f"layer {last}" if phase.n_layers == 1 else f"layers {phase.first_layer} to {last}"
    picture.mark(bar, arm, [f"{arm}, {where}: {phase.n_heads} heads of width {width}"])
    ink = "#111111" if sum(colour[:3]) > 1.25 else "#fefefe"
    at = phase.first_layer
    ax.text(at, -row, str(phase.n_heads), ha="center", va="center", fontsize=7, color=ink)


def size_label(parameters: float) -> str:
    """Parameters in thousands, millions or billions."""
    for size, letter in ((1e9, "B"), (1e6, "M")):
        if parameters >= size:
            return f"{parameters / size:.3g}{letter}"
    return f"{parameters / 1e3:.3g}K"


def scale_gaps(points: Sequence[Point], x_label: str, y_label: str) -> Picture:
    """Gaps with error bars against model size; the paper's hollow and joined."""
    with mpl.rc_context(PAGE_STYLE):
        picture, (ax,) = canvas(6.4, 3.6)
        ax.axhline(0, color=FAINT, linewidth=0.8, zorder=1)
        theirs = [point for point in points if point.name == "paper"]
        ax.plot([p.x for p in theirs], [p.y for p in theirs], color=FAINT, lw=0.9, ls="--")
        for point in points:
            hollow = point.name == "paper"
            bar = ax.errorbar(
                point.x, point.y, yerr=point.y_error or None, color=point.tone.light, capsize=3,
                marker=point.tone.marker, markersize=6,
                markerfacecolor=PAPER if hollow else point.tone.light, zorder=2 if hollow else 3,
            )  # fmt: skip
            picture.mark(bar.lines[0], None, [point.tip])
            if not hollow:
                ax.annotate(
                    plain_name(point.name), (point.x, point.y), xytext=(-7, 4), ha="right",
                    textcoords="offset points", fontsize=8, color=INK,
                )  # fmt: skip
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda value, _: size_label(value))
        ax.xaxis.set_minor_formatter(lambda *_: "")
        ax.margins(x=0.15)
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        _name_sources(picture, points)
        return picture


def _name_sources(picture: Picture, points: Sequence[Point]) -> None:
    """Whose the two kinds of marks are; ours have the colour of the first study's main arm."""
    sources = {("paper" if point.name == "paper" else "ours"): point for point in points[::-1]}
    handles = [
        mpl.lines.Line2D(
            [], [], linestyle="", color=point.tone.light, marker=point.tone.marker, label=label,
            markerfacecolor=PAPER if source == "paper" else point.tone.light,
        )
        for source, label in (("ours", "ours"), ("paper", "the paper's"))
        if (point := sources.get(source))
    ]  # fmt: skip
    picture.figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
