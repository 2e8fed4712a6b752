"""What commands print with: consoles, lines, tables, JSON, the staircase of a schedule."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
        print(f"wrote {copy(name, out)}")


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows of equal keys."""
    if as_json:
        print_json(rows)
    else:
        print_table(make_console(), table_of("rows", rows))


def print_table(console: Console, table: Table, styles: Mapping[str, str] = PLAIN) -> None:
    """Words to the left, numbers to the right; ``styles`` colours cells by what they say."""
    drawn = Drawn(box=None, pad_edge=False, header_style="bold")
    whole = _kept_whole(table, console.width)
    for index, column in enumerate(table.columns):
        side: Literal["left", "right"] = "right" if column.numeric else "left"
        drawn.add_column(
            Text(column.heading), justify=side, overflow="fold", no_wrap=index in whole
        )
    known = {} if "utf" in console.encoding.lower() else ASCII
    for row in table.rows:
        # As Text, so that a name with brackets in it is no markup.
        cells = (Text(cell.translate(known), styles.get(cell, "")) for cell in table.texts(row))
        drawn.add_row(*cells)
    console.print(drawn)


def _kept_whole(table: Table, width: int) -> set[int]:
    """Columns whose cells stay on one line: names and numbers, where that leaves the words room."""
    widest = [len(column.heading) for column in table.columns]
    for row in table.rows:
        widest = list(map(max, widest, map(len, table.texts(row))))
    firm = {index for index, column in enumerate(table.columns) if column.numeric or not index}
    least = sum(each if index in firm else min(each, WORD) for index, each in enumerate(widest))
    return firm if least + GAP * (len(widest) - 1) <= width else set()


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
