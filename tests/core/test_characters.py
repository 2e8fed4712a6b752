from __future__ import annotations

import pytest

from prism_transformer.core.characters import KEPT, visible
from prism_transformer.core.table import Column, Table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("prism 3x2, größer \u2212 5 %", "prism 3x2, größer \u2212 5 %"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\x00b\x7f", r"a\x00b\x7f"),
        ("a\nb", r"a\nb"),
        ("gp\u202etxt", r"gp\u202etxt"),  # turns what follows around
        ("\udcff", r"\udcff"),  # a byte of a file name that is no UTF-8
    ],
)
def test_what_is_not_seen_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_lines_stay_where_there_may_be_some() -> None:
    assert visible("one\ntwo\x07", keep=KEPT) == "one\ntwo\\x07"


def test_a_cell_and_a_heading_of_a_table_show_escapes() -> None:
    table = Table("t", (Column("arm\x1b", numeric=False),), ({"arm\x1b": "a\x1b]0;x\x07"},))
    assert "\x1b" not in str(table)
    assert r"a\x1b]0;x\x07" in str(table)
