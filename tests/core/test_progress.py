"""Events of progress, and what counts items."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_transformer.core.progress import (
    Advance,
    Begun,
    Event,
    Left,
    Measured,
    Note,
    Of,
    counted,
    from_line,
    silent,
    to_line,
    within,
)


def told(items: list[int], total: int | None) -> tuple[list[int], list[Event]]:
    events: list[Event] = []
    return list(counted(events.append, "reading", items, total, "files")), events


@given(st.lists(st.integers(), max_size=20), st.one_of(st.none(), st.integers(0, 30)))
def test_items_pass_and_the_last_event_ends_the_work(items: list[int], total: int | None) -> None:
    passed, events = told(items, total)
    assert passed == items
    advances = [event for event in events if isinstance(event, Advance)]
    assert advances == events
    assert advances[0].done == 0
    assert [each.done for each in advances] == sorted(each.done for each in advances)
    assert advances[-1].done == advances[-1].total == len(items)


def test_an_item_counts_when_it_is_done_and_not_when_it_is_handed_out() -> None:
    events: list[Event] = []
    items = counted(events.append, "reading", "ab", 2)
    next(items)
    assert events == [Advance("reading", 0, 2)]
    next(items)
    assert events[-1] == Advance("reading", 1, 2)


def test_a_part_is_told_as_a_part() -> None:
    events: list[Event] = []
    within(events.append, "prism-seed0")(Note("begins"))
    assert events == [Of("prism-seed0", Note("begins"))]


def test_nobody_needs_to_listen() -> None:
    assert list(counted(silent, "reading", [1, 2])) == [1, 2]


words = st.text(max_size=9)
numbers = st.floats(allow_nan=False)
values = st.dictionaries(words, st.one_of(words, numbers, st.none()), max_size=3)
single = st.one_of(
    st.builds(Note, words),
    st.builds(Advance, words, numbers, st.one_of(st.none(), numbers), words, words),
    st.builds(Measured, values),
    st.builds(Begun, words),
    st.builds(Left, words),
)


@given(st.recursive(single, lambda inner: st.builds(Of, words, inner), max_leaves=3))
def test_an_event_comes_out_of_a_pipe_as_it_went_in(event: Event) -> None:
    line = to_line(event)
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert from_line(line.encode()) == event


@pytest.mark.parametrize("line", ["", "{", "3", '{"of": [], "kind": "Of"}', '{"kind": "Note"}'])
def test_what_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"is no event|Expecting"):
        from_line(line)
