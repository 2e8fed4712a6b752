"""Successive halving: who is dropped, who goes on, and that nothing is trained twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from prism_transformer.errors import InputError
from prism_transformer.study.plan import Plan, make_plan
from prism_transformer.study.queue import Queue
from prism_transformer.study.search import Standing, check_search, rung_steps, search
from prism_transformer.study.study import Home
from prism_transformer.study.work import Worker
from tests.study.files import STUDY, Deaf, tiny_plan, write_study
from tests.train.runs import tiny

SEARCH = """
grid = { schedule = "enumerate", rules = [], max_phases = 2, start = [1, 2], max_phase_layers = 2 }
[search]
rungs = [0.25, 0.5]
keep = 0.3
"""


class Counting(Deaf):
    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.cell = ""

    def begin(self, cell: object, until: int) -> None:
        self.cell = cell.name  # type: ignore[attr-defined]

    def row(self, row: dict[str, object]) -> None:
        self.steps[self.cell] += row["kind"] == "train"


def searched(plan: Plan, folder: Path) -> tuple[list[Standing], Counter[str]]:
    home, queue, watcher = Home(plan, folder), Queue(plan, folder), Counting()
    worker = Worker(plan, folder, watcher, device="cpu")
    found = search(home, queue, lambda: queue.work(worker.do), lambda rung: None)
    return found, watcher.steps


def test_rungs_are_validations(data: Path) -> None:
    recipe = tiny(data)  # 20 steps, a validation every 5
    assert rung_steps(recipe, [0.25, 0.5]) == [5, 10, 20]
    assert rung_steps(recipe, [0.01, 0.2, 0.3, 0.9, 0.99]) == [5, 20]


@pytest.mark.slow
def test_a_search_drops_the_worse_and_finishes_the_best(tmp_path: Path, data: Path) -> None:
    text = STUDY.replace("[0, 1]", "[0]") + SEARCH
    plan = tiny_plan(tmp_path, data, text)
    n_arms = len(plan.arms)
    assert n_arms > 6
    found, steps = searched(plan, tmp_path / "tiny")
    rungs = {step: [each for each in found if each.step == step] for step in (5, 10, 20)}
    kept = -(-3 * (n_arms - 1) // 10)
    assert len(rungs[5]) == n_arms
    assert len(rungs[10]) == 1 + kept
    assert len(rungs[20]) == 1 + -(-3 * kept // 10)
    by_hand = sorted(rungs[5][1:], key=lambda each: each.loss)[:kept]
    assert {each.arm for each in rungs[10]} == {"uniform", *(each.arm for each in by_hand)}
    assert steps["uniform-seed0"] == 20
    assert sum(steps.values()) == 5 * n_arms + 5 * (1 + kept) + 10 * len(rungs[20])
    best = min(found[-len(rungs[20]) :], key=lambda each: each.loss)
    assert best.kept  # nobody dominates the lowest loss

    again, steps = searched(plan, tmp_path / "tiny")
    assert [each.loss for each in again] == [each.loss for each in found]
    assert not sum(steps.values())


def test_a_search_that_cannot_be_is_refused(tmp_path: Path, data: Path) -> None:
    with pytest.raises(InputError, match=r"has no \[search\]"):
        check_search(tiny_plan(tmp_path, data))
    swept = STUDY + SEARCH + "[sweep]\noptim.lr = [1e-3, 2e-3]\n"
    with pytest.raises(InputError, match="do not go together"):
        check_search(make_plan(write_study(tmp_path, data, swept)))
