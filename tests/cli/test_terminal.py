from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from prism_transformer.cli.terminal import (
    duration,
    estimate,
    print_rows,
    print_staircase,
    print_table,
    say,
)
from prism_transformer.core.table import Column, Spread, Table, table_of, words
from prism_transformer.schedule import HeadSchedule
from tests.conftest import Prism


def printed(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(("encoding", "block"), [("utf-8", "█"), ("ascii", "#")])
def test_a_terminal_without_blocks_gets_ascii(encoding: str, block: str) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_staircase(Console(file=file, width=40, highlight=False), HeadSchedule.parse("1x1 2x3"))
    file.seek(0)
    assert file.readlines()[0] == f"    2 heads |  {block * 6}\n"


def test_paths_are_printed_as_they_are() -> None:
    console = printed(20)
    say(console, "wrote some/long/path/a[b]c.png")
    assert text_of(console) == "wrote some/long/path/a[b]c.png\n"


def test_cells_are_no_markup_and_some_have_colours() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    rows = ({"arm": "a[b]c", "verdict": "holds"},)
    print_table(console, Table("t", words("arm", "verdict"), rows), {"holds": "green"})
    shown = text_of(console)
    assert "a[b]c" in shown
    assert "\x1b[32mholds" in shown


def test_tables_align_numbers() -> None:
    console = printed()
    print_table(console, table_of("t", [{"name": "a", "n": 1_000}, {"name": "b", "n": 2}]))
    assert [line.rstrip() for line in text_of(console).splitlines()] == [
        "name      n",
        "a     1,000",
        "b         2",
    ]


@pytest.mark.parametrize(
    ("encoding", "line"), [("utf-8", "1.50 \u00b1 0.25  \u2212"), ("ascii", "1.50 +- 0.25  -")]
)
def test_numbers_reach_a_terminal_that_knows_only_ascii(encoding: str, line: str) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    columns = (Column("loss", places=2), Column("gap", places=1, sign=True))
    table = Table("t", columns, ({"loss": Spread(1.5, 0.25), "gap": -0.5},))
    print_table(Console(file=file, width=40, highlight=False), table)
    file.seek(0)
    assert line in file.read()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119.6, "120 s"), (180, "3.0 min"), (9000, "2.5 h"), (864_000, "10.0 days")],
)
def test_durations_are_in_the_unit_that_suits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_rows_are_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "a[b]", "n": 1000}, {"name": "c", "n": 2}]
    print_rows(rows, as_json=True)
    assert json.loads(capsys.readouterr().out) == rows
    print_rows(rows, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["name", "n"], ["a[b]", "1,000"], ["c", "2"]]


@pytest.mark.parametrize("number", ["768.7", "1e3", "many"])
def test_whole_numbers_are_read_as_written(prism_inside: Prism, number: str) -> None:
    done = prism_inside("schedule", "check", "small", "--d-model", number)
    assert done.returncode != 0
    assert number in done.stdout + done.stderr


def test_what_was_written_is_said_without_control_characters(prism_inside: Prism) -> None:
    done = prism_inside("recipes", "prism-nano", "--out", "a\x1b[31mb.toml")
    assert (done.returncode, done.stdout) == (0, "wrote a\\x1b[31mb.toml\n")


def test_an_estimate_is_never_nothing() -> None:
    assert [estimate(each) for each in (0, 0.09, 1, 7200)] == ["0 s", "under 1 s", "1 s", "2.0 h"]


def test_names_and_numbers_stay_on_one_line_where_words_can_give_way() -> None:
    row = {"name": "baseline-medium", "about": "many words " * 9, "tokens": 20_971_520_000}
    console = printed(60)
    print_table(console, table_of("rows", [row]))
    first = text_of(console).splitlines()[1]
    assert first.startswith("baseline-medium  many words ")
    assert first.endswith("  20,971,520,000")
    narrow = printed(30)  # all must give way, and nothing is lost
    print_table(narrow, table_of("rows", [row]))
    lines = text_of(narrow).splitlines()[1:]
    assert "".join(line[:4].strip() for line in lines)
    assert "".join("".join(lines).split()).count("words") >= 1


@pytest.mark.parametrize("width", [80, 70, 62, 40])
def test_headings_break_between_words_and_never_inside_one(width: int) -> None:
    """A table of arms as wide as they come, on terminals that it just fits, or does not."""
    keys = ("optim.lr", "arm", "loss", "difference", "interval", "adjusted p", "by", "seeds")
    cells = ("0.004", "uniform-4", "3.1416 0.0143", "0.02", "-0.053 to 0.0075", "0.5", "flips", "3")
    columns = tuple(Column(key, numeric=key not in ("optim.lr", "arm", "by")) for key in keys)
    console = printed(width)
    print_table(console, Table("t", columns, (dict(zip(keys, cells, strict=True)),)))
    lines = text_of(console).splitlines()
    assert max(map(len, lines)) <= width
    said = "\n".join(lines).split()
    if width > 60:
        assert {"optim.lr", "difference", "interval", "adjusted", "seeds"} <= set(said)
    if width > 72:
        assert {"uniform-4", "3.1416", "0.0075"} <= set(said)
    together = "".join(said)
    assert sorted(together) == sorted("".join((*keys, *cells)).replace(" ", ""))
