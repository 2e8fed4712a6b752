"""The schedule with the best sum of layers' scores, exactly, for every budget of time at once.

In come scores of layers by head count, and rules; out comes the best schedule for each time. A
dynamic programme over layers: the rest of a schedule depends only on the last layer's head count,
how long its phase is so far, and how many layers are away from the base count. Of prefixes that
agree in these, one that is neither better nor faster than another is dropped. Nothing is
approximated; a test compares it with all schedules one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from prism_transformer.core.errors import InputError, at_least_one
from prism_transformer.core.table import Column, Row, Table, words
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.design import RULES
from prism_transformer.schedules.rules import MIN_PHASE_LAYERS
from prism_transformer.search.scores import Blocks, blocks_apart


class Solution(NamedTuple):
    """A schedule, the sum of its layers' scores, and the time that its layers take."""

    score: float
    time: float
    heads: tuple[int, ...]

    @property
    def schedule(self) -> HeadSchedule:
        return HeadSchedule(self.heads)


class _State(NamedTuple):
    """What the rest of a schedule depends on."""

    n_heads: int
    length: int
    """of the phase so far, counted up to the least that the rules ask for"""
    away: int
    """layers that have another count than the base"""


@dataclass(frozen=True)
class Problem:
    """Scores of layers by head count, in nats, lower is better; and what is admitted."""

    scores: Sequence[Mapping[int, float]]
    h_base: int
    rules: frozenset[str] = RULES
    times: Mapping[int, float] = field(default_factory=dict)
    """of one layer, by head count; without them every schedule takes none"""
    multiple: int = 1
    """that divides every head count: queries_per_kv x tensor_parallel"""

    def __post_init__(self) -> None:
        if unknown := self.rules - RULES:
            raise InputError(f"unknown rules {sorted(unknown)}; choose from {sorted(RULES)}")
        at_least_one(queries_per_kv=self.multiple)
        for layer, own in enumerate(self.scores):
            if own and all(n % self.multiple for n in own):
                known = ", ".join(map(str, sorted(own)))
                raise InputError(
                    f"--queries-per-kv {self.multiple}: layer {layer} was scored with {known} "
                    f"heads, none a multiple of {self.multiple}; score such counts, or name others"
                )

    def counts(self, layer: int) -> list[int]:
        """Head counts that a layer may have, whatever the others have."""
        found = [n for n in sorted(self.scores[layer]) if n % self.multiple == 0]
        rules = self.rules
        if "convergence" in rules and layer == len(self.scores) - 1:
            found = [n for n in found if n == self.h_base]
        if {"convergence", "monotonicity"} <= rules:
            found = [n for n in found if n <= self.h_base]
        return found

    def next_state(self, state: _State | None, n_heads: int) -> _State | None:
        """Where a layer of so many heads leads; None where a rule forbids it."""
        least = MIN_PHASE_LAYERS if "smoothness" in self.rules else 1
        away = int(n_heads != self.h_base) if "preservation" in self.rules else 0
        total = away + (state.away if state else 0)
        if 2 * total > len(self.scores):
            return None
        if state is None:
            return _State(n_heads, 1, total)
        if "monotonicity" in self.rules and n_heads < state.n_heads:
            return None
        if n_heads == state.n_heads:
            return _State(n_heads, min(state.length + 1, least), total)
        return _State(n_heads, 1, total) if state.length >= least else None

    def ends(self, state: _State) -> bool:
        """Whether a schedule may end so."""
        return "smoothness" not in self.rules or state.length >= MIN_PHASE_LAYERS


def frontier(problem: Problem) -> list[Solution]:
    """The best schedule for every budget of time: the fastest first, each next better and slower.

    Without times it is the one best schedule.
    """
    reached: dict[_State | None, list[Solution]] = {None: [Solution(0.0, 0.0, ())]}
    for layer in range(len(problem.scores)):
        found: dict[_State | None, list[Solution]] = {}
        for state, solutions in reached.items():
            for n_heads in problem.counts(layer):
                after = problem.next_state(state, n_heads)
                if after is not None:
                    score = problem.scores[layer][n_heads]
                    time = problem.times[n_heads] if problem.times else 0.0
                    found.setdefault(after, []).extend(
                        Solution(s.score + score, s.time + time, (*s.heads, n_heads))
                        for s in solutions
                    )
        reached = {state: _undominated(each) for state, each in found.items()}
    ended = [
        solution
        for state, solutions in reached.items()
        if state is not None and problem.ends(state)
        for solution in solutions
    ]
    if not ended:
        raise InputError(
            f"no schedule of {len(problem.scores)} layers with these head counts keeps "
            f"{', '.join(sorted(problem.rules)) or 'every condition'} with h_base = "
            f"{problem.h_base}; drop a rule, or give more counts"
        )
    return _undominated(ended)


def _undominated(solutions: list[Solution]) -> list[Solution]:
    """Those that no other beats in both score and time, the fastest first."""
    kept: list[Solution] = []
    for each in sorted(solutions, key=lambda s: (s.time, s.score, s.heads)):
        if not kept or each.score < kept[-1].score:
            kept.append(each)
    return kept


def best_within(
    solutions: Sequence[Solution], budget: float | None = None, base: float = 1.0
) -> Solution:
    """The best of a frontier that takes no more time than a budget, any when left out.

    The budget is a multiple of ``base``, the time of the model as it was trained.
    """
    fitting = [each for each in solutions if budget is None or each.time <= budget * base]
    if not fitting:
        raise InputError(
            f"no schedule takes {budget:.4g} times as long as the run's own or less; the fastest "
            f"takes {solutions[0].time / base:.4g} times as long"
        )
    return fitting[-1]


def frontier_table(solutions: Sequence[Solution], base: float) -> Table:
    """A row for each; ``base`` is the time of the model as it was trained."""
    timed = base > 0
    rows: tuple[Row, ...] = tuple(
        {
            "schedule": str(s.schedule),
            "score": s.score,
            **({"time": s.time / base} if timed else {}),
        }
        for s in solutions
    )
    nats = Column("score", "nats", 4, sign=True)
    times = (Column("time", places=3),) if timed else ()
    return Table("frontier", (*words("schedule"), nats, *times), rows)


def mean_problem(
    runs: Sequence[Blocks], rules: frozenset[str] = RULES, multiple: int = 1
) -> tuple[Problem, float]:
    """The mean of several runs' block scores as a problem, and the time of what they were."""
    if not runs:
        raise InputError("no block scores; `prism search blocks RUN` makes them")
    first = runs[0]
    for other in runs:
        if reason := blocks_apart(other, first):
            raise InputError(
                f"{other.run} and {first.run} have no mean: {reason}; name runs of one model that "
                "were scored alike"
            )
    scores = [
        {n: fmean(run.scores[layer][n] for run in runs) for n in own}
        for layer, own in enumerate(first.losses)
    ]
    timed = all(run.milliseconds for run in runs)
    times = {n: fmean(r.milliseconds[n] for r in runs) for n in first.milliseconds} if timed else {}
    base = sum(times[n] for n in HeadSchedule.parse(first.schedule)) if timed else 0.0
    return Problem(scores, first.h_base, rules, times, multiple), base
