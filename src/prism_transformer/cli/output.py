"""What every command shares: the ``--json`` option, and rows as JSON or as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token

Json = Annotated[
    bool,
    Parameter(name="--json", negative=(), show_default=False, help="Print JSON for scripts."),
]


def whole(_type: type, tokens: Sequence[Token]) -> int:
    """Read a whole number as written; cyclopts' own reader would round 768.7."""
    return int(tokens[0].value)


Whole = Annotated[int, Parameter(converter=whole)]


Device = Annotated[
    str, Parameter(help="cuda or cpu; the first there is when left out.", show_default=False)
]
Rounds = Annotated[
    int,
    Parameter(converter=whole, help="How often each way is measured, in turn with the others."),
]
Figure = Annotated[Path | None, Parameter(help="Also write the figure here: .svg, .png or .pdf.")]


def print_json(value: Any) -> None:
    """Print a value as a script would read it."""
    print(json.dumps(value, indent=2))


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows of equal keys."""
    if as_json:
        print_json(rows)
        return
    from prism_transformer.terminal import make_console, row_table

    make_console().print(row_table(rows))
