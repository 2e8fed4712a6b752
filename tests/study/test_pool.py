"""Workers side by side: each with its own, none lost, none left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from prism_transformer.core.errors import RunError
from prism_transformer.core.progress import Event, Note, Of
from prism_transformer.study.api import run_study
from prism_transformer.study.collected import read_collected
from prism_transformer.study.compare import compare
from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.pool import LOGS, Pool
from prism_transformer.study.process import Task
from prism_transformer.study.queue import COMPLETE
from prism_transformer.study.sharing import Share, Shares
from prism_transformer.training.run import checkpoints
from tests.study.files import STAGES, STUDY, finish_study, learnt, tiny_plan, write_study

SLOWER = STUDY.replace("[arms]", "[recipe]\ntrain.tokens = 102_400\n[arms]") + STAGES  # 200 steps
SECONDS = 300.0  # that anything here may take on a busy machine


def until(happened: Callable[[], object]) -> None:
    """Wait for something that happens in other processes."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def workers_of(folder: Path, parent: int | None = None) -> dict[int, str]:
    """Processes that work on a study in this folder, and what CUDA would show each of them.

    A process that a worker starts looks like the worker until it has become what it shall be:
    ``parent`` leaves only the workers themselves.
    """
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().split(b"\0")
            here = (place / "cwd").resolve()
            variables = (place / "environ").read_bytes().split(b"\0")
            its_parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
        ours = parent in (None, its_parent)
        if ours and b"prism_transformer.study.process" in command and here == folder:
            found[int(place.name)] = next(
                (each[21:].decode() for each in variables if each.startswith(b"CUDA_VISIBLE_")), ""
            )
    return found


def pool_of(study: StudyFolder, shares: Shares, tell: Callable[[Event], None]) -> Pool:
    queue = study.queue()
    study.begin(queue)
    task = Task(study.plan, study.folder, None, queue.heartbeat, 1, "cpu")
    return Pool(task, shares, queue, tell)


