"""Studies on Slurm: scripts anywhere, jobs on a real one where it is installed."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from prism_transformer.core.disk import locked
from prism_transformer.core.errors import InputError
from prism_transformer.study.api import StudyFolder, load_study
from prism_transformer.study.runs import StudyRun
from prism_transformer.study.sharing import Crew
from prism_transformer.study.slurm import (
    Resources,
    do_cells,
    seconds_of,
    status_with_jobs,
    submit_study,
)
from prism_transformer.study.worker import log_of
from prism_transformer.training.run import read_environment
from tests.study.cluster import Cluster, cluster, why_not
from tests.study.files import STAGES, STUDY, finish_study, learnt, tiny_plan, write_study

# 200 steps, seconds: long enough to be interrupted in the middle.
CHANGES = "train.tokens = 102_400\nrun.val_every = 20\nrun.checkpoint_every = 10\n"
LONG = STUDY.replace("[arms]", f"[recipe]\n{CHANGES}[arms]")
SIX = LONG + 'reversed = "reversed"\n' + STAGES.partition("[inference]")[0]


def dry(study: StudyFolder, resources: Resources | None = None, **how: Any) -> str:
    return submit_study(study, resources, dry_run=True, **how).script


def test_the_script_asks_for_what_was_asked_and_nothing_is_written(
    tmp_path: Path, data: Path
) -> None:
    study = load_study(write_study(tmp_path, data), tmp_path / "tiny")
    asked = Resources("gpu", 2, 8, 12, "64G", "4:00:00", 300, {"account": "lab"})
    lines = dry(study, asked).splitlines()
    for option in (
        "partition=gpu", "nodes=2", "ntasks-per-node=1", "gpus-per-node=8", "cpus-per-task=12",
        "mem=64G", "time=4:00:00", "signal=B:USR1@300", "account=lab", "requeue", "array=0-3%4",
        f"output={tmp_path}/tiny/slurm/%A_%a.log", f"chdir={Path.cwd()}",
    ):  # fmt: skip
        assert f"#SBATCH --{option}" in lines
    assert "cells=(uniform-seed0 prism-seed0 uniform-seed1 prism-seed1)" in lines
    (command,) = [line for line in lines if line.startswith(sys.executable)]
    assert f"study work {study.plan.file} --out {study.folder} --processes 16 " in command
    assert not study.folder.exists()


def test_what_was_not_asked_for_is_left_to_the_cluster(tmp_path: Path, data: Path) -> None:
    script = dry(load_study(write_study(tmp_path, data), tmp_path / "tiny"))
    options = {line.split()[1].split("=")[0] for line in script.splitlines() if "#SBATCH" in line}
    assert options == {
        "--array", "--chdir", "--job-name", "--nodes", "--ntasks-per-node", "--open-mode",
        "--output", "--requeue", "--signal",
    }  # fmt: skip
    assert "--processes 1 " in script


def test_a_shell_can_read_every_script(tmp_path: Path, data: Path) -> None:
    odd = tmp_path / "a folder 'of ours'"
    odd.mkdir()
    study = load_study(write_study(odd, data), odd / "tiny")
    for workers in (None, 3):
        script = dry(study, workers=workers)
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def run_by_hand(script: str, folder: Path, task: str) -> subprocess.CompletedProcess[str]:
    """Task 1 of job 7 without Slurm: another line of shell is what it runs."""
    lines = script.splitlines()
    (where,) = [n for n, line in enumerate(lines) if line.startswith(sys.executable)]
    lines[where] = f"bash -c {shlex.quote(task)} --cell {lines[where].partition(' --cell ')[2]}"
    (folder / "scontrol").write_text('#!/bin/sh\necho "$@"\n')
    (folder / "scontrol").chmod(0o755)
    environment = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}
    environment["PATH"] = f"{folder}:/usr/bin:/bin"
    return subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ("", 0, ["prism-seed0"]),
        ("", 3, ["prism-seed0"]),
        ("USR1", 143, ["prism-seed0", "saving", "requeue 7_1"]),
        ("USR1", 0, ["prism-seed0", "saving"]),  # it was done before it could stop
        ("TERM", 143, ["prism-seed0"]),  # cancelled, or preempted: Slurm knows what comes next
    ],
)
def test_a_task_is_queued_again_when_its_time_was_up_and_only_then(
    tmp_path: Path, data: Path, asked: str, code: int, said: list[str]
) -> None:
    script = dry(load_study(write_study(tmp_path, data), tmp_path / "tiny"))
    # The task ends when it was told to save, however long a busy machine takes for that.
    saves = "trap 'echo saving; saved=yes' TERM; echo $1; "
    waits = 'until [ -n "$saved" ]; do sleep 0.05; done; ' if "saving" in said else "sleep 0.5; "
    signals = f"kill -{asked} $PPID; " if asked else ""
    done = run_by_hand(script, tmp_path, f"{saves}{signals}{waits}exit {code}")
    assert done.stdout.split("\n")[:-1] == said
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("90", 5400), ("90:30", 5430), ("4:00:00", 14400), ("1-12", 129_600),
        ("1-12:30", 131_400), ("2-00:00:05", 172_805),
    ],
)  # fmt: skip
def test_times_are_read_as_slurm_reads_them(time: str, seconds: int) -> None:
    assert seconds_of(time) == seconds


@pytest.mark.parametrize(
    ("resources", "how", "reason"),
    [
        (Resources(time="soon"), {}, "time = 'soon'"),
        (Resources(time="2"), {}, "120 seconds before"),
        (Resources(nodes=0), {}, "--nodes 0: give at least 1"),
        (Resources(gpus=0), {}, "--gpus 0: give at least 1"),
        (Resources(nodes=2), {"processes": 3}, "3 processes do not share 2 nodes"),
        (Resources(), {"workers": 0}, "--workers 0: give at least 1"),
        (Resources(), {"processes": 0}, "--processes 0: give at least 1"),
        (Resources(), {"device": "gpu"}, "device 'gpu'"),
    ],
)
def test_what_slurm_could_not_use_is_refused(
    tmp_path: Path, data: Path, resources: Resources, how: dict[str, Any], reason: str
) -> None:
    study = load_study(write_study(tmp_path, data), tmp_path / "tiny")
    with pytest.raises(InputError, match=reason):
        submit_study(study, resources, **how)
    assert not study.folder.exists()


def test_without_slurm_it_says_so_and_status_says_nothing_of_jobs(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    study = load_study(write_study(tmp_path, data), tmp_path / "tiny")
    with pytest.raises(InputError, match=r"sbatch: is not here; .* --dry-run"):
        submit_study(study)
    assert not study.folder.exists()
    jobs = study.folder / "slurm" / "jobs.json"
    jobs.parent.mkdir(parents=True)
    jobs.write_text('[{"id": "1", "cells": ["uniform-seed0"], "workers": 0}]', "utf-8")
    assert status_with_jobs(study) == study.status()


def test_cells_are_done_by_name_without_a_queue(tmp_path: Path, data: Path) -> None:
    study = load_study(write_study(tmp_path, data), tmp_path / "tiny")
    with pytest.raises(InputError, match="nobody-seed0: is no run of"):
        do_cells(study, ["nobody-seed0"], Crew("cpu"))
    assert not study.folder.exists()
    assert do_cells(study, ["prism-seed0"], Crew("cpu")) == {}
    assert [run.cell.name for run in study.runs if not run.to_do(20)] == ["prism-seed0"]
    assert not (study.folder / "queue.db").exists()
    assert "prism-seed0" not in dry(study)  # what is done is not submitted
    with (
        locked(study.folder / "claims" / "uniform-seed0"),
        pytest.raises(InputError, match="another process"),
    ):
        do_cells(study, ["uniform-seed0"], Crew("cpu"))


def test_a_cell_that_fails_is_told_and_the_others_are_done(tmp_path: Path, data: Path) -> None:
    text = STUDY + 'hot = { schedule = "prism", optim.lr = 1e30 }\n'
    study = load_study(write_study(tmp_path, data, text), tmp_path / "tiny")
    failures = do_cells(study, ["hot-seed0", "prism-seed0"], Crew("cpu"))
    assert list(failures) == ["hot-seed0"]
    assert "stopped before the update" in failures["hot-seed0"]
    assert not study.run_of(study.plan.cell("prism", 0, 0)).to_do(20)


def test_nothing_is_submitted_where_everything_is_done(finished: StudyFolder) -> None:
    assert submit_study(finished, dry_run=True).script == ""


# -- a real Slurm ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with cluster() as found:
        yield found


def prism(slurm: Cluster, *arguments: str | Path) -> str:
    """What a command says, in the environment of a cluster."""
    command = [sys.executable, "-m", "prism_transformer", "study", *map(str, arguments)]
    return slurm.ask(*command)


def in_the_middle(run: StudyRun) -> bool:
    steps = run.cell.recipe.n_steps
    assert run.step < steps * 0.9, "it was too fast to be interrupted"
    return run.step > steps * 0.1


def table(study: StudyFolder) -> pd.DataFrame:
    found = study.collect()
    assert found.facts.complete
    return learnt(found)


@pytest.mark.slow
def test_a_study_with_one_task_queued_again_and_one_killed_equals_one_left_alone(
    tmp_path: Path, data: Path, slurm: Cluster
) -> None:
    study = load_study(write_study(tmp_path, data, SIX), tmp_path / "tiny")
    place = (str(study.plan.file), "--out", str(study.folder))
    submit = ("submit", *place, "--cpus", "1", "--time", "20")
    said = prism(slurm, *submit)
    job = said.split()[1].rstrip(":")
    assert said.endswith(f"job {job}: 6 runs; scripts and logs: {study.folder / 'slurm'}\n")
    first, second = study.runs[:2]
    slurm.wait_until(lambda: in_the_middle(first))
    slurm.time_is_up(f"{job}_0")
    slurm.wait_until(lambda: in_the_middle(second))
    slurm.kill(f"{job}_1")
    slurm.wait_until(lambda: f"{job}_1" not in slurm.states())

    rows = json.loads(prism(slurm, "status", *place, "--json"))
    jobs = {row["run"]: row["job"] for row in rows}
    assert jobs["prism-seed0"] == f"{job}_1 ended"
    assert jobs["uniform-seed0"].split()[1] in ("COMPLETING", "PENDING", "RUNNING")
    # Only what was killed has no job any more.
    again = prism(slurm, *submit)
    assert ": 1 runs;" in again
    slurm.wait_until(lambda: not slurm.states())

    assert "Restarts=1 " in slurm.ask("scontrol", "show", "job", f"{job}_0")
    log = (study.folder / "slurm" / f"{job}_0.log").read_text("utf-8")
    assert "stopping after this step" in log
    sessions = [read_environment(run.folder)["sessions"] for run in study.runs]
    assert [len(each) for each in sessions] == [2, 2, 1, 1, 1, 1]
    assert "nothing to submit" in prism(slurm, *submit)
    alone = finish_study(tiny_plan(tmp_path, data, SIX), tmp_path / "alone")
    pd.testing.assert_frame_equal(table(study), table(alone), check_dtype=False)


@pytest.mark.slow
def test_workers_share_the_queue(tmp_path: Path, data: Path, slurm: Cluster) -> None:
    study = load_study(write_study(tmp_path, data), tmp_path / "tiny")
    said = prism(
        slurm, "submit", study.plan.file, "--out", study.folder, "--workers", "2", "--cpus", "1"
    )
    assert "2 workers" in said
    rows = json.loads(prism(slurm, "status", study.plan.file, "--out", study.folder, "--json"))
    assert [row["run"] for row in rows] == [run.cell.name for run in study.runs] + ["", ""]
    slurm.wait_until(lambda: not slurm.states())
    alone = finish_study(tiny_plan(tmp_path, data), tmp_path / "alone")
    pd.testing.assert_frame_equal(table(study), table(alone), check_dtype=False)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_processes_of_one_or_two_nodes_train_a_run_and_save_when_its_time_is_up(
    tmp_path: Path, data: Path, slurm: Cluster, nodes: int
) -> None:
    text = LONG.replace("[0, 1]", "[0]")
    study = load_study(write_study(tmp_path, data, text), tmp_path / "tiny")
    asked = ["--nodes", str(nodes), "--processes", "2"]
    said = prism(slurm, "submit", study.plan.file, "--out", study.folder, *asked)
    task, run = f"{said.split()[1].rstrip(':')}_0", study.runs[0]
    slurm.wait_until(lambda: in_the_middle(run))
    slurm.time_is_up(task)
    slurm.wait_until(lambda: not slurm.states())
    described = slurm.ask("scontrol", "show", "job", task)
    assert "Restarts=1 " in described
    assert f"NumNodes={nodes} " in described
    sessions = read_environment(run.folder)["sessions"]
    assert [each["processes"] for each in sessions] == [2, 2]
    alone = finish_study(tiny_plan(tmp_path, data, text), tmp_path / "alone")
    for mine, its in zip(study.runs, alone.runs, strict=True):
        steps = mine.cell.recipe.n_steps
        assert mine.values(steps)[0] == pytest.approx(its.values(steps)[0], abs=1e-4)
    # It has saved where it stopped, and did not go back to an earlier checkpoint.
    assert "saved; go on with" in log_of(run.folder).read_text("utf-8")
