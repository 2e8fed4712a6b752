"""A table as data: what is in it, and how it reads as Markdown.

``latex.py`` renders the same objects as LaTeX, ``templates/page.html`` as HTML. Text of users
(names, failures) goes into cells as it is; each renderer escapes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

MINUS, DASH, PLUS_MINUS = "\u2212", "\u2013", "\u00b1"
NONE = DASH  # in a cell that has nothing to say


@dataclass(frozen=True)
class Column:
    """A heading, with the unit of what is below it."""

    name: str
    unit: str = ""
    numeric: bool = True

    @property
    def heading(self) -> str:
        """Name and unit."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


@dataclass(frozen=True)
class Cell:
    """What stands in a cell, and the number it sorts by."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Row:
    """Cells of one arm, of the paper, or of neither."""

    cells: tuple[Cell, ...]
    arm: str | None = None
    paper: bool = False


@dataclass(frozen=True)
class Table:
    """A table with everything a reader needs to trust it."""

    key: str
    """also the name of its file"""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    """seeds, n, intervals"""
    command: str = ""
    """what made it, or where there are no rows, what fills it"""
    missing: str = field(default="")
    """why there are no rows"""


def text(value: object) -> Cell:
    """A cell of words."""
    return Cell(NONE if value is None or value == "" else str(value))


def number(value: float | None, places: int = 4, *, sign: bool = False) -> Cell:
    """A cell of one number; a dash where there is none."""
    if value is None or value != value:
        return Cell(NONE)
    return Cell(signed(value, places) if sign else f"{value:,.{places}f}", float(value))


def spread(mean: float | None, deviation: float | None, places: int = 4) -> Cell:
    """Mean and s.d. in one cell; without a s.d. the mean alone."""
    if mean is None or mean != mean:
        return Cell(NONE)
    if deviation is None or deviation != deviation:
        return number(mean, places)
    return Cell(f"{mean:,.{places}f} {PLUS_MINUS} {deviation:,.{places}f}", float(mean))


def interval(low: float | None, high: float | None, places: int = 4) -> Cell:
    """Both ends of an interval; it sorts by the lower."""
    if low is None or high is None or low != low or high != high:
        return Cell(NONE)
    return Cell(f"{signed(low, places)} to {signed(high, places)}", float(low))


def signed(value: float, places: int = 4) -> str:
    """With a sign that is not a hyphen."""
    return f"{value:+,.{places}f}".replace("-", MINUS)


def to_markdown(table: Table) -> str:
    """A pipe table with its title above and its note below."""
    lines = [f"**{markdown_text(table.title)}**", ""]
    if table.missing:
        lines += [f"*Not measured: {markdown_text(table.missing)}*"]
    else:
        rule = ("--:" if column.numeric else ":--" for column in table.columns)
        lines += [_pipes(markdown_text(column.heading) for column in table.columns), _pipes(rule)]
        lines += [_pipes(markdown_text(cell.text) for cell in row.cells) for row in table.rows]
    below = markdown_text(table.note) + (
        f" Made by {markdown_code(table.command)}." if table.command else ""
    )
    return "\n".join([*lines, "", below.strip()]) + "\n"


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def markdown_code(words: str) -> str:
    """Words as code, whatever they contain."""
    fence = "`" * (1 + max(map(len, re.findall("`+", words)), default=0))
    room = " " if "`" in words else ""
    return f"{fence}{room}{' '.join(words.split())}{room}{fence}"


MARKDOWN = str.maketrans(
    {c: "\\" + c for c in "\\`*_[]|"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
)


def markdown_text(words: str) -> str:
    """Words as they are, whatever Markdown or HTML would make of them."""
    return " ".join(words.split()).translate(MARKDOWN)
