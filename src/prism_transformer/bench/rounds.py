"""Interleaved rounds: whatever else the machine does slows all ways alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

Way = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """What one way took in each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle of all rounds."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quickest and the slowest round, to the median."""
        return (max(self.seconds) - min(self.seconds)) / 2 / self.median


def interleave(ways: Mapping[str, Way], rounds: int) -> Iterator[tuple[str, float]]:
    """Run each way once to warm up, then all in turn, so many times; yields what each run took."""
    for way in ways.values():
        way()
    for turn in range(rounds):
        # Every other round backwards, so that no way always follows the same one.
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            started = perf_counter()
            ways[name]()
            yield name, perf_counter() - started


def timings(runs: Iterator[tuple[str, float]]) -> dict[str, Timing]:
    """Runs by way."""
    seconds: dict[str, list[float]] = {}
    for name, took in runs:
        seconds.setdefault(name, []).append(took)
    return {name: Timing(tuple(each)) for name, each in seconds.items()}


def ratio(timing: Timing, other: Timing) -> tuple[float, float]:
    """How many times as fast as the other, and half the range of that over rounds.

    Round by round, so that what slowed both in one round does not count.
    """
    pairs = [theirs / ours for ours, theirs in zip(timing.seconds, other.seconds, strict=True)]
    return median(pairs), (max(pairs) - min(pairs)) / 2
