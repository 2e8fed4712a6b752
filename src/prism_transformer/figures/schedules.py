"""Head schedules as pictures: two side by side, or many arms at a glance."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from prism_transformer.core.table import Row, Table
from prism_transformer.figures.chart import Chart, by_arm, canvas
from prism_transformer.figures.style import (
    BACKGROUND,
    HALF,
    PAGE_STYLE,
    STYLE,
    plain_name,
    width_colour,
)
from prism_transformer.schedule import HeadSchedule, Phase

MOST_HEADS_DRAWN = 32  # beyond that the lines between heads would hide the bars


@mpl.rc_context(STYLE)
def head_schedules(left: HeadSchedule, right: HeadSchedule, d_model: int) -> Figure:
    """The paper's Figure 1: two schedules side by side, one bar a layer, one block a head."""
    depth = max(len(left), len(right))
    chart, axes = canvas(min(max(7.0, 0.32 * depth), 14.0), 3.2, 2, sharey=True)
    tallest = max(*left.heads, *right.heads)
    for ax, schedule in zip(axes, (left, right), strict=True):
        _draw_schedule(ax, schedule, d_model, show_heads=tallest <= MOST_HEADS_DRAWN)
    axes[0].set_ylabel("attention heads")
    chart.figure.supxlabel(
        f"layer; above each phase the width of one head, d_model {d_model}", fontsize=9
    )
    return chart.figure


def _draw_schedule(ax: Axes, schedule: HeadSchedule, d_model: int, show_heads: bool) -> None:
    for layer, width in enumerate(schedule.head_dims(d_model)):
        n_heads = schedule.heads[layer]
        ax.bar(layer, n_heads, width=0.86, color=width_colour(width))
        if show_heads:
            ax.hlines(range(1, n_heads), layer - 0.43, layer + 0.43, color="white", linewidth=0.7)
    for phase in schedule.phases:
        middle = phase.first_layer + (phase.n_layers - 1) / 2
        ax.annotate(
            f"{d_model // phase.n_heads}", (middle, phase.n_heads), xytext=(0, 3), ha="center",
            textcoords="offset points", fontsize=9 if phase.n_layers > 1 else 6,
        )  # fmt: skip
    kind = "uniform" if len(schedule.phases) == 1 else f"{len(schedule.phases)} phases"
    ax.set_title(f"{kind}: {plain_name(str(schedule), 34)}", fontsize=9)
    ax.set_xticks(range(0, len(schedule), max(1, len(schedule) // 12)))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))  # there are no half heads
    ax.margins(x=0.02, y=0.12)


# -- from a table with a row for each arm and layer: arm, layer, heads, head width ----------------


def staircases(table: Table, arms: Sequence[str]) -> Chart:
    """Two arms side by side, or the one there is."""
    rows = by_arm(table)
    if len(arms) == 1:
        return heads_map(table, arms)
    left, right = (_schedule(rows[arm]) for arm in arms)
    chart = Chart(head_schedules(left, right, _d_model(table)))
    for ax, arm in zip(chart.figure.axes, arms, strict=True):
        for bar, row in zip(ax.patches, rows[arm], strict=True):
            # Of no arm: a panel without its bars would be an empty frame.
            heads = f"{row['heads']} heads of width {row['head width']}"
            chart.mark(bar, None, [f"{arm}, layer {row['layer']}: {heads}"])
    return chart


@mpl.rc_context(PAGE_STYLE)
def heads_map(table: Table, arms: Sequence[str]) -> Chart:
    """A row for each arm, a bar for each phase: the count at its start, the width as colour."""
    schedules = {arm: _schedule(by_arm(table)[arm]) for arm in arms}
    depth = max(len(schedule) for schedule in schedules.values())
    chart, (ax,) = canvas(HALF, 0.9 + 0.26 * len(schedules))
    for row, (arm, schedule) in enumerate(schedules.items()):
        for phase in schedule.phases:
            _draw_phase(chart, ax, arm, row, phase, _d_model(table))
    ax.vlines([n - 0.5 for n in range(1, depth)], 0.5 - len(schedules), 0.5, BACKGROUND, lw=1.2)
    ax.set_xlim(-0.6, depth - 0.4)
    ax.set_ylim(-len(schedules) + 0.4, 0.6)
    ax.set_yticks([-row for row in range(len(schedules))], [plain_name(a) for a in schedules])
    ax.set_xticks(range(0, depth, max(1, depth // 12)))
    ax.set_xlabel("layer")
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return chart


def _schedule(rows: Sequence[Row]) -> HeadSchedule:
    return HeadSchedule(tuple(int(str(row["heads"])) for row in rows))


def _d_model(table: Table) -> int:
    row = table.rows[0]
    return int(str(row["heads"])) * int(str(row["head width"]))


def _draw_phase(chart: Chart, ax: Axes, arm: str, row: int, phase: Phase, d_model: int) -> None:
    width = d_model // phase.n_heads
    colour = width_colour(width)
    corner = (phase.first_layer - 0.5, -row - 0.42)
    bar = mpl.patches.Rectangle(corner, phase.n_layers, 0.84, color=colour, linewidth=0)
    ax.add_patch(bar)
    last = phase.layers[-1]
    where = f"layer {last}" if phase.n_layers == 1 else f"layers {phase.first_layer} to {last}"
    chart.mark(bar, arm, [f"{arm}, {where}: {phase.n_heads} heads of width {width}"])
    ink = "#111111" if sum(colour[:3]) > 1.25 else "#fefefe"  # dark on light, light on dark
    at = phase.first_layer
    ax.text(at, -row, str(phase.n_heads), ha="center", va="center", fontsize=7, color=ink)
