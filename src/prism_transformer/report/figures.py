"""A figure of a report: picture, words, and the numbers it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from prism_transformer.report.drawing import Picture, Series
from prism_transformer.report.palette import Tone
from prism_transformer.report.table import (
    PLUS_MINUS,
    Cell,
    Column,
    Row,
    Table,
    number,
    text,
)
from prism_transformer.report.views import View

# What makes an input that is missing.
ANALYZE = "prism analyze RUN, and the report again"
LOSS = "prism study run, of a study with [loss]"
STUDY = "prism study run"

MOST_LISTED = 12

Tones = Mapping[str, Tone]


@dataclass(frozen=True)
class Drawing:
    """A figure with what a reader needs to trust it, or the reason why there is none."""

    key: str
    title: str
    picture: Picture | None
    alt: str
    """the figure in words"""
    data: Table | None
    """every number that is drawn"""
    note: str
    command: str
    missing: str = ""


def absent(view: View | None, name: str, title: str, missing: str, command: str) -> Drawing:
    """The place of a figure whose input is not there, with the command that makes it."""
    key = f"{view.key}-{name}" if view else name
    return Drawing(key, title, None, "", None, "", command, missing)


def data_table(key: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """The numbers of a figure."""
    return Table(f"{key}-data", "What is drawn", tuple(columns), tuple(rows))


def listed(parts: Sequence[str]) -> str:
    """Parts of a text alternative; where there are many, the first and how many more."""
    more = len(parts) - MOST_LISTED
    shown = [*parts[:MOST_LISTED], *([f"{more} more are in the data"] if more > 0 else [])]
    return "; ".join(shown) + "."


def seeds_note(view: View, n: int) -> str:
    """How many seeds stand behind a figure."""
    return "1 seed: no spread is known" if n == 1 else f"{n} of {len(view.seeds)} planned seeds"


def most_seeds(found: Mapping[str, pd.DataFrame]) -> int:
    """Seeds of the arm that has most."""
    return max(wide.shape[1] for wide in found.values())


def tokens_unit(tokens: float) -> tuple[float, str]:
    """Tokens in thousands, millions or billions."""
    for size, name in ((1e9, "billions"), (1e6, "millions"), (1e3, "thousands")):
        if tokens >= size:
            return size, name
    return 1.0, "tokens"


def paired_rows(found: Mapping[str, pd.DataFrame], baseline: str, arm: str) -> pd.DataFrame:
    """Arm less baseline at the places and for the seeds that both have."""
    if baseline not in found or arm not in found:
        return pd.DataFrame()
    return (found[arm] - found[baseline]).dropna(axis="columns", how="all").dropna()


def spread_of(wide: pd.DataFrame) -> np.ndarray:
    """Sample s.d. over seeds in each row; NaN for one seed."""
    return wide.std(axis=1, ddof=1).to_numpy(float)


def band(
    arm: str, tone: Tone, x: np.ndarray, wide: pd.DataFrame, where: str, *, sign: bool = False
) -> tuple[Series, list[Row]]:
    """A line of means over seeds with a band of one s.d., and its rows."""
    mean, sd, n = wide.mean(axis=1).to_numpy(float), spread_of(wide), wide.shape[1]
    tips, rows = [], []
    for here, value, around in zip(x, mean, sd, strict=True):
        shown, beside = number(value, sign=sign), number(around)
        more = f" {PLUS_MINUS} {beside.text}" if n > 1 else ""
        tips.append(f"{arm}, {where.format(f'{here:g}')}: {shown.text}{more}")
        cells = (text(arm), Cell(f"{here:g}", float(here)), shown, beside, number(n, 0))
        rows.append(Row(cells, arm))
    low, high = (mean - sd, mean + sd) if n > 1 else (None, None)
    return Series(arm, tone, x, mean, low, high, tips), rows
