"""Arms beside each other: over training, as intervals, in two measures, as bars.

Each function draws one table. Rows name their arm in the column ``arm``; a value with its spread is
drawn with a band or a whisker of one s.d.; a column that is written with its sign is a difference
and gets a line at zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from math import isnan
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from prism_transformer.core.table import Interval, Row, Spread, Table, Value
from prism_transformer.figures.chart import (
    Chart,
    arm_legend,
    axis_label,
    by_arm,
    canvas,
    place_text,
    values_text,
)
from prism_transformer.figures.style import (
    BACKGROUND,
    FAINT,
    HALF,
    HEIGHT,
    INK,
    PAGE_STYLE,
    REST,
    WHOLE,
    Tone,
    Tones,
    plain_name,
)

MOST_MARKED = 80  # points of a curve that answer to hovering; more would only make the page heavy
MOST_BARS = 8
DIAMOND: dict[str, Any] = {
    "marker": "D", "markerfacecolor": BACKGROUND, "markeredgecolor": INK, "linestyle": "",
}  # fmt: skip


def number(value: Value) -> float:
    """A cell as a number: of a spread, its mean."""
    return value.mean if isinstance(value, Spread) else float(str(value))


def whisker_of(value: Value) -> float | None:
    """A whisker, where there is a spread to show; NaN is none."""
    return value.sd if isinstance(value, Spread) and value.sd > 0 else None


def _seeds(table: Table) -> list[str]:
    """The columns ``seed N``."""
    return [column.key for column in table.columns if column.key.startswith("seed ")]


def _points(rows: Iterable[Row], x: str, y: str) -> tuple[list[float], list[float]]:
    """Where rows that have both values stand."""
    known = [row for row in rows if row[x] is not None and row[y] is not None]
    return [number(row[x]) for row in known], [number(row[y]) for row in known]


def label_axes(ax: Axes, table: Table, x: str, y: str) -> None:
    ax.set_xlabel(axis_label(table.column(x)))
    ax.set_ylabel(axis_label(table.column(y)))


# -- curves --------------------------------------------------------------------------------------


@mpl.rc_context(PAGE_STYLE)
def curves(table: Table, x: str, ys: Sequence[str], tones: Tones, *, log_x: bool = False) -> Chart:
    """Means over training or over positions, each with its band; a panel for each of ``ys``."""
    shown = [y for y in ys if any(row[y] is not None for row in table.rows)]
    chart, axes = canvas(HALF if len(shown) == 1 else WHOLE, HEIGHT, len(shown))
    for ax, y in zip(axes, shown, strict=True):
        if table.column(y).sign:
            ax.axhline(0, color=FAINT, linewidth=0.8, zorder=1)
        for arm, rows in by_arm(table).items():
            known = [row for row in rows if row[y] is not None]
            if known:
                _draw_curve(chart, ax, table, known, (x, y), tones[arm])
        if log_x:
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        label_axes(ax, table, x, y)
    arm_legend(chart.figure, by_arm(table), tones)
    return chart


def _draw_curve(
    chart: Chart, ax: Axes, table: Table, rows: Sequence[Row], keys: tuple[str, str], tone: Tone
) -> None:
    x, y = keys
    arm = str(rows[0]["arm"])
    at = [number(row[x]) for row in rows]
    mean = np.array([number(row[y]) for row in rows])
    every = max(1, -(-len(rows) // MOST_MARKED))
    marker = tone.marker if len(rows) <= MOST_MARKED // 2 else "."
    (line,) = ax.plot(
        at, mean, color=tone.light, marker=marker, markevery=every, markersize=3.2,
        zorder=2 if tone is REST else 3,
    )  # fmt: skip
    column = table.column(y)
    tips = [f"{arm}, {place_text(table.column(x), row[x])}: {column.text(row[y])}" for row in rows]
    chart.mark(line, arm, tips[::every])
    sd = np.array([whisker_of(row[y]) or 0.0 for row in rows])
    if sd.any() and len(rows) > 1 and tone is not REST:  # bands of many arms would hide the arms
        band = ax.fill_between(at, mean - sd, mean + sd, color=tone.light, alpha=0.18, lw=0)
        chart.mark(band, arm)


@mpl.rc_context(PAGE_STYLE)
def against_rate(table: Table, x: str, y: str, best: str, tones: Tones, top: float) -> Chart:
    """Loss at each rate: seeds as dots (columns ``seed N``), means joined, a star at the best.

    Losses above ``top`` are not shown: a rate at which a model falls apart would set the axis.
    """
    seeds = _seeds(table)
    chart, (ax,) = canvas(HALF, HEIGHT)
    for arm, rows in by_arm(table).items():
        tone = tones[arm]
        tried = [row for row in rows if not row[best] and row[y] is not None]
        dots = [(number(r[x]), number(r[s])) for r in tried for s in seeds if r[s] is not None]
        xs, ys = [at for at, _ in dots], [loss for _, loss in dots]
        points = ax.scatter(xs, ys, s=9, color=tone.light, alpha=0.45, linewidths=0)
        chart.mark(points, arm)
        (line,) = ax.plot(
            *_points(tried, x, y), color=tone.light, marker=tone.marker, markersize=4, zorder=3
        )
        chart.mark(
            line,
            arm,
            [
                f"{arm} at {values_text(table, row, x)}: {values_text(table, row, y)}"
                for row in tried
            ],
        )
        for row in (row for row in rows if row[best]):
            where = (number(row[x]), number(row[y]))
            (star,) = ax.plot(*where, color=tone.light, marker="*", markersize=11, zorder=4)
            chart.mark(
                star,
                arm,
                [f"{arm}, best rate {values_text(table, row, x)}: {values_text(table, row, y)}"],
            )
    ax.set_xscale("log", base=2)
    ax.set_xticks(sorted({number(row[x]) for row in table.rows if not row[best]}))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
    seen = [number(row[y]) for row in table.rows if row[y] is not None]
    seen += [number(row[seed]) for row in table.rows for seed in seeds if row[seed] is not None]
    low, high = min(seen), min(max(seen), top)
    if high > low:
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    label_axes(ax, table, x, y)
    arm_legend(chart.figure, by_arm(table), tones)
    return chart


@mpl.rc_context(PAGE_STYLE)
def by_length(table: Table, panel: str, x: str, y: str, tones: Tones) -> Chart:
    """Means, and every seed as a thin line (columns ``seed N``); a panel for each of ``panel``."""
    seeds = _seeds(table)
    kinds = list(dict.fromkeys(str(row[panel]) for row in table.rows))
    chart, axes = canvas(WHOLE if len(kinds) > 1 else HALF, HEIGHT, len(kinds))
    for ax, kind in zip(axes, kinds, strict=True):
        ax.sharey(axes[0])
        for arm, rows in by_arm(table).items():
            here, tone = [row for row in rows if row[panel] == kind], tones[arm]
            for seed in seeds:
                (faint,) = ax.plot(*_points(here, x, seed), color=tone.light, lw=0.7, alpha=0.45)
                chart.mark(faint, arm)
            (line,) = ax.plot(
                *_points(here, x, y), color=tone.light, marker=tone.marker, markersize=3.2, zorder=3
            )
            tips = [
                f"{arm}, {kind}, {values_text(table, row, x)}: {values_text(table, row, y)}"
                for row in here
            ]
            chart.mark(line, arm, tips)
        ax.set_xscale("log", base=2)
        ax.set_xticks(sorted({number(row[x]) for row in table.rows}))
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.set_xlabel(axis_label(table.column(x)))
        ax.set_title(f"{panel}: {kind}")
    axes[0].set_ylabel(axis_label(table.column(y)))
    arm_legend(chart.figure, by_arm(table), tones)
    return chart


# -- one point for each arm ----------------------------------------------------------------------


@mpl.rc_context(PAGE_STYLE)
def intervals(table: Table, value: str, interval: str, papers: str, tones: Tones) -> Chart:
    """A row for each arm: seeds as dots (columns ``seed N``), mean, interval, the paper's."""
    seeds = _seeds(table)
    chart, (ax,) = canvas(HALF, max(HEIGHT, 0.9 + 0.34 * len(table)))
    ax.axvline(0, color=FAINT, linewidth=0.8, zorder=1)
    for at, row in zip(range(len(table))[::-1], table.rows, strict=True):
        arm, mean = str(row["arm"]), number(row[value])
        tone = tones[arm]
        each = [number(row[seed]) for seed in seeds if row[seed] is not None]
        dots = ax.scatter(
            each, [at - 0.2] * len(each), s=16, color=tone.light, alpha=0.5, linewidths=0,
            zorder=2,
        )  # fmt: skip
        chart.mark(dots, arm)
        ends = row[interval]
        half = ends.high - mean if isinstance(ends, Interval) and not isnan(ends.high) else None
        bar = ax.errorbar(
            mean, at, xerr=half, color=tone.light, capsize=3, marker=tone.marker, markersize=6,
            zorder=3,
        )  # fmt: skip
        ax.annotate(
            table.column(value).text(mean), (mean, at), xytext=(0, 7), ha="center",
            textcoords="offset points", fontsize=9, color=INK,
        )  # fmt: skip
        known = values_text(table, row, value, interval)
        alone = ", one pair" if seeds and len(each) < 2 else ""
        chart.mark_errorbar(bar, arm, f"{arm}: {known}{alone}")
        if row[papers] is not None:
            where = (number(row[papers]), at + 0.24)
            (hollow,) = ax.plot(*where, markersize=6, zorder=4, **DIAMOND)
            chart.mark(hollow, arm, [f"{arm}, paper: {values_text(table, row, papers)}"])
    ax.set_yticks(range(len(table))[::-1], [plain_name(str(a)) for a in table.values("arm")])
    ax.set_ylim(-0.6, len(table) - 0.4)
    ax.margins(x=0.1)
    ax.locator_params(axis="x", nbins=5, min_n_ticks=3)  # numbers are seven characters wide
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(axis_label(table.column(value)))
    return chart


