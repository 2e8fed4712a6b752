"""Attention profiles as rows of a table, with bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prism_transformer.analysis.profile import Profile
from prism_transformer.errors import InputError

BAR = 18  # characters of the longest


def profile_rows(
    first: Sequence[Profile], second: Sequence[Profile], statistic: str
) -> list[dict[str, Any]]:
    """A row for each layer: of one arm, or of two and their difference."""
    return _difference(first, second, statistic) if second else _single(first, statistic)


def check_comparable(profiles: Sequence[Profile]) -> None:
    """Refuse to set side by side what differs in more than its heads."""
    for other in profiles[1:]:
        for what in ("seq_len", "n_layers"):
            one, two = getattr(profiles[0], what), getattr(other, what)
            if one != two:
                raise InputError(f"these profiles cannot be compared: {what} is {one} and {two}")


def _single(profiles: Sequence[Profile], statistic: str) -> list[dict[str, Any]]:
    beside = {"sink": "sink", "rest": "distance_without_sink", "entropy": "entropy"}
    if "effective_rank" in profiles[0].statistics:
        beside["rank"] = "effective_rank"
    means, spread = _over(profiles, statistic)
    longest = np.abs(means).max() or 1.0
    return [
        {
            "layer": layer,
            "heads": profiles[0].schedule[layer],
            "width": profiles[0].widths[layer],
            statistic: float(means[layer]),
            "+-": float(spread[layer]),
            **{
                short: float(_over(profiles, name)[0][layer])
                for short, name in beside.items()
                if name != statistic
            },
            "chart": "▇" * round(BAR * abs(means[layer]) / longest),
        }
        for layer in range(len(means))
    ]


def _difference(
    first: Sequence[Profile], second: Sequence[Profile], statistic: str
) -> list[dict[str, Any]]:
    (one, spread_one), (two, spread_two) = _over(first, statistic), _over(second, statistic)
    gap = two - one
    longest = np.abs(gap).max() or 1.0
    rows = []
    for layer, value in enumerate(gap):
        bar = "▇" * round(BAR / 2 * abs(value) / longest)
        rows.append(
            {
                "layer": layer,
                "heads": f"{first[0].schedule[layer]} / {second[0].schedule[layer]}",
                "first": float(one[layer]),
                "second": float(two[layer]),
                "difference": float(value),
                "+-": float(np.hypot(spread_one[layer], spread_two[layer])),
                "chart": bar.rjust(BAR // 2) + "|" if value < 0 else " " * (BAR // 2) + "|" + bar,
            }
        )
    return rows


def _over(profiles: Sequence[Profile], statistic: str) -> tuple[np.ndarray, np.ndarray]:
    """The mean over seeds with its s.d.; of one model with its standard error over sequences."""
    each = np.stack([profile.means(statistic) for profile in profiles])
    if len(profiles) > 1:
        return each.mean(0), each.std(0, ddof=1)
    return each[0], np.array([layer[statistic].layer_error for layer in profiles[0].layers])
