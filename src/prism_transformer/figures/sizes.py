"""Gaps against model size, and how many times as fast."""

from __future__ import annotations

from collections import Counter

import matplotlib as mpl
from matplotlib.figure import Figure

from prism_transformer.core.table import PAPER, Table, Value, signed
from prism_transformer.figures.chart import Chart, canvas
from prism_transformer.figures.comparisons import label_axes, number, whisker_of
from prism_transformer.figures.style import (
    BACKGROUND,
    FAINT,
    HALF,
    HEIGHT,
    INK,
    PAGE_STYLE,
    STYLE,
    Tone,
    Tones,
    plain_name,
)

BESIDE = 1.12  # the paper's points, moved a little to the right of ours
PAPER_TONE = Tone("ink", INK, INK, "D")
STEP_ASIDE = 1.35  # from one study to the next of the same size


def size_label(parameters: float) -> str:
    """Parameters in thousands, millions or billions."""
    for size, letter in ((1e9, "B"), (1e6, "M")):
        if parameters >= size:
            return f"{parameters / size:.3g}{letter}"
    return f"{parameters / 1e3:.3g}K"


@mpl.rc_context(PAGE_STYLE)
def across_sizes(table: Table, x: str, y: str, tones: Tones) -> Chart:
    """Gaps with error bars against model size; the paper's hollow, joined and a little aside."""
    chart, (ax,) = canvas(HALF, HEIGHT)
    ax.axhline(0, color=FAINT, linewidth=0.8, zorder=1)
    theirs = [(row[x], row[y]) for row in table.rows if row["source"] == PAPER]
    joined = zip(*((BESIDE * number(at), number(gap)) for at, gap in theirs), strict=True)
    ax.plot(*joined, color=FAINT, lw=0.9, ls="--")
    sources: dict[str, Tone] = {}
    alike = Counter(row[x] for row in table.rows if row["source"] != PAPER)
    places: Counter[Value] = Counter()  # studies of one size stand side by side about it
    for row in table.rows:
        hollow = row["source"] == PAPER
        tone = PAPER_TONE if hollow else tones[str(row["arm"])]
        sources.setdefault("the paper's" if hollow else "ours", tone)
        aside = BESIDE if hollow else STEP_ASIDE ** (places[row[x]] - (alike[row[x]] - 1) / 2)
        at = aside * number(row[x]), number(row[y])
        bar = ax.errorbar(
            *at, yerr=whisker_of(row[y]), color=tone.light, capsize=3, marker=tone.marker,
            markersize=6, markerfacecolor=BACKGROUND if hollow else tone.light,
            zorder=2 if hollow else 3,
        )  # fmt: skip
        who = "paper" if hollow else str(row["study"])
        tip = f"{who}, {size_label(number(row[x]))}: {signed(at[1])}"
        chart.mark_errorbar(bar, None, tip)
        if not hollow:
            places[row[x]] += 1
            ax.annotate(
                plain_name(who), (at[0], at[1] + (whisker_of(row[y]) or 0)), xytext=(0, 4),
                textcoords="offset points", ha="center", va="bottom", rotation=90, fontsize=7,
                color=INK,
            ).set_in_layout(False)  # fmt: skip
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda value, _: size_label(value))
    ax.xaxis.set_minor_formatter(lambda *_: "")
    ax.margins(x=0.15, y=0.35)
    label_axes(ax, table, x, y)
    _source_legend(chart.figure, sources)
    return chart


def _source_legend(figure: Figure, sources: dict[str, Tone]) -> None:
    """Whose the two kinds of marks are; ours have the colour of the first study's main arm."""
    handles = [
        mpl.lines.Line2D(
            [], [], linestyle="", color=tone.light, marker=tone.marker, label=label,
            markerfacecolor=BACKGROUND if tone is PAPER_TONE else tone.light,
        )
        for label, tone in sources.items()
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))


@mpl.rc_context(STYLE)
def speeds(table: Table, label: str, title: str) -> Figure:
    """How many times as fast as the first way each row is, with the range over rounds."""
    names = [" ".join(str(row[key]) for key in ("what", label) if key in row) for row in table.rows]
    chart, (ax,) = canvas(7.0, 0.9 + 0.32 * len(table))
    places = range(len(table))[::-1]
    ratios, ranges = ([number(value) for value in table.values(key)] for key in ("ratio", "+-"))
    ax.barh(places, ratios, xerr=ranges, color="#4477aa", ecolor="#333333")
    ax.axvline(1.0, color="#888888", linewidth=0.8)
    ax.set_yticks(places, [plain_name(name, 44) for name in names])
    ax.set_xlabel("times as fast as the first; black: half the range over rounds")
    ax.set_title(title, fontsize=9)
    return chart.figure
