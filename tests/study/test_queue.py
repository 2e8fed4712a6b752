"""The queue: each cell once, none lost, whoever dies."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from prism_transformer.core.errors import InputError
from prism_transformer.study.plan import Plan, make_plan
from prism_transformer.study.queue import Queue, trial_key
from prism_transformer.study.runs import CellFailed
from prism_transformer.study.selection import select
from prism_transformer.study.storage import shown
from prism_transformer.training.stopping import Stopped

STUDY = """
base = "base/micro"
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


def test_who_counted_as_dead_and_comes_back_goes_on(plan: Plan, tmp_path: Path) -> None:
    """As a machine that was suspended: others have failed its trial, and queued the cell again."""
    queue, do = filled(plan, tmp_path), Doing()

    def asleep(name: str, until: int) -> tuple[float, float]:
        if not do.seen:
            study = optuna.load_study(study_name=plan.name, storage=queue.storage)
            (mine,) = study.get_trials(states=[TrialState.RUNNING])
            queue.storage.set_trial_state_values(mine._trial_id, TrialState.FAIL)
            attrs = {key: mine.user_attrs[key] for key in ("cell", "until")}
            study.enqueue_trial(mine.params, user_attrs=attrs)
        return do(name, until)

    queue.work(asleep)
    first, *rest = (cell.name for cell in plan.cells)
    assert sorted(do.seen) == sorted([first, first, *rest])
    assert queue.counts()[TrialState.COMPLETE] == 6


@pytest.mark.parametrize("stop", [Stopped("enough", 15), KeyboardInterrupt()])
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
from contextlib import nullcontext
from pathlib import Path
import optuna.study._optimize
from prism_transformer.study.plan import make_plan
from prism_transformer.study.queue import Queue
optuna.study._optimize.get_heartbeat_thread = lambda *_: nullcontext()  # it comes too late
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


OPEN = """
import sys
from pathlib import Path
from prism_transformer.study.plan import make_plan
from prism_transformer.study.queue import Queue
sys.stdin.read()  # all begin when the test closes it
Queue(make_plan(Path(sys.argv[1])), Path(sys.argv[2]))
"""


def test_several_that_open_a_new_queue_at_once_do_not_crash(plan: Plan, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPEN, str(plan.file), str(tmp_path / "new")]
    openers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)
    ]
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.close()
        opener.stdin = None
    for opener in openers:
        _, said = opener.communicate(timeout=120)
        assert opener.returncode == 0, said.decode()


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


def test_a_selection_is_done_alone_and_leaves_the_rest_waiting(plan: Plan, tmp_path: Path) -> None:
    filled(plan, tmp_path)
    few, do = select(plan, "1", "uniform,prism"), Doing()
    filled(few, tmp_path).work(do)  # behind the two cells of seed 0, which wait in the same queue
    assert do.seen == ["uniform-seed1", "prism-seed1"]
    rest = Doing()
    Queue(plan, tmp_path).work(rest)
    assert sorted(rest.seen) == sorted(c.name for c in plan.cells if c.seed != 1)
    filled(plan, tmp_path).work(lambda name, until: pytest.fail(f"{name} again"))


def test_a_queue_made_anew_for_a_selection_keeps_the_others(plan: Plan, tmp_path: Path) -> None:
    queue, done = filled(plan, tmp_path), list[str]()

    def twice(name: str, until: int) -> tuple[float, float]:
        if len(done) == 2:
            raise Stopped("enough", 15)
        done.append(name)
        return 1.0, 1.0

    with pytest.raises(Stopped):
        queue.work(twice)
    few = select(plan, "0")
    # Its stages are not done any more, which Optuna's finished trials cannot say.
    undone = {trial_key(cell.name, 9) for cell in few.cells}
    again, do = Queue(few, tmp_path), Doing()
    again.fill([(cell, 9) for cell in few.cells], {}, undone)
    again.work(do)
    assert do.seen == done == ["uniform-seed0", "prism-seed0"]
    rest = Doing()
    Queue(plan, tmp_path).work(rest)
    assert sorted(rest.seen) == sorted(c.name for c in plan.cells if c.seed != 0)


def test_cells_that_are_done_elsewhere_are_not_taken(plan: Plan, tmp_path: Path) -> None:
    filled(plan, tmp_path)
    do = Doing()
    Queue(plan, tmp_path, collected=["uniform-seed0", "prism-seed2"]).work(do)
    assert sorted(do.seen) == ["prism-seed0", "prism-seed1", "uniform-seed1", "uniform-seed2"]


def test_a_worker_with_another_recipe_is_refused(plan: Plan, tmp_path: Path) -> None:
    other = make_plan(plan.file, ["optim.lr=0.5"])
    filled(other, tmp_path)
    filled(plan, tmp_path)  # nobody is at it: whoever begins says with what
    with pytest.raises(InputError, match=r"begun with another recipe: optim\.lr: .* -> 0\.5; give"):
        Queue(other, tmp_path).work(lambda name, until: pytest.fail(name))
    moved = make_plan(plan.file, ["data.folder=there", "run.val_every=7"])  # which change no loss
    Queue(moved, tmp_path).work(lambda name, until: (1.0, 1.0))
    # What was found with one recipe is not taken for what another finds.
    do = Doing()
    filled(other, tmp_path).work(do)
    assert do.seen == [cell.name for cell in plan.cells]


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
