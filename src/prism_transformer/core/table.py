"""One type of table: rows keyed by their columns, from which everything that shows numbers is made.

The terminal, Markdown, CSV and ``--json`` are drawn here or from here; ``reporting/latex.py`` and
the page draw the same rows, and figures read them. A row holds values, never formatted text: its
column says how many decimals a reader sees. Names of users go in as they are; each renderer
escapes them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from html import escape
from math import isfinite, isnan
from typing import Any

from prism_transformer.core.characters import visible

MINUS, DASH, PLUS_MINUS = "\u2212", "\u2013", "\u00b1"
NONE = DASH  # in a cell that has nothing to say
PAPER = "paper"  # in the column ``source``: the paper's own number


@dataclass(frozen=True)
class Spread:
    """A mean with the standard deviation around it, NaN where one number has none."""

    mean: float
    sd: float = float("nan")


@dataclass(frozen=True)
class Interval:
    """Both ends of an interval."""

    low: float
    high: float


Value = str | int | float | Spread | Interval | None
Row = Mapping[str, Value]


@dataclass(frozen=True)
class Column:
    """What stands below one heading, and how its numbers are written."""

    key: str
    unit: str = ""
    places: int | None = None
    """decimals; left out, significant digits of a float and all digits of an int"""
    sign: bool = False
    """always write the sign: differences, and intervals of them"""
    numeric: bool = True
    """set to the right, sorted by value"""
    name: str = ""
    """the heading, where it is not the key: keys of two columns differ, their names need not"""
    digits: int = 3
    """significant digits, where no decimals are given"""

    @property
    def label(self) -> str:
        return self.name or self.key

    @property
    def heading(self) -> str:
        return visible(f"{self.label} [{self.unit}]" if self.unit else self.label)

    def text(self, value: Value) -> str:
        """A value as a reader sees it; a dash for what is not known."""
        if value is None or value == "" or (isinstance(value, float) and isnan(value)):
            return NONE
        if isinstance(value, str):
            return visible(value)
        if isinstance(value, Interval):
            ends = (value.low, value.high)
            write = self._signed if self.sign else self._plain
            return NONE if any(map(isnan, ends)) else " to ".join(map(write, ends))
        if isinstance(value, Spread):
            mean = self.text(value.mean)
            return mean if isnan(value.sd) else f"{mean} {PLUS_MINUS} {self._plain(value.sd)}"
        return self._signed(value) if self.sign else self._plain(value)

    def order(self, value: Value) -> float | None:
        """The number that a value sorts by; None for words."""
        if isinstance(value, Spread):
            value = value.mean
        elif isinstance(value, Interval):
            value = value.low
        if value is None or isinstance(value, str) or isnan(value):
            return None
        return float(value)

    def _plain(self, value: float) -> str:
        if self.places is None and isinstance(value, float):
            return f"{value:.{self.digits}g}".replace("-", MINUS)
        return f"{value:,.{self.places or 0}f}".replace("-", MINUS)

    def _signed(self, value: float) -> str:
        if self.places is None:
            return f"{value:+.{self.digits}g}".replace("-", MINUS)
        return signed(value, self.places)


def words(*keys: str) -> tuple[Column, ...]:
    """Columns of text."""
    return tuple(Column(key, numeric=False) for key in keys)


def signed(value: float, places: int = 4) -> str:
    """With a sign that is not a hyphen."""
    return f"{value:+,.{places}f}".replace("-", MINUS)


def number_of(things: int | Sized, noun: str) -> str:
    """How many there are: 1 seed, 2 seeds."""
    n = things if isinstance(things, int) else len(things)
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


@dataclass(frozen=True)
class Table:
    """Rows with everything a reader needs to trust them.

    A row's arm, where there is one, is its value of the column ``arm``; a row whose ``source`` is
    the paper holds the paper's numbers.
    """

    key: str
    """also the name of its file"""
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    title: str = ""
    note: str = ""
    """seeds, n, intervals"""
    command: str = ""
    """what made it, or where there are no rows, what fills it"""
    missing: str = ""
    """why there are no rows"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", tuple(self.rows))
        keys = [column.key for column in self.columns]
        if len(set(keys)) < len(keys):
            raise ValueError(f"table {self.key}: a column twice among {keys}")
        for number, row in enumerate(self.rows):
            if odd := sorted(row.keys() ^ set(keys)):
                where = f"table {self.key}, row {number}"
                raise ValueError(f"{where}: {odd} not in both row and columns")

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return True  # also without rows: it says what is missing

    def column(self, key: str) -> Column:
        return next(column for column in self.columns if column.key == key)

    def values(self, key: str) -> list[Value]:
        return [row[key] for row in self.rows]

    def texts(self, row: Row) -> list[str]:
        """The cells of a row as a reader sees them."""
        return [column.text(row[column.key]) for column in self.columns]

    def plain_rows(self) -> list[dict[str, Any]]:
        """Rows for ``--json``: numbers as they are, null for what is not known."""
        return [{key: _plain(value) for key, value in row.items()} for row in self.rows]

    def __str__(self) -> str:
        """Aligned columns, for a plain terminal or a log."""
        lines = [[column.heading for column in self.columns], *map(self.texts, self.rows)]
        widths = [max(map(len, each)) for each in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if column.numeric else cell.ljust(width)
                for cell, width, column in zip(line, widths, self.columns, strict=True)
            ).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        sides = ["right" if column.numeric else "left" for column in self.columns]
        lines = [[column.heading for column in self.columns], *map(self.texts, self.rows)]
        body = "".join(
            "<tr>"
            + "".join(
                f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>'
                for cell, side in zip(line, sides, strict=True)
            )
            + "</tr>"
            for tag, line in zip(["th", *["td"] * len(self.rows)], lines, strict=True)
        )
        return f"<table><caption>{escape(self.title)}</caption>{body}</table>"


