"""Spaces of schedules, and draws from them."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.schedule import HeadSchedule, ScheduleError
from prism_transformer.schedules.design import RULES, enumerate_schedules
from prism_transformer.schedules.space import Sampling, Space

PINNED = ["1x1 4x1 2x1 1x1 2x1 4x3", "4x1 1x2 2x2 1x3"]


@pytest.mark.parametrize(
    ("text", "shown", "size"),
    [
        ("1/2/4x8", "1/2/4x8", 3**8),
        ("4/1x2, 4x2", "1/4x2 4x2", 4),
        ("1/4 1/4 2", "1/4x2 2x1", 4),
        ("3x2 12x10", "3x2 12x10", 1),
    ],
)
def test_text_and_back(text: str, shown: str, size: int) -> None:
    space = Space.parse(text)
    assert (str(space), space.size) == (shown, size)
    assert Space.parse(str(space)) == space


@pytest.mark.parametrize("text", ["", "1/x8", "a/bx2", "0/2x4", "1/2x0", "1//2x3"])
def test_what_is_no_space_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="space"):
        Space.parse(text)


def test_every_schedule_once_and_none_from_outside() -> None:
    space = Space.parse("1/4x2 2x1")
    found = space.schedules()
    assert [each.heads for each in found] == [(*ends, 2) for ends in product((1, 4), repeat=2)]
    assert all(each in space for each in found)
    for outside in ("1x2 4x1", "2x3", "1x2"):
        assert HeadSchedule.parse(outside) not in space
        with pytest.raises(ScheduleError, match="is not in the space 1/4x2 2x1"):
            space.expect(HeadSchedule.parse(outside))


def test_the_papers_rules_leave_what_the_enumeration_finds() -> None:
    kept = Space.parse("1/2/4/8x6").schedules(RULES, 64, 8)
    assert set(kept) == set(enumerate_schedules(64, 6, 8))
    with pytest.raises(InputError, match=r"none of its 64 schedules keeps convergence"):
        Space.parse("1/2x6").schedules(frozenset({"convergence"}), 64, 8)


def test_spaces_too_large_to_list_say_how_large_they_are() -> None:
    with pytest.raises(InputError, match=r"space 1/2/4x12 has 531,441 schedules"):
        Space.parse("1/2/4x12").schedules()


def test_spaces_that_no_model_has_are_refused() -> None:
    with pytest.raises(ScheduleError, match="has 8 layers but the model has 6"):
        Space.parse("1/4x8").check(64, 6)
    with pytest.raises(ScheduleError, match="layer 0: 3 heads do not divide d_model=64"):
        Space.parse("1/3x6").check(64, 6)
    with pytest.raises(ScheduleError, match="1 heads are no multiple of queries_per_kv = 2"):
        Space.parse("1/4x6").check(64, 6, 2)


def test_draws_are_a_function_of_seed_and_step() -> None:
    sampling = Sampling.parse("layers 1/2/4x8")
    drawn = [sampling.schedule(3, step) for step in range(200)]
    assert drawn == [Sampling.parse("layers 1/2/4x8").schedule(3, step) for step in range(200)]
    assert drawn != [sampling.schedule(4, step) for step in range(200)]
    assert all(each in sampling.space for each in drawn)
    # Every layer has each count about as often: 200 draws, s.d. 6.7.
    for layer in range(8):
        counts = Counter(each[layer] for each in drawn)
        assert set(counts) == {1, 2, 4}
        assert all(abs(n - 200 / 3) < 27 for n in counts.values())
    # The very draws, so that no version of Python changes what a run of before was trained under.
    assert [str(each) for each in drawn[:2]] == PINNED


def test_a_sandwich_has_both_extremes_and_draws_between() -> None:
    sampling = Sampling.parse("sandwich 1/2/4x8")
    drawn = [str(sampling.schedule(0, step)) for step in range(40)]
    assert drawn[0::4] == ["1x8"] * 10
    assert drawn[2::4] == ["4x8"] * 10
    layers = Sampling.parse("layers 1/2/4x8")
    assert drawn[1::2] == [str(layers.schedule(0, step)) for step in range(1, 40, 2)]
    with pytest.raises(ScheduleError, match="write sandwich or layers, then a space"):
        Sampling.parse("often 1/2x8")