@pytest.mark.slow
def test_two_workers_find_what_one_finds(
    finished: StudyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same table, bit for bit, but for what a clock decides; and rates that judge nothing."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as the tests themselves have it
    told: list[Event] = []
    study = replace(finished, folder=tmp_path / "tiny")
    result = run_study(study, device="cpu", workers=2, tell=told.append)
    assert result.failures == {}
    pd.testing.assert_frame_equal(learnt(result.collected), learnt(finished.collect()))
    assert not [each for each in told if isinstance(each, Note)]
    names = {cell.name for cell in study.plan.cells}
    assert {each.part for each in told if isinstance(each, Of)} == names
    runs = result.collected.facts.runs
    assert [[one["workers"] for one in run.sessions] for run in runs] == [[2]] * 4
    assert {one["threads"] for run in runs for one in run.sessions} == {1}
    (row,) = result.comparison.rows
    assert (row.throughput, row.rates_beside_others) == (None, 2)
    assert "beside others" in result.comparison.table.note
    (before,) = compare(finished.collect()).rows
    assert before.throughput is not None
    assert not (study.folder / LOGS).exists()  # they had nothing to say
    assert not workers_of(Path.cwd())


def test_workers_that_cannot_start_are_not_tried_for_ever(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = StudyFolder(tiny_plan(tmp_path, data), tmp_path / "tiny")
    told: list[Event] = []
    pool = pool_of(study, Shares((Share(1), Share(1)), ""), told.append)
    monkeypatch.setattr(sys, "executable", "/bin/false")  # it ends before it takes a cell
    with pytest.raises(RunError, match=r"workers die before they take a run; see .*\.log"):
        pool.run()
    notes = [each.line for each in told if isinstance(each, Note)]
    first = r"worker [01] has died: exit code 1; another one takes its place"  # nobody knows which
    assert re.fullmatch(first, notes[0])


@pytest.mark.slow
def test_eight_workers_on_eight_devices_have_one_each(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = STUDY.replace("[0, 1]", "[0, 1, 2, 3]")
    study = StudyFolder(tiny_plan(tmp_path, data, text), tmp_path / "tiny")
    shares = Shares(tuple(Share(1, (f"GPU-{n}",)) for n in range(8)), "pretended")
    seen: list[list[str]] = []
    own = os.getpid()
    pool = pool_of(
        study, shares, lambda _event: seen.append(list(workers_of(tmp_path, own).values()))
    )
    pool.run()
    # One that is done early leaves, and its device goes to another; never to two at a time.
    assert all(len(set(at_once)) == len(at_once) for at_once in seen)
    assert {gpu for at_once in seen for gpu in at_once} == {f"GPU-{n}" for n in range(8)}
    assert pool.queue.counts()[COMPLETE] == 8
    assert {one["workers"] for run in study.collect().facts.runs for one in run.sessions} == {8}


@pytest.mark.slow
def test_a_process_of_its_own_measures_what_needs_a_quiet_machine(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where there is a GPU, whose memory it gives back."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = tiny_plan(tmp_path, data, STUDY.replace("[0, 1]", "[0]") + STAGES)
    study = StudyFolder(plan, tmp_path / "tiny")
    pool = pool_of(study, Shares((Share(1),) * 2, ""), lambda _event: None)
    pool.run()
    assert [run.to_do(20) for run in study.runs] == [["inference"]] * 2
    assert pool.queue.counts()[COMPLETE] == 2
    study.begin(pool.queue)  # what is only to be measured is nothing to queue
    assert pool.queue.left() == (0, 0)
    pool.measure()
    assert [run.to_do(20) for run in study.runs] == [[], []]


class Killing:
    """``prism study run`` with two workers, started and killed in many ways."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.folder, self.runs = folder, folder / "studies" / "tiny" / "runs"
        self.command = [sys.executable, "-m", "prism_transformer", "study", "run", str(file)]
        self.command += ["--workers", "2", "--device", "cpu"]

    def start(self) -> subprocess.Popen[str]:
        before = self.saved()
        process = subprocess.Popen(
            self.command,
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        until(lambda: process.poll() is not None or self.saved() > before)
        assert process.poll() is None, process.communicate()[0]
        return process

    def saved(self) -> int:
        """Steps that checkpoints hold, over all runs."""
        newest = (checkpoints(run)[-1:] for run in self.runs.glob("*"))
        return sum(int(each.name.removeprefix("step-")) for found in newest for each in found)

    def gone(self) -> None:
        until(lambda: not workers_of(self.folder))


@pytest.mark.slow
def test_whoever_is_killed_nothing_is_lost_and_nobody_is_left(tmp_path: Path, data: Path) -> None:
    file = write_study(tmp_path, data, SLOWER)
    study = Killing(tmp_path, file)

    parent = study.start()
    first = next(iter(workers_of(tmp_path)))
    os.kill(first, signal.SIGKILL)
    # Another one has taken its place: a killed process takes a moment to go.
    until(lambda: first not in (there := workers_of(tmp_path)) and len(there) == 2)
    parent.kill()
    said = parent.communicate()[0]
    assert "has died, which was at" in said
    assert "SIGKILL; another one takes its place" in said
    study.gone()

    parent = study.start()
    os.kill(next(iter(workers_of(tmp_path))), signal.SIGKILL)
    parent.kill()
    parent.communicate()
    study.gone()

    parent = study.start()
    parent.send_signal(signal.SIGINT)  # to it alone, as `kill` would; it tells the others
    said = parent.communicate(timeout=SECONDS)[0]
    assert parent.returncode == 128 + signal.SIGINT
    assert "stopped, all runs are saved; the same command goes on" in said
    assert not workers_of(tmp_path)
    before = study.saved()

    done = subprocess.run(
        study.command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not workers_of(tmp_path)
    assert study.saved() == 4 * 200 > before
    found = read_collected(tmp_path / "studies" / "tiny" / "collected")
    assert found.facts.complete
    home = finish_study(tiny_plan(tmp_path, data, SLOWER), tmp_path / "uninterrupted")
    pd.testing.assert_frame_equal(learnt(found), learnt(home.collect()), check_dtype=False)


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_stops_everybody_once(tmp_path: Path, data: Path) -> None:
    """It goes to the whole group of the foreground; workers hear of it from their parent alone."""
    study = Killing(tmp_path, write_study(tmp_path, data, SLOWER))
    parent = study.start()
    os.killpg(parent.pid, signal.SIGINT)
    said = parent.communicate(timeout=SECONDS)[0]
    assert "all runs are saved" in said
    assert said.count("stopping after this step") == 1
    assert not workers_of(tmp_path)
    assert not list((tmp_path / "studies" / "tiny").glob("claims/*-seed*"))  # all gave theirs back
