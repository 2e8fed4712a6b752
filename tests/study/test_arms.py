"""Arms that go on from others; tests/study/test_plan.py has those by preset, text and rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.core.disk import locked
from prism_transformer.study.arms import Arm, Origin
from prism_transformer.study.collected import read_collected
from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.queue import CLAIMS
from prism_transformer.study.spec import StudyError
from prism_transformer.study.worker import Worker
from prism_transformer.training.api import resume
from prism_transformer.training.reslicing import RESLICE, reslice
from prism_transformer.training.run import read_metrics
from tests.study.files import ARMS, HEAD, finish_study, plan_of, tiny_plan
from tests.training.runs import assert_same_end

LATE = 'late = { schedule = "prism", from = "uniform@0.5" }\n'


def test_an_arm_says_where_it_begins(tmp_path: Path) -> None:
    naive = 'naive = { schedule = "prism", from = "uniform@0.25", map = "reshape" }\n'
    plan = plan_of(tmp_path, HEAD + ARMS + naive + LATE)
    arms = {arm.name: arm for arm in plan.arms}
    assert arms["late"].origin == Origin("uniform", 0.5)
    assert arms["late"].schedule == arms["prism"].schedule
    assert arms["naive"].facts.changes == {"from": "uniform@0.25 reshape"}
    assert all(Arm.of(arm.facts) == arm for arm in arms.values())
    assert len({arm.identity for arm in arms.values()}) == 4
    # Whoever is left keeps the checkpoints at which that happens, and comes first.
    steps = plan.base.n_steps
    kept = {cell.name: cell.recipe.run.milestones for cell in plan.cells}
    assert kept["uniform-seed0"] == [round(steps / 4), round(steps / 2)]
    assert kept["prism-seed0"] == kept["late-seed0"] == []
    names = [cell.arm for cell in plan.cells if cell.seed == 0]
    assert names == ["uniform", "prism", "naive", "late"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('from = "uniform"', "write an arm and a share of its training"),
        ('from = "uniform@1.0"', "write an arm and a share of its training"),
        ('from = "nobody@0.5"', "is no arm that begins at step 0: uniform, prism"),
        ('from = "late@0.5"', "is no arm that begins at step 0: uniform, prism"),
        ('from = "prism@0.5"', "has the same schedule"),
        ('from = "uniform@0.5", map = "turned"', "map"),
        ('map = "reshape"', "of an arm without from"),
        ('from = "uniform@0.5", optim.lr = 1e-3', "keeps the recipe of 'uniform'; drop optim.lr"),
    ],
)
def test_what_cannot_begin_there_is_refused(tmp_path: Path, line: str, problem: str) -> None:
    text = f'{HEAD}{ARMS}late = {{ schedule = "prism", {line} }}\n'
    with pytest.raises(StudyError, match=problem) as refused:
        plan_of(tmp_path, text)
    assert "arms.late" in str(refused.value)


@pytest.mark.parametrize(
    "stage", ["[search]\n", "[tune]\noptim.lr = [1e-3, 2e-3, 4e-3]\nseeds = [9]\n"]
)
def test_stages_that_choose_steps_or_rates_do_not_go_with_it(tmp_path: Path, stage: str) -> None:
    with pytest.raises(StudyError, match=r"arms\.late: from and \[(search|tune)\] do not go"):
        plan_of(tmp_path, f"{HEAD}{ARMS}{LATE}{stage}")


TINY = """
base = "{base}"
baseline = "uniform"
seeds = [0]
[arms]
uniform = "uniform:8"
late = { schedule = "2x1 4x1 8x1", from = "uniform@0.35" }
"""


@pytest.mark.slow
def test_a_study_runs_it_as_the_verb_does_by_hand(tmp_path: Path, data: Path) -> None:
    study = finish_study(tiny_plan(tmp_path, data, TINY), tmp_path / "study")
    uniform, late = (study.run_of(cell).folder for cell in study.plan.cells)
    made = reslice(uniform, "2x1 4x1 8x1", tmp_path / "hand", step=7, device="cpu")
    assert_same_end(resume(made.run, device="cpu").folder, late)
    (row,) = [row for row in read_metrics(late) if row["kind"] == RESLICE]
    assert row["step"] == 7
    collected = study.collect()
    assert collected.facts.complete
    assert collected.facts.arms[1].changes == {"from": "uniform@0.35"}
    table = read_collected(study.folder / "collected").table
    changes = table[table["metric"].str.startswith("reslice.")].set_index("metric")
    assert changes["step"].unique().tolist() == [7]
    assert changes["value"].to_dict() == {
        f"reslice.{when}": row[f"loss_{when}"] for when in ("before", "reshape", "matched")
    }
    seconds = table[(table["metric"] == "seconds") & (table["arm"] == "late")]["value"].item()
    train = [row for row in read_metrics(late) if row["kind"] == "train"]
    own = [row["seconds"] for row in train if row["step"] > 7]  # not those of the run it left
    assert seconds == pytest.approx(sum(own))
    assert 0 < seconds < sum(row["seconds"] for row in train)
    losses = read_collected(study.folder / "collected").final_loss()
    assert losses["late"].item() != losses["uniform"].item()
    again = finish_study(study.plan, study.folder)  # nothing left to do
    assert [run.to_do(20) for run in again.runs] == [[], []]


@pytest.mark.slow
def test_a_run_that_nobody_has_begun_is_trained_up_to_there(tmp_path: Path, data: Path) -> None:
    """As where another machine trains it, whose folder is not seen from here."""
    plan, folder = tiny_plan(tmp_path, data, TINY), tmp_path / "study"
    worker = Worker(plan, folder, device="cpu")
    worker.do("late-seed0", 20)
    home = StudyFolder(plan, folder)
    assert [run.step for run in home.runs] == [7, 20]
    with locked(folder / CLAIMS / "uniform-seed0"):  # whoever holds it is waited for
        assert home.run_of(plan.cells[1]).to_do(20) == []
    worker.do("uniform-seed0", 20)
    assert [run.step for run in home.runs] == [20, 20]
