"""Interleaved rounds and what is made of them."""

from __future__ import annotations

import time

import pytest

from prism_transformer.bench.rounds import Timing, interleave, ratio, timings


def test_ways_take_turns_after_one_warm_up_each() -> None:
    calls: list[str] = []
    ways = {name: lambda name=name: calls.append(name) for name in "ab"}
    runs = list(interleave(ways, 3))
    assert calls == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert [name for name, _ in runs] == calls[2:]


def test_a_way_that_sleeps_twice_as_long_is_half_as_fast() -> None:
    ways = {"short": lambda: time.sleep(0.02), "long": lambda: time.sleep(0.04)}
    found = timings(interleave(ways, 3))
    assert found["long"].median == pytest.approx(0.04, rel=0.3)
    times, _ = ratio(found["long"], found["short"])
    assert times == pytest.approx(0.5, rel=0.3)


def test_ratios_are_taken_round_by_round() -> None:
    ours, theirs = Timing((1.0, 10.0, 2.0)), Timing((2.0, 20.0, 5.0))  # one round was slow for both
    assert ratio(ours, theirs) == (2.0, 0.25)
    assert ours.median == 2.0
    assert ours.spread == pytest.approx(2.25)
