from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from prism_transformer import cost
from prism_transformer.describe import recipe_facts, schedule_facts
from prism_transformer.design import presets, shuffle
from prism_transformer.recipe_file import load_recipe
from prism_transformer.schedule import HeadSchedule
from prism_transformer.terminal import (
    MARGIN,
    duration,
    print_schedule,
    progress,
    recipe_comments,
    row_table,
    say,
    staircase,
)


def printed(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_staircase() -> None:
    assert staircase(HeadSchedule.parse("1x1 2x2 4x3"), block="#").splitlines() == [
        "    4 heads |      ######",
        "    2 heads |  ##########",
        "    1 head  |############",
        "      layer  0          5",
    ]


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=1024).map(tuple),
    st.integers(40, 200),
)
def test_staircase_fits_the_terminal(heads: tuple[int, ...], columns: int) -> None:
    lines = staircase(HeadSchedule(heads), columns).splitlines()
    assert all(len(line) <= columns for line in lines)
    assert any("█" in line for line in lines)


def test_deep_models_share_columns_and_say_so() -> None:
    lines = staircase(HeadSchedule.parse("1x500 2x500"), columns=80).splitlines()
    assert lines[-1].endswith("15 layers a column")
    assert max(map(len, lines)) <= 80
    assert len(lines[0]) > MARGIN


def test_schedule_page_names_everything() -> None:
    console = printed(100)
    preset = presets()["config-7"]
    print_schedule(console, schedule_facts(preset.schedule, 768, 12, ["math"] * 12))
    page = text_of(console)
    for expected in (
        "2x2 4x2 8x2 12x6",
        "384",
        "beyond 256: no flash kernel",
        "math",
        "layers 0-1",
        "reversed    12x6 8x2 4x2 2x2",
        f"shuffled    {shuffle(preset.schedule, 0)}   (seed 0)",
        "bracketing  4x12, 6x12, 8x12, 12x12",
    ):
        assert expected in page


@pytest.mark.parametrize(
    ("scale", "time"),
    [
        (
            "small",
            "0.28 h at the paper's 2,875,000 tokens/s (31% utilisation); it prints 0.31 h, 11%",
        ),
        (
            "medium",
            "2.84 h at the paper's 1,025,000 tokens/s (31% utilisation); it prints 3.03 h, 7%",
        ),
        ("large", "8.88 h at the paper's 656,000 tokens/s (41% utilisation); it prints 9.09 h, 2%"),
    ],
)
def test_expected_hours_stand_beside_the_printed_ones(scale: str, time: str) -> None:
    comments = recipe_comments(recipe_facts(load_recipe(f"prism-{scale}")))
    assert time in comments
    assert all(line.startswith("# ") for line in comments.splitlines())
    memory = cost.memory(load_recipe(f"prism-{scale}"))
    assert f"{memory.total / 1024**3:.2f} GiB a device" in comments


@pytest.mark.parametrize(
    "change",
    [
        "model.schedule=2x6 12x6",
        "model.d_ff=4096",
        "train.tokens=262144",
        "train.precision=fp32",
        "train.micro_batch=8",
    ],
)
def test_another_run_than_the_papers_has_no_paper_time(change: str) -> None:
    recipe = load_recipe("prism-small", change)
    comments = recipe_comments(recipe_facts(recipe))
    assert "at 40% utilisation" in comments
    assert "the paper's" not in comments.splitlines()[-1]
    same = recipe_comments(recipe_facts(load_recipe("prism-small", "train.seed=7")))
    assert "0.28 h at the paper's" in same


def test_recipes_say_what_is_out_of_the_ordinary() -> None:
    facts = recipe_facts(load_recipe("prism-small", ["model.schedule=3x2 12x11 8x1"]))
    assert "# layers        14; breaks monotonicity" in recipe_comments(facts)
    heavy = recipe_facts(load_recipe("prism-large", ["train.micro_batch=64"]))
    assert "more than an 80 GB device has" in recipe_comments(heavy)


def test_paths_are_printed_as_they_are() -> None:
    console = printed(20)
    say(console, "wrote some/long/path/a[b]c.png")
    assert text_of(console) == "wrote some/long/path/a[b]c.png\n"


def test_progress_is_plain_lines_without_a_terminal() -> None:
    console = printed()
    assert list(progress(console, "building", [("a", 1), ("b", 2)])) == [1, 2]
    assert text_of(console) == "building a (1 of 2)\nbuilding b (2 of 2)\n"


def test_progress_is_a_bar_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    assert list(progress(console, "building", [("a", 1), ("b", 2)])) == [1, 2]
    assert "━" in text_of(console)


def test_row_table_aligns_numbers() -> None:
    console = printed()
    console.print(row_table([{"name": "a", "n": 1_000}, {"name": "b", "n": 2}]))
    assert [line.rstrip() for line in text_of(console).splitlines()] == [
        "name      n",
        "a     1,000",
        "b         2",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119.6, "120 s"), (180, "3.0 min"), (9000, "2.5 h"), (864_000, "10.0 days")],
)
def test_durations_are_in_the_unit_that_suits(seconds: float, text: str) -> None:
    assert duration(seconds) == text
