"""Figures of attention profiles, from plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from prism_transformer.plots.figures import STYLE

Array = np.ndarray

LABELS = {
    "distance": "mean attention distance, tokens",
    "sink": "attention on the first token",
    "distance_without_sink": "mean distance of the rest, tokens",
    "second_moment": "second moment of distance, tokens squared",
    "excess": "distance beyond uniform attention, tokens",
    "entropy": "entropy of attention, nats",
    "effective_rank": "effective rank of head outputs",
}
FIRST, SECOND, SHADE = "#4477aa", "#cc6677", "#eeeeee"
MOST_CHANGES = 6  # sign changes that a legend names; more would not fit beside the arms


def plot_profile(heads: Sequence[Array], means: Array, statistic: str, seq_len: int) -> Figure:
    """One model: each head a dot, each layer's mean on a line."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        ax = figure.subplots()
        for layer, values in enumerate(heads):
            ax.scatter([layer] * len(values), values, s=12, color=FIRST, alpha=0.35, linewidths=0)
        ax.plot(range(len(means)), means, color=FIRST, marker="o", markersize=4, label="layer mean")
        ax.set_xlabel("layer")
        ax.set_ylabel(LABELS[statistic])
        ax.set_title(f"{len(means)} layers, last half of {seq_len} tokens; dots are heads")
        ax.legend(frameon=False)
        ax.set_xticks(range(0, len(means), max(1, len(means) // 12)))
        return figure


def compare_profiles(
    first: Sequence[Array],
    second: Sequence[Array],
    names: tuple[str, str],
    n_progressive: int,
    statistic: str = "distance",
    colours: tuple[str, str] = (FIRST, SECOND),
) -> Figure:
    """Two arms over seeds, and their difference: bands are one s.d., propagated in the second.

    ``n_progressive`` layers of the second arm, from the first on, have fewer heads than the rest.
    """
    mean_a, spread_a = _over_seeds(first)
    mean_b, spread_b = _over_seeds(second)
    layers = np.arange(len(mean_a))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        means, spreads = (mean_a, mean_b), (spread_a, spread_b)
        arms = zip(means, spreads, colours, names, ("s", "o"), strict=True)
        for mean, spread, colour, name, marker in arms:
            left.plot(layers, mean, color=colour, marker=marker, markersize=4, label=name)
            left.fill_between(layers, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0)
        left.set_ylabel(LABELS[statistic])
        left.set_title(_title(len(first), len(second)), fontsize=9)
        gap, spread = mean_b - mean_a, np.hypot(spread_a, spread_b)
        right.axhline(0, color="#888888", linewidth=0.8)
        right.plot(layers, gap, color="#333333", marker="o", markersize=4)
        right.fill_between(layers, gap - spread, gap + spread, color="#333333", alpha=0.2, lw=0)
        right.set_title(f"{names[1]} less {names[0]}", fontsize=9)
        right.set_ylabel(", ".join(["difference", *LABELS[statistic].split(", ")[1:]]))
        changes = sign_changes(gap)
        for change in changes:
            right.axvline(change, color="#228833", linestyle="--", linewidth=1)
        if changes:
            right.lines[-1].set_label(_sign_label(changes))
        # Above the panels: a curve may reach any corner within them.
        handles = [*left.lines, *(right.lines[-1:] if changes else [])]
        figure.legend(handles=handles, loc="outside upper left", ncols=3, frameon=False, fontsize=8)
        for ax in (left, right):
            if n_progressive:
                ax.axvspan(-0.5, n_progressive - 0.5, color=SHADE, zorder=0)
            ax.set_xlabel("layer; shaded: fewer heads than the base")
            ax.set_xlim(-0.5, len(layers) - 0.5)
            ax.set_xticks(range(0, len(layers), max(1, len(layers) // 12)))
        return figure


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
    found = []
    for layer, (here, there) in enumerate(pairwise(gap)):
        if here * there < 0:
            found.append(float(layer + here / (here - there)))
    return found


def _over_seeds(runs: Sequence[Array]) -> tuple[Array, Array]:
    """Mean and sample s.d. over seeds; one seed has none."""
    each = np.stack(runs)
    spread = each.std(0, ddof=1) if len(runs) > 1 else np.zeros(each.shape[1])
    return each.mean(0), spread
