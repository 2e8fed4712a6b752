"""Figures of searches: how predictors rank schedules, and what a change on the way does."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from prism_transformer.core.table import Interval, Row, Table, signed
from prism_transformer.figures.chart import Chart, canvas
from prism_transformer.figures.style import FAINT, PAGE_STYLE, TONES, plain_name, plain_text

CEILING = "ceiling"
LABELS = {
    "tau": "Kendall's tau\n1: ranks all rightly; 0: chance",
    "regret": "regret, nats\n0: what it calls best is the best",
}
PREDICTOR = "predictor, 95 % interval"
HALVES = "half of the seeds, judged by the others (of tau: the ceiling)"


@mpl.rc_context(PAGE_STYLE)
def rankings(table: Table) -> Figure:
    """Tau and regret of every predictor with their intervals, the ceiling as a line."""
    chart, axes = canvas(7.4, 1.2 + 0.3 * len(table), 2, sharey=True)
    rows = [row for row in table.rows if row["predictor"] != CEILING]
    several = len({row["truth"] for row in rows}) > 1
    names = [f"{row['truth']}: {row['predictor']}" if several else row["predictor"] for row in rows]
    places = range(len(rows))[::-1]
    for ax, (key, label) in zip(axes, LABELS.items(), strict=True):
        ax.axvline(0, color=FAINT, linewidth=0.8, zorder=0)
        for place, row in zip(places, rows, strict=True):
            _point(ax, place, row, key)
        ax.set_xlabel(label)
        ax.tick_params(axis="y", length=0)
        _ceilings(ax, table.rows, rows, key)
    # Short numbers and some room, else the last one touches the first of the other panel.
    axes[0].set_xlim(-1.08, 1.08)
    axes[0].set_xticks([-1, -0.5, 0, 0.5, 1], ["\u22121", "\u22120.5", "0", "0.5", "1"])
    axes[0].set_yticks(list(places), [plain_name(str(name), 40) for name in names])
    axes[0].set_ylim(-0.6, len(rows) - 0.4)
    predictor, ceiling = TONES[0], TONES[1]
    handles = [
        mpl.lines.Line2D([], [], color=predictor.light, marker=predictor.marker, label=PREDICTOR),
        mpl.lines.Line2D([], [], color=ceiling.light, linestyle="--", label=HALVES),
    ]
    chart.figure.legend(handles=handles, loc="outside upper left", ncols=2)
    return chart.figure


def _point(ax: mpl.axes.Axes, place: int, row: Row, key: str) -> None:
    value, ends = row[key], row[f"{key} 95 %"]
    if not isinstance(value, int | float):
        return
    if isinstance(ends, Interval):
        ax.plot([ends.low, ends.high], [place, place], color=TONES[0].light)
    ax.plot([value], [place], TONES[0].marker, color=TONES[0].light)


def _ceilings(ax: mpl.axes.Axes, every: Sequence[Row], rows: Sequence[Row], key: str) -> None:
    """What one half of a truth's seeds reaches, beside the rows of that truth."""
    for row in every:
        value = row[key]
        mine = [n for n, other in enumerate(rows) if other["truth"] == row["truth"]]
        if row["predictor"] == CEILING and isinstance(value, int | float) and mine:
            top, bottom = len(rows) - 0.6 - mine[0], len(rows) - 1.4 - mine[-1]
            ax.plot([value, value], [bottom, top], color=TONES[1].light, linestyle="--")


@mpl.rc_context(PAGE_STYLE)
def changed_on_the_way(
    lines: Sequence[tuple[str, Sequence[tuple[float, Sequence[float]]]]], baseline: str
) -> Chart:
    """Final loss less the baseline's by the share of training at which the schedule changed.

    Each line is a direction: at 0 the schedule it goes to throughout, at 1 the one it comes from.
    """
    chart, (ax,) = canvas(6.4, 3.6)
    for (name, points), tone in zip(lines, TONES, strict=False):
        means = [sum(each) / len(each) for _, each in points]
        shares = [share for share, _ in points]
        (line,) = ax.plot(
            shares, means, tone.marker + "-", color=tone.light, label=plain_text(name)
        )
        ends = zip(shares, means, strict=True)
        chart.mark(line, None, [f"{name} at {share:.0%}: {signed(mean)}" for share, mean in ends])
        for share, each in points:
            ax.plot([share] * len(each), each, ".", color=tone.light, alpha=0.5)
    ax.plot([], [], ".", color=FAINT, label="one seed")
    ax.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
    ax.set_xlabel(
        "share of training before the change\n0: the second schedule throughout; 1: the first"
    )
    ax.set_ylabel(plain_text(f"final loss less {baseline}'s, nats"))
    ax.legend()
    return chart
