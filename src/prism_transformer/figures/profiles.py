"""One run or model, or two arms: loss by step, attention by layer and its difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prism_transformer.core.table import Row, Spread, Table
from prism_transformer.figures.chart import Chart, axis_label, by_arm, canvas, values_text
from prism_transformer.figures.style import HALF, HEIGHT, SHADE, STYLE, WHOLE, Tones, plain_name

Array = np.ndarray

LABELS = {
    "distance": "mean attention distance, tokens",
    "sink": "attention on the first token",
    "distance_without_sink": "mean distance of the rest, tokens",
    "second_moment": "second moment of distance, tokens squared",
    "excess": "distance beyond uniform attention, tokens",
    "entropy": "entropy of attention, nats",
    "ahead": "attention on later tokens",
    "distance_back": "mean distance of what is behind, tokens",
    "distance_ahead": "mean distance of what is ahead, tokens",
    "effective_rank": "effective rank of head outputs",
}
FIRST, SECOND = "#4477aa", "#cc6677"
MOST_CHANGES = 6  # sign changes that a legend names; more would not fit beside the arms


@mpl.rc_context(STYLE)
def loss_curve(train: Mapping[int, float], val: Mapping[int, float], title: str) -> Figure:
    """Loss in nats by step: every training step faint, validations on top of them."""
    chart, (ax,) = canvas(HALF, HEIGHT)
    ax.plot(list(train), list(train.values()), color="#bbbbbb", linewidth=0.8, label="training")
    ax.plot(
        list(val), list(val.values()), color=FIRST, marker="o", markersize=3.2,
        label="validation",
    )  # fmt: skip
    ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))  # there are no half steps
    ax.set_xlabel("step")
    ax.set_ylabel("loss, nats/token")
    ax.set_title(title, fontsize=9)
    ax.legend(frameon=False)
    return chart.figure


@mpl.rc_context(STYLE)
def plot_profile(heads: Sequence[Array], means: Array, statistic: str, part: str) -> Figure:
    """One model: each head a dot, each layer's mean on a line; ``part`` of the text was read."""
    chart, (ax,) = canvas(HALF, HEIGHT)
    for layer, values in enumerate(heads):
        ax.scatter([layer] * len(values), values, s=12, color=FIRST, alpha=0.35, linewidths=0)
    ax.plot(range(len(means)), means, color=FIRST, marker="o", markersize=4, label="layer mean")
    ax.set_xlabel("layer")
    ax.set_ylabel(LABELS[statistic])
    ax.set_title(f"{len(means)} layers, {part}; dots are heads")
    ax.legend(frameon=False)
    ax.set_xticks(range(0, len(means), max(1, len(means) // 12)))
    return chart.figure


def compare_profiles(
    first: Sequence[Array],
    second: Sequence[Array],
    names: tuple[str, str],
    n_progressive: int,
    statistic: str = "distance",
) -> Figure:
    """Two arms over seeds, and their difference: bands are one s.d., propagated in the second.

    ``n_progressive`` layers of the second arm, from the first on, have fewer heads than the rest.
    """
    curves = tuple(
        LayerMeans(name, colour, *_over_seeds(each), len(each))
        for name, colour, each in zip(names, (FIRST, SECOND), (first, second), strict=True)
    )
    return draw_comparison(curves, n_progressive, LABELS[statistic])


@dataclass(frozen=True)
class LayerMeans:
    """An arm's value in each layer: mean and s.d. over seeds."""

    name: str
    colour: str
    mean: Array
    sd: Array
    """zero where there is one seed"""
    n_seeds: int


@mpl.rc_context(STYLE)
def draw_comparison(arms: tuple[LayerMeans, ...], n_progressive: int, label: str) -> Figure:
    """Both arms on the left, the second less the first on the right."""
    first, second = arms
    chart, (left, right) = canvas(WHOLE, 3.4, 2)
    for arm, marker in zip(arms, "so", strict=True):
        _draw_band(left, arm.mean, arm.sd, arm.colour, marker, plain_name(arm.name))
    left.set_ylabel(label)
    left.set_title(_title(first.n_seeds, second.n_seeds), fontsize=9)
    gap = second.mean - first.mean
    right.axhline(0, color="#888888", linewidth=0.8)
    _draw_band(right, gap, np.hypot(first.sd, second.sd), "#333333", "o")
    right.set_title(f"{plain_name(second.name)} minus {plain_name(first.name)}", fontsize=9)
    right.set_ylabel(", ".join(["difference", *label.split(", ")[1:]]))
    changes = sign_changes(gap)
    for change in changes:
        right.axvline(change, color="#228833", linestyle="--", linewidth=1)
    if changes:
        right.lines[-1].set_label(_sign_label(changes))
    # Above the panels: a curve may reach any corner within them.
    handles = [*left.lines, *(right.lines[-1:] if changes else [])]
    chart.figure.legend(
        handles=handles, loc="outside upper left", ncols=3, frameon=False, fontsize=8
    )
    for ax in (left, right):
        if n_progressive:
            ax.axvspan(-0.5, n_progressive - 0.5, color=SHADE, zorder=0)
        ax.set_xlabel("layer; shaded: fewer heads than the base")
        ax.set_xlim(-0.5, len(gap) - 0.5)
        ax.set_xticks(range(0, len(gap), max(1, len(gap) // 12)))
    return chart.figure


def _draw_band(ax: Axes, mean: Array, sd: Array, colour: str, marker: str, name: str = "") -> None:
    layers = np.arange(len(mean))
    ax.plot(layers, mean, color=colour, marker=marker, markersize=4, label=name or None)
    ax.fill_between(layers, mean - sd, mean + sd, color=colour, alpha=0.2, lw=0)


def attention_pair(table: Table, pair: tuple[str, str], tones: Tones, n_progressive: int) -> Chart:
    """Two arms of a table with a row for each arm and layer: arm, layer, distance, difference."""
    rows = by_arm(table)
    arms = tuple(_layer_means(arm, tones[arm].light, rows[arm]) for arm in pair)
    chart = Chart(draw_comparison(arms, n_progressive, axis_label(table.column("distance"))))
    left, right = chart.figure.axes
    for line, arm in zip(left.lines, pair, strict=True):
        chart.mark(line, arm, _tips(table, rows[arm], "distance", f"{arm}, "))
    chart.mark(right.lines[1], None, _tips(table, rows[pair[1]], "difference"))
    return chart


def _layer_means(arm: str, colour: str, rows: Sequence[Row]) -> LayerMeans:
    values = [row["distance"] for row in rows]
    known = [value for value in values if isinstance(value, Spread)]
    sd = np.nan_to_num([value.sd for value in known])
    n_seeds = int(str(rows[0]["seeds"]))
    return LayerMeans(arm, colour, np.array([value.mean for value in known]), sd, n_seeds)


def _tips(table: Table, rows: Sequence[Row], key: str, who: str = "") -> list[str]:
    return [f"{who}layer {row['layer']}: {values_text(table, row, key)}" for row in rows]


def _sign_label(changes: Sequence[float]) -> str:
    places = [f"{change:.1f}" for change in changes[:MOST_CHANGES]]
    more = len(changes) - len(places)
    return f"sign changes at {', '.join(places)}" + (f" and {more} more" if more else "")


def _title(n_first: int, n_second: int) -> str:
    if n_first == n_second == 1:
        return "one seed each: no band"
    return f"{n_first} and {n_second} seeds; bands are one s.d. over seeds"


def sign_changes(gap: Array) -> list[float]:
    """Where the difference crosses zero, in layers, linearly between two."""
    return [
        float(layer + here / (here - there))
        for layer, (here, there) in enumerate(pairwise(gap))
        if here * there < 0
    ]


def _over_seeds(runs: Sequence[Array]) -> tuple[Array, Array]:
    """Mean and sample s.d. over seeds; one seed has none."""
    each = np.stack(runs)
    spread = each.std(0, ddof=1) if len(runs) > 1 else np.zeros(each.shape[1])
    return each.mean(0), spread
