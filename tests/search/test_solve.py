"""The exact solver against every schedule one by one."""

from __future__ import annotations

import random
from itertools import combinations, pairwise, product

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.design import RULES
from prism_transformer.schedules.rules import check_rules
from prism_transformer.search.scores import Blocks, Settings
from prism_transformer.search.solve import (
    Problem,
    best_within,
    frontier,
    frontier_table,
    mean_problem,
)

COUNTS = (1, 2, 4, 8)
EVERY_RULES = [frozenset(each) for n in range(5) for each in combinations(sorted(RULES), n)]


def brute_force(problem: Problem, budget: float | None) -> float | None:
    """The least sum of scores over all schedules that keep the rules and the budget."""
    best = None
    for heads in product(*(sorted(own) for own in problem.scores)):
        findings = check_rules(HeadSchedule(heads), 64, problem.h_base)
        if any(f.rule in problem.rules and not f.ok for f in findings):
            continue
        if any(n % problem.multiple for n in heads):
            continue
        time = score = 0.0
        for layer, n in enumerate(heads):
            score += problem.scores[layer][n]
            time += problem.times[n] if problem.times else 0.0
        if budget is None or time <= budget:
            best = score if best is None else min(best, score)
    return best


@pytest.mark.parametrize("rules", EVERY_RULES, ids=lambda rules: "+".join(sorted(rules)) or "none")
@pytest.mark.parametrize("multiple", [1, 2])
def test_it_equals_brute_force_for_every_budget(rules: frozenset[str], multiple: int) -> None:
    draw = random.Random(f"{sorted(rules)} {multiple}")
    for n_layers in (1, 4, 5):
        scores = [{n: draw.uniform(-1, 1) for n in COUNTS} for _ in range(n_layers)]
        times = {n: draw.uniform(1, 3) for n in COUNTS}
        problem = Problem(scores, 8, rules, times, multiple)
        least = brute_force(problem, None)
        if least is None:  # one layer is no phase of two
            with pytest.raises(InputError, match="drop a rule, or give more counts"):
                frontier(problem)
            continue
        solutions = frontier(problem)
        assert best_within(solutions).score == least
        for budget in [each.time for each in solutions] + [draw.uniform(1, 3) * n_layers] * 3:
            expected = brute_force(problem, budget)
            if expected is None:
                with pytest.raises(InputError, match="the fastest takes"):
                    best_within(solutions, budget)
            else:
                assert best_within(solutions, budget).score == expected


def test_a_frontier_falls_in_score_and_rises_in_time() -> None:
    draw = random.Random(1)
    scores = [{n: draw.uniform(-1, 1) for n in COUNTS} for _ in range(6)]
    solutions = frontier(Problem(scores, 8, frozenset(), {1: 4.0, 2: 3.0, 4: 2.0, 8: 1.0}))
    assert len(solutions) > 3
    for one, other in pairwise(solutions):
        assert one.time < other.time
        assert one.score > other.score
    table = frontier_table(solutions, 6.0)
    assert table.rows[0]["time"] == solutions[0].time / 6
    (only,) = frontier(Problem(scores, 8, frozenset()))
    assert only.score == solutions[-1].score


def test_what_queries_share_must_divide_some_count() -> None:
    for multiple, problem in (
        (0, "--queries-per-kv 0: give at least 1"),
        (-1, "--queries-per-kv -1"),
        (3, "--queries-per-kv 3: layer 0 was scored with 1, 2, 4 heads, none a multiple of 3"),
    ):
        with pytest.raises(InputError, match=problem):
            Problem([{1: 0.0, 2: 0.1, 4: 0.2}], 4, multiple=multiple)


def test_a_budget_is_a_share_and_is_answered_as_one() -> None:
    solutions = frontier(Problem([{1: 0.0, 2: 0.1}], 2, frozenset(), {1: 3.0, 2: 2.0}))
    assert best_within(solutions, 0.5, 4.0).heads == (2,)
    with pytest.raises(InputError, match=r"takes 0\.1 times as .* takes 0\.5 times as long"):
        best_within(solutions, 0.1, 4.0)


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(InputError, match="unknown rules"):
        Problem([{1: 0.0}], 1, frozenset({"beauty"}))


def blocks(run: str, losses: list[dict[int, float]], times: dict[int, float]) -> Blocks:
    return Blocks(
        run=run, seed=0, step=1, d_model=64, h_base=4, queries_per_kv=1, lr=0.1,
        asked=Settings(windows=1), schedule=f"4x{len(losses)}", losses=tuple(losses),
        milliseconds=times,
    )  # fmt: skip


def test_the_mean_of_several_runs_is_solved() -> None:
    one = blocks("a", [{1: 3.0, 4: 3.1}, {1: 3.3, 4: 3.1}], {1: 1.0, 4: 2.0})
    other = blocks("b", [{1: 2.9, 4: 2.6}, {1: 2.9, 4: 2.7}], {1: 3.0, 4: 4.0})
    problem, base = mean_problem([one, other], frozenset())
    assert base == pytest.approx(6.0)
    assert problem.scores[0] == pytest.approx({1: 0.1, 4: 0.0})
    assert problem.times == {1: 2.0, 4: 3.0}
    assert best_within(frontier(problem)).heads == (4, 4)
    odd = blocks("c", [{2: 3.0, 4: 3.1}, {1: 3.3, 4: 3.1}], {})
    with pytest.raises(InputError, match="c and a have no mean: other head counts; name runs of"):
        mean_problem([one, odd])
    tuned = Settings(windows=1, steps=8)
    for changes, reason in (
        ({"d_model": 512, "step": 7}, "step 7 and not 1, d_model 512 and not 64"),
        ({"asked": tuned}, "asked 1 windows 8 steps at 0.1 and not 1 windows"),
    ):
        wide = other.model_copy(update=changes)
        with pytest.raises(InputError, match=f"b and a have no mean: {reason}"):
            mean_problem([one, wide])
    with pytest.raises(InputError, match="no block scores"):
        mean_problem([])
