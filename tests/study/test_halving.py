"""Successive halving: who is dropped, who goes on, and that nothing is trained twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Event, Measured, Of
from prism_transformer.study.compare import compare
from prism_transformer.study.folder import StudyFolder, load_study
from prism_transformer.study.halving import (
    Rung,
    Standing,
    check_search,
    choose_rungs,
    confirming,
    early_correlations,
    rung_steps,
    search_study,
)
from prism_transformer.study.plan import Plan, make_plan
from prism_transformer.study.rungs import Rungs, write_rungs
from prism_transformer.study.sentences import remarks
from prism_transformer.study.sharing import Crew
from prism_transformer.study.spec import find_study
from prism_transformer.training.neighbours import WORKERS, told
from tests.conftest import Prism
from tests.study.files import STUDY, tiny_plan, write_study
from tests.training.runs import tiny

RESULTS = Path(__file__).parents[2] / "results" / "nano"

SEARCH = """
grid = { schedule = "enumerate", rules = [], max_phases = 2, start = [1, 2], max_phase_layers = 2 }
[search]
rungs = [0.25, 0.5]
keep = 0.3
"""


def searched(plan: Plan, folder: Path) -> tuple[list[Standing], Counter[str]]:
    """Every standing, and how many steps were taken for each run."""
    steps: Counter[str] = Counter()

    def count(event: Event) -> None:
        if isinstance(event, Of) and isinstance(event.event, Measured):
            steps[event.part] += event.event.row["kind"] == "train"

    study = StudyFolder(plan, folder)
    rungs = search_study(study, Crew("cpu"), tell=count)
    return [each for rung in rungs for each in rung.standings], steps


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


def test_a_rung_is_a_table_of_its_arms() -> None:
    standings = (
        Standing(10, "uniform", "8x3", 3.5, 0.0, 20_000.0, kept=True),
        Standing(10, "prism", "2x1 8x2", 3.25, -0.25, 19_000.4, kept=False),
    )
    between = Rung(10, 20, "uniform", standings).table
    assert between.title == "step 10 of 20: 2 arms"
    assert [column.heading for column in between.columns] == [
        "arm", "schedule", "loss", "to uniform", "tokens/s", "goes on",
    ]  # fmt: skip
    first, second = map(between.texts, between.rows)
    assert first[-1] == "yes"
    assert second[1:5] == ["2x1 8x2", "3.2500", "\u22120.2500", "19,000"]
    assert "Pareto front" in [column.key for column in Rung(20, 20, "a", standings).table.columns]
    beside = Rung(20, 20, "a", standings, beside_others=True).table
    assert "best loss" in [column.key for column in beside.columns]
    assert "compare nothing" in beside.note


@pytest.mark.slow
def test_rates_taken_beside_other_workers_keep_nobody(tmp_path: Path, data: Path) -> None:
    plan = tiny_plan(tmp_path, data, STUDY.replace("[0, 1]", "[0]") + "[search]\nrungs = [0.5]\n")
    with told({WORKERS: "2"}):
        found, _ = searched(plan, tmp_path / "tiny")
    last = [each for each in found if each.step == 20]
    assert [each.kept for each in last] == [each.loss == min(e.loss for e in last) for each in last]


def test_rates_that_a_remark_says_compare_nothing_keep_nobody(tmp_path: Path) -> None:
    """Of the nano study, whose runs are all there: at the end only the lowest loss is kept."""
    file = tmp_path / "nano.toml"
    file.write_text(find_study("nano").read_text("utf-8") + "\n[search]\nrungs = []\n", "utf-8")
    (last,) = search_study(load_study(file, tmp_path / "nano", with_=[RESULTS]), Crew("cpu"))
    assert last.beside_others
    assert [each.arm for each in last.standings if each.kept] == ["prism"]


# -- when arms are dropped, and whether the best are confirmed -------------------------------------


def test_rungs_come_from_what_finished_runs_show(tmp_path: Path) -> None:
    """Of the nano study as it was landed: an eighth of training says nothing of its end."""
    text = find_study("nano").read_text("utf-8")
    file = tmp_path / "nano.toml"
    file.write_text(text + "\n[search]\n", "utf-8")
    study = load_study(file, tmp_path / "nano", with_=[RESULTS])
    table = pd.read_csv(RESULTS / "table.csv")
    wide = table[table["metric"] == "val_loss"].pivot_table(
        index=["arm", "seed"], columns="step", values="value"
    )
    gaps = wide.drop(index="uniform", level="arm") - wide.xs("uniform", level="arm")
    by_hand = {step: np.corrcoef(gaps[step], gaps[1536])[0, 1] for step in wide if 0 < step < 1536}
    found = early_correlations(study)
    assert found == pytest.approx(by_hand)
    assert found[192] < 0.5
    rungs = choose_rungs(study)
    first = next((step / 1536 for step in by_hand if by_hand[step] >= 0.9), None)
    assert rungs.shares == (() if first is None else (first,))
    assert first is None or first >= 0.5
    assert f"{by_hand[192]:.2f} at 0.12" in rungs.why


def test_without_finished_runs_no_rung_is_below_a_half(tmp_path: Path, data: Path) -> None:
    plain = tiny_plan(tmp_path, data, STUDY + "[search]\n")
    rungs = choose_rungs(StudyFolder(plain, tmp_path / "tiny"))
    assert rungs.shares == (0.5,)
    assert "too few runs are finished" in rungs.why
    named = tiny_plan(tmp_path, data, STUDY + "[search]\nrungs = [0.25]\n")
    assert choose_rungs(StudyFolder(named, tmp_path / "tiny")).shares == (0.25,)


def test_finalists_are_confirmed_on_fresh_seeds(tmp_path: Path, data: Path) -> None:
    text = STUDY.replace("[0, 1]", "[0]") + 'back = "reversed"\n[search]\nconfirm = [5, 6]\n'
    study = load_study(write_study(tmp_path, data, text), tmp_path / "tiny")
    fresh = confirming(study, ["prism"])
    assert fresh.folder == tmp_path / "tiny" / "confirm"
    assert [cell.name for cell in fresh.plan.cells] == [
        "uniform-seed5", "prism-seed5", "uniform-seed6", "prism-seed6",
    ]  # fmt: skip
    assert {cell.recipe.train.seed for cell in fresh.plan.cells} == {5, 6}
    write_rungs(study.folder, Rungs(shares=(0.5,), why="a rung at a half"))
    told = remarks(compare(fresh.collect()))
    assert any("by the choice. Its rungs: a rung at a half." in line for line in told)
    assert any("seeds that did not choose them" in line for line in told)
    told = remarks(compare(study.collect()))
    assert any("the finalists are confirmed with seeds 5, 6" in line for line in told)
    assert fresh.collect().facts.command == "prism study search tiny"
    with pytest.raises(InputError, match=r"the search itself has \[0\]"):
        load_study(write_study(tmp_path, data, text.replace("[5, 6]", "[0, 6]")))
    with pytest.raises(InputError, match="no seeds to `confirm` with"):
        confirming(load_study(write_study(tmp_path, data, STUDY + "[search]\n")), ["prism"])


@pytest.mark.slow
def test_the_best_of_a_search_are_trained_again(tmp_path: Path, data: Path, prism: Prism) -> None:
    text = STUDY.replace("[0, 1]", "[0]") + 'back = "reversed"\n[search]\nconfirm = [5, 6]\n'
    file, folder = write_study(tmp_path, data, text), tmp_path / "tiny"
    done = prism(
        *("study", "search", str(file), "--out", str(folder), "--device", "cpu"),
        *("--workers", "1", "--json"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    best = {each["arm"] for each in found["standings"] if each["step"] == 20 and each["kept"]}
    fresh = confirming(load_study(file, folder), sorted(best))
    assert {run.cell.seed for run in fresh.runs} == {5, 6}
    assert not [run.to_do(20) for run in fresh.runs if run.to_do(20)]
    losses = {(run.cell.arm, run.cell.seed): run.values(20)[0] for run in fresh.runs}
    rows = found["confirmed"]["rows"]
    assert {row["arm"]["name"] for row in rows} == best - {"uniform"}
    for row in rows:
        by_hand = [losses[row["arm"]["name"], seed] - losses["uniform", seed] for seed in (5, 6)]
        assert row["difference"]["differences"] == pytest.approx(by_hand)