def table_of(key: str, rows: Sequence[Mapping[str, Any]], **more: Any) -> Table:
    """A table whose columns follow from its rows: words to the left, numbers to the right."""
    texts = {name for row in rows for name, value in row.items() if isinstance(value, str)}
    names = rows[0] if rows else ()
    columns = tuple(Column(name, numeric=name not in texts) for name in names)
    return Table(key, columns, tuple(rows), **more)


def _plain(value: Value) -> Any:
    if isinstance(value, Spread):
        return {"mean": _plain(value.mean), "sd": _plain(value.sd)}
    if isinstance(value, Interval):
        return [_plain(value.low), _plain(value.high)]
    return None if isinstance(value, float) and not isfinite(value) else value


def to_csv(table: Table) -> str:
    """Rows for a spreadsheet: numbers in full; a spread and an interval take two columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = [_csv_parts(column, table.values(column.key)) for column in table.columns]
    # A column's first line is its headings, the others are its cells.
    writer.writerows(
        [cell for cells in line for cell in cells] for line in zip(*parts, strict=True)
    )
    return out.getvalue()


def _csv_parts(column: Column, values: list[Value]) -> list[list[Any]]:
    """The headings that a column needs, then its cells row by row."""
    if any(isinstance(value, Spread) for value in values):
        ends = ("mean", "sd")
    elif any(isinstance(value, Interval) for value in values):
        ends = ("low", "high")
    else:  # None is written as nothing
        return [[column.heading], *([_plain(value)] for value in values)]
    lines: list[list[Any]] = [[f"{column.heading} {end}" for end in ends]]
    for value in values:
        alone = isinstance(value, int | float) and ends[0] == "mean"  # one number has no spread
        pair = [_plain(getattr(value, end, None)) for end in ends]
        lines.append([value, None] if alone else pair)
    return lines


def to_markdown(table: Table) -> str:
    """A pipe table with its title above and its note below."""
    lines = [f"**{markdown_text(table.title)}**", ""] if table.title else []
    if table.missing:
        lines += [f"*Not measured: {markdown_text(table.missing)}*"]
    else:
        rule = ("--:" if column.numeric else ":--" for column in table.columns)
        lines += [_pipes(markdown_text(column.heading) for column in table.columns), _pipes(rule)]
        lines += [_pipes(map(markdown_text, table.texts(row))) for row in table.rows]
    made = f" Made by {markdown_code(table.command)}." if table.command else ""
    below = markdown_text(table.note) + made
    return "\n".join([*lines, "", below.strip()]) + "\n"


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def markdown_code(text: str) -> str:
    """Text as code, whatever it contains."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    room = " " if "`" in text else ""
    return f"{fence}{room}{' '.join(text.split())}{room}{fence}"


MARKDOWN = str.maketrans(
    {c: "\\" + c for c in "\\`*_[]|"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
)


def markdown_text(text: str) -> str:
    """Text as it is, whatever Markdown or HTML would make of it."""
    return " ".join(text.split()).translate(MARKDOWN)
