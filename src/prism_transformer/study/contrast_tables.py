"""Contrasts as tables: with both of their intervals, the p that decides, and every seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import floor, isnan, log10, nan
from typing import Any

from prism_transformer.core.table import Column, Interval, Row, Table, Value, signed, words
from prism_transformer.study.contrasts import Contrast, described, once
from prism_transformer.study.statistics import Paired

ADJUSTED = "Where runs are missing, the pooled difference is adjusted for them."


def digits(gap: Paired) -> int:
    """Decimals that show the two leading digits of the interval's half width; at least four."""
    width = gap.high - gap.mean if gap.n > 1 else abs(gap.mean)
    return min(max(4, 1 - floor(log10(width))), 12) if width > 0 else 4


def seed_by_seed(contrast: Contrast, places: int) -> str:
    """The difference of every seed."""
    gap = contrast.difference
    return ", ".join(signed(each, places) for each in gap.differences) if gap else ""


def contrast_table(contrasts: Sequence[Contrast], name: str, places: int) -> Table:
    """Every contrast with both of its intervals, and every seed."""
    swept = dict.fromkeys(key for each in contrasts for key in each.values)
    moved = any(each.moved for each in contrasts)
    columns = (
        *words(*swept, "contrast"),
        Column("difference", places=places, sign=True),
        Column("interval", places=places, sign=True),
        *([Column("pooled difference", places=places, sign=True)] if moved else []),
        Column("pooled interval", places=places, sign=True),
        Column("flip p"),
        Column("pooled p"),
        Column("adjusted p"),
        *words("by"),
        Column("seeds"),
        *words("seed by seed"),
    )
    keys = {column.key for column in columns}
    rows: list[Row] = [
        {key: value for key, value in _cells(each, places).items() if key in keys}
        | {key: str(each.values.get(key, "")) for key in swept}
        for each in contrasts
    ]
    note = ADJUSTED if moved else ""
    return Table("contrasts", columns, tuple(rows), f"{name}: contrasts", note)


def difference_cells(contrast: Contrast) -> dict[str, Value]:
    """The difference, its interval and the p that decides; one seed has only the first."""
    gap = contrast.difference
    tested = gap if gap and gap.n > 1 else None
    return {
        "difference": gap.mean if gap else None,
        "interval": Interval(tested.low, tested.high) if tested else None,
        "adjusted p": None if isnan(contrast.deciding_p) else contrast.deciding_p,
        "by": contrast.decided_by,
    }


def _cells(each: Contrast, places: int) -> dict[str, Value]:
    gap, pooled = each.difference, each.pooled
    return {
        "contrast": each.name,
        **difference_cells(each),
        "pooled difference": pooled.mean if pooled else None,
        "pooled interval": Interval(pooled.low, pooled.high) if pooled else None,
        "flip p": gap.p if gap and gap.n > 1 else None,
        "pooled p": pooled.p if pooled and gap and gap.n > 1 else None,
        "seeds": len(each.seeds),
        "seed by seed": seed_by_seed(each, places),
    }


# -- a line for each seed --------------------------------------------------------------------------


def seed_lines(
    contrasts: Sequence[Contrast], measure: str, point: int | None, values: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """A line for each seed of each contrast, with what all of its seeds say together.

    One line for a contrast without a seed. ``values`` of the point stand beside the contrast's own.
    """
    for each in once(contrasts):
        gap, pooled = each.difference, each.pooled
        whole = {
            "difference": gap and gap.mean, "low": gap and gap.low, "high": gap and gap.high,
            "pooled_difference": pooled and pooled.mean, "pooled_low": pooled and pooled.low,
            "pooled_high": pooled and pooled.high, "flip_p": gap and gap.p,
            "adjusted_flip_p": each.adjusted_p, "holm_flip_p": each.holm_p,
            "pooled_p": pooled and pooled.p, "holm_pooled_p": pooled and pooled.adjusted_p,
            "decided_by": each.decided_by, "verdict": each.verdict, "seeds": len(each.seeds),
        }  # fmt: skip
        what = {"contrast": each.name, "weights": described(each.weights)}
        differences = gap.differences if gap else (nan,)
        for seed, value in zip(each.seeds or (None,), differences, strict=True):
            own = {"measure": measure, "point": point, **values, **each.values, **what}
            yield {**own, "seed": seed, "seed_difference": value, **whole}
