from __future__ import annotations

import re

import pytest

from prism_transformer.report.latex import to_latex
from prism_transformer.report.table import (
    Column,
    Row,
    Table,
    interval,
    number,
    spread,
    text,
    to_markdown,
)

NASTY = r"<b>a|b</b> & 100% $x_1$ #{~^} \end `code` [link](x)"


def table(*words: str) -> Table:
    columns = (Column("name", numeric=False), Column("loss", "nats/token"))
    rows = tuple(Row((text(word), number(1.5))) for word in words)
    return Table("one", "A title", columns, rows, note="3 seeds.", command="prism study run x")


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (number(1234.5, 1), "1,234.5"),
        (number(-0.5, 1, sign=True), "\u22120.5"),
        (number(float("nan")), "\u2013"),
        (number(None), "\u2013"),
        (spread(1.0, float("nan"), 1), "1.0"),
        (spread(1.0, 0.25, 2), "1.00 \u00b1 0.25"),
        (interval(float("nan"), 1.0), "\u2013"),
        (text(""), "\u2013"),
        (text(0), "0"),
    ],
)
def test_cells(cell: object, expected: str) -> None:
    assert cell.text == expected  # type: ignore[attr-defined]


def test_markdown_shows_names_as_text() -> None:
    rows = to_markdown(table(NASTY, "two\nlines")).splitlines()
    body = [row for row in rows if row.startswith("| ")]
    assert body[0] == "| name | loss \\[nats/token\\] |"
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in body)
    assert "<" not in body[2]
    assert body[3] == "| two lines | 1.5000 |"


def test_markdown_and_latex_say_what_is_missing() -> None:
    gap = Table("one", "A title", (), (), missing="no run", command="prism eval RUN")
    assert "Not measured: no run" in to_markdown(gap)
    assert "prism eval RUN" in to_markdown(gap)
    assert "Not measured: no run" in to_latex(gap)
    assert "tabular" not in to_latex(gap)
