"""Tables and figures of a report: what the modules by topic make them with.

A figure is drawn from one table, which it carries: title, note, command, and every number that is
drawn. Where the table has no rows, both say what is missing and which command makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pandas as pd

from prism_transformer.core.table import Column, Interval, Row, Spread, Table
from prism_transformer.figures.chart import Chart, listed
from prism_transformer.reporting.views import View
from prism_transformer.study.statistics import summarise

NATS = "nats/token"
STUDY = "prism study run"  # what makes an input that is missing


@dataclass(frozen=True)
class Drawing:
    """A table and the chart of it; none where the table has no rows."""

    table: Table
    chart: Chart | None
    alt: str
    """the figure in words"""
    says: tuple[str, ...] = ()
    """what follows from it, in sentences"""

    @property
    def key(self) -> str:
        return self.table.key

    @property
    def title(self) -> str:
        return self.table.title


def make_table(
    key: str,
    title: str,
    columns: Sequence[Column],
    rows: Iterable[Row],
    views: Sequence[View],
    *,
    note: str = "",
    fill: str = "",
    missing: str = "no run has these numbers yet",
) -> Table:
    """A table of these rows; without any, one that says what would fill it."""
    filled = tuple(rows)
    made = "; ".join(dict.fromkeys(view.facts.command for view in views))
    command = made if filled or not fill else fill
    return Table(key, tuple(columns), filled, title, note, command, "" if filled else missing)


def drawing(
    table: Table,
    draw: Callable[[Table], Chart],
    lead: str = "",
    alt: str = "",
    says: Sequence[str] = (),
) -> Drawing:
    """A table drawn. In words it is ``alt``, or else a ``lead`` and what its points say."""
    if table.missing:
        return Drawing(table, None, "")
    chart = draw(table)
    words = alt or f"{lead or table.title}: {listed(chart.ends)}"
    return Drawing(table, chart, words, tuple(says))


def in_nats(columns: Iterable[Column]) -> list[Column]:
    """Columns of a study's own table with the unit of loss as a report writes it."""
    return [replace(each, unit=NATS) if each.unit else each for each in columns]


class Ends(Protocol):
    """What has both ends of an interval: a paired test, a pooled one, the effect of a layer."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def interval(found: Ends | None, times: float = 1.0) -> Interval | None:
    """A cell with both ends; none where nothing was found."""
    return Interval(times * found.low, times * found.high) if found else None


def over_seeds(values: Iterable[float]) -> Spread | None:
    """Mean and s.d. of those that are there."""
    known = [value for value in values if value == value]
    if not known:
        return None
    summary = summarise(known)
    return Spread(summary.mean, summary.sd)


def spreads(wide: pd.DataFrame) -> list[Spread]:
    """Each row over its seeds; one seed has no s.d."""
    deviations = wide.std(axis=1, ddof=1)
    return [Spread(float(m), float(s)) for m, s in zip(wide.mean(axis=1), deviations, strict=True)]


def seeds_note(view: View, found: Mapping[str, pd.DataFrame]) -> str:
    """How many seeds stand behind a figure: those of the arm that has most."""
    n = max((wide.shape[1] for wide in found.values()), default=0)
    return (
        "1 seed: no spread is known" if n == 1 else f"{n} of {len(view.facts.seeds)} planned seeds"
    )
