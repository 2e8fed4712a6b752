"""What commands print with: consoles, lines, tables, JSON, the staircase of a schedule."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text
from rich.theme import Theme

from prism_transformer.core.characters import KEPT, visible
from prism_transformer.core.errors import InputError
from prism_transformer.core.table import DASH, MINUS, PLUS_MINUS, Table, table_of

if TYPE_CHECKING:
    from prism_transformer.schedule import HeadSchedule

WORD, GAP = 12, 2  # characters: the least width of a column of words, and between columns
LOOK = Theme({"markdown.code": "bold"})  # of commands in help; rich would put them on black
PLAIN: Mapping[str, str] = MappingProxyType({})
ASCII = str.maketrans({MINUS: "-", DASH: "-", PLUS_MINUS: "+-"})  # where a terminal knows no more


def make_console(*, stderr: bool = False) -> Console:
    """Standard output: colours on a terminal, plain lines elsewhere."""
    return _Console(highlight=False, stderr=stderr, theme=LOOK)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the command's ``main`` decide the exit code; rich would make it 1."""
        raise BrokenPipeError


def say(console: Console, text: str) -> None:
    """Print a line that may hold anything, paths included: no markup, no wrapping."""
    console.print(visible(text, keep=KEPT), markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value as a script would read it."""
    print(json.dumps(value, indent=2))


def list_or_copy(
    kind: str,
    name: str | None,
    out: Path | None,
    copy: Callable[[str, Path | None], Path],
    rows: Callable[[], list[dict[str, Any]]],
    as_json: bool,
) -> None:
    """Copy out the recipe or study that ships under a name; without one, list all of them."""
    if name is None and out is not None:
        raise InputError(f"--out {out} is for copying; name the {kind} too")
    if name is None:
        print_rows(rows(), as_json)
    elif as_json:
        print_json({"wrote": str(copy(name, out))})
    else:
        say(make_console(), f"wrote {copy(name, out)}")


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows of equal keys."""
    if as_json:
        print_json(rows)
    else:
        print_table(make_console(), table_of("rows", rows))


def print_table(console: Console, table: Table, styles: Mapping[str, str] = PLAIN) -> None:
    """Words to the left, numbers to the right; ``styles`` colours cells by what they say."""
    drawn = Drawn(box=None, pad_edge=False, header_style="bold")
    known = {} if "utf" in console.encoding.lower() else ASCII
    texts = [[cell.translate(known) for cell in table.texts(row)] for row in table.rows]
    widths = _widths(table, texts, console.width)
    for place, column in enumerate(table.columns):
        side: Literal["left", "right"] = "right" if column.numeric else "left"
        width = widths[place] if widths else None
        drawn.add_column(Text(column.heading), justify=side, overflow="fold", width=width)
    for row in texts:
        # As Text, so that a name with brackets in it is no markup.
        drawn.add_row(*(Text(cell, styles.get(cell, "")) for cell in row))
    console.print(drawn)


def _widths(table: Table, texts: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """The width of each column; None where even words of headings have no room, and must break.

    Names and numbers stay on one line, where that leaves the words room; else words stay whole;
    else those of headings do.
    """
    headings = [column.heading for column in table.columns]
    cells = list(zip(headings, *texts, strict=True))
    widest = [max(map(len, each)) for each in cells]
    firm = [
        each if column.numeric or not place else min(each, max(len(column.heading), WORD))
        for place, (column, each) in enumerate(zip(table.columns, widest, strict=True))
    ]
    whole = [_longest_word(" ".join(each)) for each in cells]
    room = width - GAP * (len(widest) - 1)
    for least in (firm, whole, list(map(_longest_word, headings))):
        if sum(least) <= room:
            while sum(widest) > room:  # the widest gives way first
                spare = [n for n, each in enumerate(least) if widest[n] > each]
                widest[max(spare, key=widest.__getitem__)] -= 1
            return widest
    return None


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def print_staircase(console: Console, schedule: HeadSchedule) -> None:
    """Draw the staircase, in ASCII where the terminal knows nothing else."""
    block = "█" if "utf" in console.encoding.lower() else "#"
    say(console, schedule.staircase(console.width, block))


def duration(seconds: float) -> str:
    """How long, in the unit that suits."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def estimate(seconds: float) -> str:
    """How long something should take; a time above 0 is never rounded to 0 s."""
    return "under 1 s" if 0 < seconds < 1 else duration(seconds)
