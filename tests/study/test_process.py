"""A worker process: told on its standard input, telling on its standard output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prism_transformer.core.progress import Advance, Event, Measured, Note, Of, from_line
from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.plan import make_plan
from prism_transformer.study.process import TASK, Task
from prism_transformer.study.queue import RUNNING, WAITING
from prism_transformer.study.spec import find_study, packaged_studies
from prism_transformer.training.run import read_metrics
from tests.study.files import STUDY, tiny_plan

ONE = STUDY.replace("[0, 1]", "[0]")
ENDLESS = ONE.replace("[arms]", "[recipe]\ntrain.tokens = 51_200_000\n[arms]")


def start(task: Task) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "prism_transformer.study.process"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(task.to_line())
    process.stdin.flush()
    return process


def end(process: subprocess.Popen[bytes]) -> list[Event]:
    """Wait for its end, as a parent that lives; what it told."""
    assert process.stdout is not None
    told = process.stdout.read()
    process.wait(timeout=60)
    return [from_line(line) for line in told.splitlines()]


def hear(process: subprocess.Popen[bytes]) -> Event:
    assert process.stdout is not None
    return from_line(process.stdout.readline())


@pytest.mark.parametrize("name", [*packaged_studies()])
def test_a_task_comes_out_of_a_pipe_as_it_went_in(name: str) -> None:
    task = Task(make_plan(find_study(name)), Path("there"), None, 10, 2, "cpu", only_one=True)
    line = task.to_line()
    assert line.count(b"\n") == 1
    assert TASK.validate_json(line) == task


@pytest.mark.slow
def test_one_cell_and_no_more(tmp_path: Path, data: Path) -> None:
    plan = tiny_plan(tmp_path, data, ONE)
    study = StudyFolder(plan, tmp_path / "tiny")
    queue = study.queue()
    study.begin(queue)
    process = start(Task(plan, study.folder, None, 10, 1, "cpu", only_one=True))
    events = end(process)
    assert process.returncode == 0
    assert events[0] == Of("uniform-seed0", Advance("run", 0, 1, "stages"))
    assert events[-1] == Of("uniform-seed0", Advance("run", 1, 1, "stages"))
    assert queue.left() == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "processes"), [("parent", 1), ("signal", 1), ("parent", 2), ("signal", 2)]
)
def test_it_saves_and_leaves_when_asked_or_when_its_parent_is_gone(
    tmp_path: Path, data: Path, how: str, processes: int
) -> None:
    """Also where torchrun's processes train the cell: they hear of it once, and save."""
    plan = tiny_plan(tmp_path, data, ENDLESS)
    study = StudyFolder(plan, tmp_path / "tiny")
    queue = study.queue()
    study.begin(queue)
    process = start(Task(plan, study.folder, None, 10, processes, "cpu"))
    steps = 0
    while steps < 6:  # past the first checkpoint
        event = hear(process)
        steps += isinstance(event, Of) and isinstance(event.event, Measured)
    if how == "signal":
        process.send_signal(signal.SIGTERM)
    else:
        assert process.stdin is not None
        process.stdin.close()
    end(process)
    assert process.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    counts = queue.counts()
    assert (counts[WAITING], counts[RUNNING]) == (2, 0)  # it went back at once
    run = study.runs[0]
    assert run.step >= 4
    assert run.step == read_metrics(run.folder)[-1]["step"]  # saved where it stopped


@pytest.mark.slow
def test_what_is_wrong_is_told(tmp_path: Path, data: Path) -> None:
    plan = tiny_plan(tmp_path, data, ONE)
    process = start(Task(plan, tmp_path / "tiny", None, 10, 1, "cpu"))
    (event,) = end(process)
    assert process.returncode == 2
    assert isinstance(event, Note)
    assert "no such study" in event.line
