"""The one type of table, in every format that it knows itself."""

from __future__ import annotations

import csv
import io
import json
import re
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_transformer.core.table import (
    NONE,
    Column,
    Interval,
    Row,
    Spread,
    Table,
    markdown_code,
    markdown_text,
    number_of,
    signed,
    table_of,
    to_csv,
    to_markdown,
    words,
)

COLUMNS = (
    *words("arm"),
    Column("loss", "nats/token", 4),
    Column("difference", "nats/token", 4, sign=True),
    Column("steps"),
)
ROWS: tuple[Row, ...] = (
    {"arm": "uniform", "loss": Spread(3.14159, 0.01), "difference": None, "steps": 1536},
    {"arm": "prism", "loss": Spread(3.12), "difference": -0.0190, "steps": 1536},
)
TABLE = Table("results", COLUMNS, ROWS, "Results", "Two arms.", "prism study run nano")


def test_columns_write_values_and_rows_hold_them() -> None:
    assert TABLE.texts(ROWS[0]) == ["uniform", "3.1416 \u00b1 0.0100", NONE, "1,536"]
    assert TABLE.texts(ROWS[1]) == ["prism", "3.1200", "\u22120.0190", "1,536"]
    assert TABLE.values("steps") == [1536, 1536]


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (Column("x"), 0.00123456, "0.00123"),
        (Column("x"), 1234567, "1,234,567"),
        (Column("x", places=1), 1234.56, "1,234.6"),
        (Column("x", places=2), -1.005, "\u22121.00"),
        (Column("x", places=0), 7, "7"),
        (Column("x", places=2, sign=True), 0.5, "+0.50"),
        (Column("x", places=2, sign=True), Interval(-1, 2), "\u22121.00 to +2.00"),
        (Column("x", digits=2), Interval(0.012, 0.0136), "0.012 to 0.014"),  # rates have no sign
        (Column("x", places=2), Interval(nan, nan), NONE),
        (Column("x", places=2), nan, NONE),
        (Column("x", places=2), Spread(nan, nan), NONE),
        (Column("x", numeric=False), "", NONE),
    ],
)
def test_values_as_readers_see_them(column: Column, value: object, expected: str) -> None:
    assert column.text(value) == expected  # type: ignore[arg-type]


def test_what_a_value_sorts_by() -> None:
    column = Column("x")
    assert [column.order(v) for v in (Spread(2, 1), Interval(3, 4), 5, "word", None)] == [
        2, 3, 5, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("row", [{"arm": "prism"}, {**ROWS[0], "loss_": 1.0}])
def test_rows_have_the_keys_of_the_columns(row: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"row 0: .* not in both row and columns"):
        Table("results", COLUMNS, (row,))  # type: ignore[arg-type]


def test_a_column_stands_there_once() -> None:
    with pytest.raises(ValueError, match="a column twice"):
        Table("results", (Column("x"), Column("x")), ())


def test_columns_follow_from_rows() -> None:
    table = table_of("speed", [{"way": "eager", "ms": None}, {"way": "compiled", "ms": 1.5}])
    assert [column.numeric for column in table.columns] == [False, True]
    assert str(table).splitlines() == ["way        ms", "eager       \u2013", "compiled  1.5"]


def test_scripts_read_numbers_in_full() -> None:
    rows = json.loads(json.dumps(TABLE.plain_rows()))
    assert rows[0]["loss"] == {"mean": 3.14159, "sd": 0.01}
    assert rows[0]["difference"] is None
    assert rows[1]["loss"] == {"mean": 3.12, "sd": None}
    assert rows[1]["steps"] == 1536


def test_spreadsheets_get_two_columns_for_a_spread() -> None:
    head, *rows = csv.reader(io.StringIO(to_csv(TABLE)))
    assert head == [
        "arm", "loss [nats/token] mean", "loss [nats/token] sd", "difference [nats/token]", "steps",
    ]  # fmt: skip
    assert rows == [
        ["uniform", "3.14159", "0.01", "", "1536"],
        ["prism", "3.12", "", "-0.019", "1536"],
    ]


def test_markdown_has_title_note_and_command() -> None:
    lines = to_markdown(TABLE).splitlines()
    assert lines[0] == "**Results**"
    assert lines[2] == "| arm | loss \\[nats/token\\] | difference \\[nats/token\\] | steps |"
    assert lines[3] == "| :-- | --: | --: | --: |"
    assert lines[-1] == "Two arms. Made by `prism study run nano`."


def test_an_empty_table_says_what_is_missing() -> None:
    empty = Table("results", COLUMNS, (), "Results", missing="no run <yet>")
    assert "*Not measured: no run &lt;yet&gt;*" in to_markdown(empty)


def test_notebooks_get_escaped_html() -> None:
    html = table_of("x", [{"arm": "<b>&", "n": 1}])._repr_html_()
    assert ">&lt;b&gt;&amp;</td>" in html
    assert "<b>" not in html


@given(st.text())
def test_no_text_breaks_a_markdown_row(text: str) -> None:
    body = to_markdown(table_of("x", [{"arm": text or "-", "n": 1}])).splitlines()[2]
    assert len(re.findall(r"(?<!\\)\|", re.sub(r"\\\\", "", body))) == 3
    assert "<" not in markdown_text(text)
    assert "\n" not in markdown_code(text)


@given(st.floats(-1e6, 1e6), st.integers(0, 6))
def test_signs_are_no_hyphens_and_numbers_come_back(value: float, places: int) -> None:
    shown = signed(value, places)
    assert shown[0] in "+\u2212"
    back = float(shown.replace("\u2212", "-").replace(",", ""))
    assert abs(back - value) <= 0.5 * 10**-places + 1e-9


@pytest.mark.parametrize(
    ("things", "said"), [(0, "0 seeds"), (1, "1 seed"), ([7, 8], "2 seeds"), (9000, "9,000 seeds")]
)
def test_one_is_no_plural(things: int | list[int], said: str) -> None:
    assert number_of(things, "seed") == said