@mpl.rc_context(PAGE_STYLE)
def front(table: Table, x: str, y: str, on_front: str, tones: Tones) -> Chart:
    """Arms in two measures with their spread; those on the front are joined."""
    chart, (ax,) = canvas(HALF, HEIGHT)
    best = sorted((number(r[x]), number(r[y])) for r in table.rows if r[on_front] == "yes")
    if len(best) > 1:
        ax.plot(*zip(*best, strict=True), color=FAINT, lw=0.9, zorder=1)
    for row in table.rows:
        arm = str(row["arm"])
        tone = tones[arm]
        plain = tone is REST  # whiskers of many arms would hide the arms
        bar = ax.errorbar(
            number(row[x]), number(row[y]), xerr=None if plain else whisker_of(row[x]),
            yerr=None if plain else whisker_of(row[y]), color=tone.light, marker=tone.marker,
            markersize=6, capsize=2, elinewidth=0.9,
        )  # fmt: skip
        chart.mark_errorbar(bar, arm, f"{arm}: {values_text(table, row, y, x)}")
    label_axes(ax, table, x, y)
    ax.margins(0.12)
    arm_legend(chart.figure, by_arm(table), tones)
    return chart


# -- bars ----------------------------------------------------------------------------------------


@mpl.rc_context(PAGE_STYLE)
def bars(table: Table, value: str, papers: str, tones: Tones) -> Chart:
    """A panel for each task and metric, a bar for each arm from zero up, s.d. as whisker."""
    panels: dict[tuple[Value, Value], list[Row]] = {}
    for row in table.rows:
        panels.setdefault((row["task"], row["metric"]), []).append(row)
    columns = min(len(panels), 4)
    lines = -(-len(panels) // columns)
    chart, grid = canvas(max(HALF, 2.4 * columns), 2.5 * lines + 0.4, columns, lines)
    for ax, rows in zip(grid, panels.values(), strict=False):
        _draw_bars(chart, ax, table, rows[:MOST_BARS], (value, papers), tones)
    for ax in grid[len(panels) :]:
        ax.set_axis_off()
    handles: list[Artist] = [
        mpl.patches.Patch(color=tones[arm].light, label=plain_name(arm))
        for arm in islice(by_arm(table), MOST_BARS)
    ]
    if any(row[papers] is not None for row in table.rows):
        handles.append(mpl.lines.Line2D([], [], label="the paper's", **DIAMOND))
    chart.figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
    return chart


def _draw_bars(
    chart: Chart, ax: Axes, table: Table, rows: Sequence[Row], keys: tuple[str, str], tones: Tones
) -> None:
    value, papers = keys
    for at, row in enumerate(rows):
        arm, height, error = str(row["arm"]), number(row[value]), whisker_of(row[value])
        who = f"{arm}, {row['task']} {row['metric']}"
        (patch,) = ax.bar(at, height, width=0.8, color=tones[arm].light)
        chart.mark(patch, arm, [f"{who}: {values_text(table, row, value)}"])
        if error:
            whisker = ax.errorbar(at, height, yerr=error, color=INK, capsize=2, fmt="none")
            chart.mark_errorbar(whisker, arm)
        if len(rows) <= 3:
            ax.annotate(
                f"{height:.1f}", (at, height + (error or 0.0)), xytext=(0, 3), ha="center",
                textcoords="offset points", fontsize=7,
            )  # fmt: skip
        if row[papers] is not None:
            (hollow,) = ax.plot(at, number(row[papers]), markersize=5, **DIAMOND)
            chart.mark(hollow, arm, [f"{who}, paper: {values_text(table, row, papers)}"])
    first = rows[0]
    ax.set_title(str(first["task"]))
    unit = f", {first['unit']}" if first["unit"] else ""
    ax.set_ylabel(f"{first['metric']}{unit}".replace("_", " "))
    ax.set_xticks([])
    ax.margins(y=0.14)
