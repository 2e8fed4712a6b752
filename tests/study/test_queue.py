"""The queue: each cell once, none lost, whoever dies."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from prism_transformer.errors import InputError
from prism_transformer.study.cell import CellFailed, Interrupted
from prism_transformer.study.plan import Plan, make_plan
from prism_transformer.study.queue import Queue, shown, trial_key

STUDY = """
base = "base/nano"
baseline = "uniform"
seeds = [0, 1, 2]
[arms]
uniform = "uniform:8"
prism = "2x2 4x2 8x4"
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    file = tmp_path / "queued.toml"
    file.write_text(STUDY, "utf-8")
    return make_plan(file)


class Doing:
    """Does every cell at once, and remembers which."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, name: str, until: int) -> tuple[float, float]:
        self.seen.append(name)
        return 1.0, 1.0


def filled(plan: Plan, folder: Path, **done: tuple[float, float]) -> Queue:
    queue = Queue(plan, folder)
    keys = {trial_key(name.replace("_", "-"), 9): values for name, values in done.items()}
    queue.fill([(cell, 9) for cell in plan.cells], keys)
    return queue


def test_each_cell_is_done_once_in_the_planned_order(plan: Plan, tmp_path: Path) -> None:
    queue = filled(plan, tmp_path)
    do = Doing()
    queue.work(do)
    assert do.seen == [cell.name for cell in plan.cells]
    filled(plan, tmp_path).work(lambda name, until: pytest.fail(f"{name} again"))
    assert queue.counts()[TrialState.COMPLETE] == 6


def test_what_run_folders_hold_needs_no_work(plan: Plan, tmp_path: Path) -> None:
    queue = filled(plan, tmp_path, uniform_seed0=(3.0, 100.0), prism_seed2=(2.5, 90.0))
    do = Doing()
    queue.work(do)
    assert len(do.seen) == 4
    assert not {"uniform-seed0", "prism-seed2"} & set(do.seen)


def test_a_failed_cell_is_named_the_rest_goes_on_and_it_is_tried_again(
    plan: Plan, tmp_path: Path
) -> None:
    def do(name: str, until: int) -> tuple[float, float]:
        if name == "prism-seed1":
            raise CellFailed("loss is nan")
        return 1.0, 1.0

    queue = filled(plan, tmp_path)
    queue.work(do)
    assert queue.failures() == {"prism-seed1": "loss is nan"}
    assert queue.counts()[TrialState.COMPLETE] == 5
    again = Doing()
    filled(plan, tmp_path).work(again)
    assert again.seen == ["prism-seed1"]
    assert queue.failures() == {}


@pytest.mark.parametrize("stop", [Interrupted("enough"), KeyboardInterrupt()])
def test_an_interrupted_cell_goes_back(plan: Plan, tmp_path: Path, stop: BaseException) -> None:
    def give_up(name: str, until: int) -> tuple[float, float]:
        raise stop

    queue = filled(plan, tmp_path)
    with pytest.raises(type(stop)):
        queue.work(give_up)
    do = Doing()
    filled(plan, tmp_path).work(do)
    assert do.seen == [cell.name for cell in plan.cells]  # where it was, not behind all others


CLAIM = """
import os, sys
from pathlib import Path
from prism_transformer.study.plan import make_plan
from prism_transformer.study.queue import Queue
plan = make_plan(Path(sys.argv[1]))
queue = Queue(plan, Path(sys.argv[2]), heartbeat=int(sys.argv[3]))
queue.work(lambda name, until: os.kill(os.getpid(), 9))
"""


def die_with_a_cell(plan: Plan, folder: Path, heartbeat: int = 10) -> None:
    command = [sys.executable, "-c", CLAIM, str(plan.file), str(folder), str(heartbeat)]
    assert subprocess.run(command, check=False).returncode == -9


def test_a_killed_worker_of_this_machine_is_noticed_at_once(plan: Plan, tmp_path: Path) -> None:
    filled(plan, tmp_path)
    die_with_a_cell(plan, tmp_path)
    queue = filled(plan, tmp_path)
    assert queue.counts()[TrialState.RUNNING] == 0
    do = Doing()
    queue.work(do)
    assert sorted(do.seen) == sorted(cell.name for cell in plan.cells)


@pytest.mark.slow
def test_a_killed_worker_of_another_machine_is_noticed_by_its_heartbeat(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(plan, tmp_path)
    die_with_a_cell(plan, tmp_path, heartbeat=1)
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    queue = Queue(plan, tmp_path, heartbeat=1)
    queue.fill([(cell, 9) for cell in plan.cells], {})
    assert queue.counts()[TrialState.RUNNING] == 1  # it may be alive, for all we know
    do = Doing()
    queue.work(do)
    assert sorted(do.seen) == sorted(cell.name for cell in plan.cells)


def test_two_who_fill_at_once_make_no_cell_run_twice(plan: Plan, tmp_path: Path) -> None:
    queue = filled(plan, tmp_path)
    study = queue._load()
    study.add_trial(queue._trial(plan.cells[0], 9, None))  # as another machine would
    do = Doing()
    queue.work(do)
    assert sorted(do.seen) == sorted(cell.name for cell in plan.cells)


def test_arms_can_be_added_later(plan: Plan, tmp_path: Path) -> None:
    filled(plan, tmp_path).work(lambda name, until: (1.0, 1.0))
    plan.file.write_text(STUDY + 'reversed = "reversed"\n', "utf-8")
    longer = make_plan(plan.file)
    queue = Queue(longer, tmp_path)
    done = {trial_key(cell.name, 9): (1.0, 1.0) for cell in plan.cells}
    queue.fill([(cell, 9) for cell in longer.cells], done)
    do = Doing()
    queue.work(do)
    assert do.seen == ["reversed-seed0", "reversed-seed1", "reversed-seed2"]


def test_optuna_itself_sees_schedules_losses_and_rates(plan: Plan, tmp_path: Path) -> None:
    queue = filled(plan, tmp_path)
    queue.work(lambda name, until: (3.25, 4000.0))
    study = optuna.load_study(study_name="queued", storage=f"sqlite:///{tmp_path / 'queue.db'}")
    frame = study.trials_dataframe()
    assert set(frame["params_arm"]) == {"uniform: 8x8", "prism: 2x2 4x2 8x4"}
    assert set(frame["values_validation loss"]) == {3.25}
    assert set(frame["values_tokens per second"]) == {4000.0}


def test_work_without_a_study_says_how_to_begin(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="prism study plan"):
        Queue(plan, tmp_path).work(lambda name, until: (1.0, 1.0))


def test_a_storage_that_cannot_be_opened_is_named_without_its_password(
    plan: Plan, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="cannot be opened") as caught:
        Queue(plan, tmp_path, "postgresql://me:secret@127.0.0.1:1/none")
    assert "secret" not in str(caught.value)
    assert shown("postgresql://me:secret@host/name") == "postgresql://host/name"
