from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_transformer.schedule import (
    MARGIN,
    MAX_LAYERS,
    HeadSchedule,
    Phase,
    ScheduleError,
    head_counts,
)

SMALL = (3, 3, 6, 6, 8, 8, 12, 12, 12, 12, 12, 12)

schedules = st.lists(st.integers(1, 65_536), min_size=1, max_size=60).map(
    lambda heads: HeadSchedule(tuple(heads))
)


@pytest.mark.parametrize(
    "text",
    [
        "3x2 6x2 8x2 12x6",
        "3x2, 6x2, 8x2, 12x6",
        "3,3,6,6,8,8,12,12,12,12,12,12",
        "3 3 6 6 8 8 12x6",
        "(3, 3, 6, 6, 8, 8, 12, 12, 12, 12, 12, 12)",
        "[3,3,6,6,8,8,12,12,12,12,12,12]",
        "  3x2\t6x2\n8x2 12x6 ,",
        "3x1 3x1 6x2 8x2 12x3 12x3",
        "3X2 6*2 8\u00d72 12x6",
    ],
)
def test_every_notation_reads_as_the_same_schedule(text: str) -> None:
    assert HeadSchedule.parse(text).heads == SMALL


def test_sequences_and_numpy_integers_are_schedules() -> None:
    assert HeadSchedule.parse([3, 3, 12]).heads == (3, 3, 12)
    assert HeadSchedule.parse(np.array([3, 3, 12])).heads == (3, 3, 12)
    assert HeadSchedule([3, 12]) == HeadSchedule((3, 12))  # type: ignore[arg-type]


@given(schedules)
def test_what_is_printed_reads_back(schedule: HeadSchedule) -> None:
    assert HeadSchedule.parse(str(schedule)) == schedule
    assert HeadSchedule.parse(str(list(schedule.heads))) == schedule


@given(st.text() | st.text(alphabet="0123456789x, -()[]", max_size=30))
def test_no_text_makes_the_parser_raise_anything_but_its_own_error(text: str) -> None:
    try:
        schedule = HeadSchedule.parse(text)
    except ScheduleError:
        return
    assert 1 <= len(schedule) <= MAX_LAYERS
    assert all(n >= 1 for n in schedule.heads)


@given(schedules)
def test_phases_partition_the_layers(schedule: HeadSchedule) -> None:
    rebuilt = [phase.n_heads for phase in schedule.phases for _ in phase.layers]
    assert tuple(rebuilt) == schedule.heads
    layers = [layer for phase in schedule.phases for layer in phase.layers]
    assert layers == list(range(len(schedule)))
    counts = [phase.n_heads for phase in schedule.phases]
    assert all(a != b for a, b in pairwise(counts))


def test_small_schedule_of_the_paper() -> None:
    schedule = HeadSchedule(SMALL)
    assert str(schedule) == "3x2 6x2 8x2 12x6"
    assert schedule.phases[2] == Phase(n_heads=8, first_layer=4, n_layers=2)
    assert schedule.head_dims(768) == (256, 256, 128, 128, 96, 96, 64, 64, 64, 64, 64, 64)
    assert schedule.mean_heads == pytest.approx(106 / 12)


def test_schedule_is_immutable_and_hashable() -> None:
    schedule = HeadSchedule(SMALL)
    with pytest.raises(AttributeError):
        schedule.heads = (1,)  # type: ignore[misc]
    assert len({schedule, HeadSchedule.parse("3x2 6x2 8x2 12x6")}) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("()", "empty"),
        ("   ", "empty"),
        ("0x2", "layer 0: 0 heads"),
        ("3x2 -6x2", "layer 2: -6 heads"),
        ("3x0", "covers no layer"),
        ("3x2 banana", "cannot read 'banana' at layer 2"),
        ("3x2,,6", "cannot read '' at layer 2"),
        ("3.5x2", "cannot read '3.5x2'"),
        ("3x2x2", "cannot read '3x2x2'"),
        ("٣x2", "cannot read"),  # other scripts' digits are not notation
        ("3x999999999999", "999999999999 layers; more than"),
        ("99999999x2", "layer 0: 99999999 heads; more than"),
        ("1x600 2x600", "1200 layers; more than"),
        ("9" * 5000, "cannot read"),
    ],
)
def test_bad_text_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(ScheduleError) as error:
        HeadSchedule.parse(text)
    assert problem in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("bad", [[], [3, "6"], [3, True], [3, 6.0], [3, 0], 7, None, b"3x2"])
def test_bad_values_are_refused(bad: object) -> None:
    with pytest.raises(ScheduleError):
        HeadSchedule.parse(bad)  # type: ignore[arg-type]


def test_text_given_to_the_constructor_names_the_parser() -> None:
    with pytest.raises(ScheduleError, match=r"HeadSchedule\.parse"):
        HeadSchedule("12x12")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("heads", "d_model", "problem"),
    [
        ((3, 5), 768, "layer 1: 5 heads do not divide d_model=768; the nearest counts that fit: 4"),
        ((256,), 768, "layer 0: 256 heads split d_model=768 into heads of width 3, which is odd"),
        ((2000,), 768, "nearest counts that fit: 384"),
        ((3,), 0, "d_model=0"),
        ((3,), 9, "even"),
        ((3,), 768.0, "not a whole number"),
    ],
)
def test_layers_that_do_not_fit_name_layer_value_and_remedy(
    heads: tuple[int, ...], d_model: Any, problem: str
) -> None:
    with pytest.raises(ScheduleError) as error:
        HeadSchedule(heads).head_dims(d_model)
    assert problem in str(error.value)


def test_wrong_depth_is_refused() -> None:
    HeadSchedule(SMALL).expect_layers(12)
    with pytest.raises(ScheduleError, match="has 12 layers but the model has 24"):
        HeadSchedule(SMALL).expect_layers(24)


@given(st.integers(2, 5000))
def test_head_counts_against_brute_force(d_model: int) -> None:
    fitting = [n for n in range(1, d_model + 1) if d_model % n == 0 and (d_model // n) % 2 == 0]
    assert list(head_counts(d_model)) == fitting


def test_staircase() -> None:
    assert HeadSchedule.parse("1x1 2x2 4x3").staircase(block="#").splitlines() == [
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
    lines = HeadSchedule(heads).staircase(columns).splitlines()
    assert all(len(line) <= columns for line in lines)
    assert any("█" in line for line in lines)


def test_deep_models_share_columns_and_say_so() -> None:
    lines = HeadSchedule.parse("1x500 2x500").staircase(columns=80).splitlines()
    assert lines[-1].endswith("15 layers a column")
    assert max(map(len, lines)) <= 80
    assert len(lines[0]) > MARGIN


def test_a_notebook_shows_the_staircase() -> None:
    schedule = HeadSchedule.parse("1x1 2x3")
    shown = schedule._repr_html_()
    assert shown.startswith("<pre")
    assert f"1x1 2x3\n\n{schedule.staircase()}</pre>" in shown


def test_it_is_a_sequence_of_its_layers() -> None:
    schedule = HeadSchedule.parse("3x2 6x1 12x3")
    assert list(schedule) == [3, 3, 6, 12, 12, 12]
    assert (schedule[0], schedule[2], schedule[-1]) == (3, 6, 12)
    assert schedule[1:4] == (3, 6, 12)
    assert HeadSchedule.parse(schedule) == schedule
    with pytest.raises(IndexError):
        schedule[6]
