"""Studies on Slurm: one array job with a task for each cell, or with workers on the queue.

A task is a command line, ``prism study work``, in a script that can be read (``--dry-run``) and run
again by hand. submitit writes only the head of the script from Slurm's options. Its usual way, to
send Python functions and results as binary files, is not used: what is to do and what is done is in
run folders already, and a command line survives a changed environment.

studies/NAME/slurm/
  jobs.json     the jobs that were submitted, and the cells of their tasks
  17.sh         the script of job 17
  17_3.log      what its task 3 said, restarts included
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from prism_transformer.core.disk import locked, read_json, write_whole
from prism_transformer.core.errors import InputError, at_least_one
from prism_transformer.core.progress import Tell, silent
from prism_transformer.core.table import Row, Table, words
from prism_transformer.study.api import check_crew, prepare_data
from prism_transformer.study.folder import Source, StudyFolder, load_study
from prism_transformer.study.queue import CLAIMS
from prism_transformer.study.runs import CellFailed
from prism_transformer.study.sharing import ALONE, HEARTBEAT, Crew

SLURM = "slurm"  # the folder of all this, in the study's
JOBS_FILE = "jobs.json"

TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
ENDED = "ended"  # the state of a task that Slurm no longer lists

# Run by each task. The shell is not replaced by the command, for it has to outlive it.
BODY = """\
{cells}
# Before the task's time is up, this shell alone gets SIGUSR1: save, stop, and come again.
trap 'again=yes; kill -TERM $!' USR1
# At the end of a job every process gets SIGTERM, and saves; the shell waits for that.
trap : TERM

# $! rather than a variable: a signal may come before the next line could set one.
{command} &
# A signal ends `wait`, but not what it waits for.
until wait $!; code=$?; ! kill -0 $! 2>/dev/null; do :; done

# By the task's number in its array: one task has the number of the job as its own, too.
if [ -n "$again" ] && [ "$code" -ne 0 ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit "$code"\
"""


@dataclass(frozen=True)
class Resources:
    """What each task asks of Slurm; None is the cluster's default."""

    partition: str | None = None
    nodes: int = 1
    """that train one run together"""
    gpus: int | None = None
    """of each node, a process for each"""
    cpus: int | None = None
    """of each node"""
    memory: str | None = None
    """of each node, as in 64G"""
    time: str | None = None
    """as Slurm writes it: 4:00:00, 1-12, or minutes"""
    warning: int = 120
    """seconds before the end of its time at which a task saves, stops and is queued again"""
    more: Mapping[str, str] = field(default_factory=dict)
    """other options of sbatch, by their long names"""

    def check(self) -> None:
        """Refuse what sbatch would refuse, or a task hours later."""
        at_least_one(nodes=self.nodes, gpus=self.gpus, cpus=self.cpus, warning=self.warning)
        if self.time is not None and seconds_of(self.time) <= self.warning:
            raise InputError(
                f"time = {self.time}: tasks save and stop {self.warning} seconds before their "
                "time is up; give them more of it, or another warning"
            )

    @property
    def options(self) -> dict[str, Any]:
        """The same in the words of submitit; None leaves an option out."""
        return {
            "partition": self.partition, "nodes": self.nodes, "ntasks_per_node": 1,
            "gpus_per_node": self.gpus, "cpus_per_task": self.cpus, "mem": self.memory,
            "time": self.time, "wckey": None,
        }  # fmt: skip


@dataclass(frozen=True)
class Submission:
    """What was submitted, or would be."""

    script: str
    """empty where nothing is left to do"""
    job: str | None
    """Slurm's number; None where nothing was submitted"""
    cells: tuple[str, ...]
    """a task for each; none for workers, which take what is next"""
    folder: Path
    """of the jobs, their scripts and logs"""
    tuning: bool = False
    """these find the learning rates of arms: the comparison is submitted when they are done"""


def submit_study(
    study: Source,
    resources: Resources | None = None,
    *,
    workers: int | None = None,
    processes: int | None = None,
    device: str = "auto",
    heartbeat: int = HEARTBEAT,
    dry_run: bool = False,
    tell: Tell = silent,
) -> Submission:
    """Submit what is not done and has no job yet as one array job: a task for each cell.

    With ``workers`` so many tasks share the queue instead. Without ``processes`` a task trains with
    one on each of its GPUs, or with as many as the study says. ``dry_run`` only makes the script.
    Of a study whose rates are not found yet, the cells that find them are submitted.
    """
    opened, asked = load_study(study), resources or Resources()
    asked.check()
    at_least_one(workers=workers, processes=processes, heartbeat=heartbeat)
    together = _together(opened, asked, processes)
    if device not in ("auto", "cuda", "cpu"):  # whether a node has it, only the node knows
        raise InputError(f"device {device!r}: training runs on cuda and on cpu")
    opened.check()
    opened.check_stuck()
    how = ["--processes", str(together), "--device", device]
    # Each of the workers is a task of its own.
    how += [] if workers is None else ["--heartbeat", str(heartbeat), "--workers", "1"]
    planned = _submission(opened, asked, how, _to_submit(opened, workers), workers)
    if dry_run or not planned.script:
        return planned
    if shutil.which("sbatch") is None:
        raise InputError("sbatch: is not here; submit where Slurm is, or look with --dry-run")
    prepare_data(_next(opened), tell)
    # Planned once more, since preparing may have taken hours. Under a lock, since two commands at
    # once would submit everything twice.
    with locked(opened.folder / SLURM):
        planned = _submission(opened, asked, how, _to_submit(opened, workers), workers)
        return _submit(opened, planned, workers, heartbeat) if planned.script else planned


def do_cells(
    study: Source,
    names: Sequence[str],
    crew: Crew = ALONE,
    *,
    tell: Tell = silent,
) -> dict[str, str]:
    """Do the cells of these names here and now, without a queue; why runs failed.

    For tasks that a scheduler has started for just these. No database is asked, since SQLite may
    not work on a disk that several nodes share; a lock keeps others from the cell.
    """
    from prism_transformer.study.worker import Worker

    opened = load_study(study)
    check_crew(opened, crew)
    places = {cell.name: (opened, cell) for cell in opened.plan.cells}
    if opened.tuning:
        tuner = opened.tuner
        places |= {cell.name: (tuner, cell) for cell in tuner.plan.cells}
    for name in names:
        if name not in places:
            raise InputError(f"{name}: is no run of {opened.plan.file}; see `prism study plan`")
        if places[name][0] is opened and places[name][1].arm in opened.plan.untuned:
            raise InputError(f"{name}: waits for its learning rate; `prism study status` has more")
    failures: dict[str, str] = {}
    for name in names:
        here, cell = places[name]
        prepare_data(here, tell)
        together = crew.together(here.plan.study.processes)
        worker = Worker(here.plan, here.folder, together, crew.device, tell)
        try:
            with locked(here.folder / CLAIMS / name):  # workers of the queue hold the same
                worker.do(name, cell.recipe.n_steps)
        except CellFailed as error:
            failures[name] = str(error)
    return failures


def status_with_jobs(study: StudyFolder) -> Table:
    """How far each run is, and the newest job of each, where there are jobs and a Slurm to ask."""
    status, jobs = study.status(), _read_jobs(study)
    if not jobs or shutil.which("squeue") is None:
        return status
    try:
        states = _states()
    except InputError:  # Slurm does not answer; what runs have done is known all the same
        return status
    tasks = {cell: f"{job['id']}_{n}" for job in jobs for n, cell in enumerate(job["cells"])}
    rows: list[Row] = []
    for row in status.rows:
        task = tasks.get(str(row["run"]))
        rows.append({**row, "job": f"{task} {states.get(task, ENDED)}" if task else ""})
    helpers = [f"{job['id']}_{n}" for job in jobs for n in range(job["workers"])]
    nobody = dict.fromkeys(("step", "of", "loss")) | {
        "run": "",
        "state": "a worker, for any of them",
    }
    rows += [{**nobody, "job": f"{task} {states[task]}"} for task in helpers if task in states]
    return replace(status, columns=(*status.columns, *words("job")), rows=tuple(rows))


def options_of(study: StudyFolder) -> list[str]:
    """What says on a command line which study is meant, from any folder."""
    where = ["--out", str(study.folder.resolve())]
    where += ["--storage", study.storage] if study.storage else []
    for folder in dict.fromkeys(each.folder for each in study.collected.values()):
        where += ["--with", str(folder.resolve())]
    return [str(study.plan.file.resolve()), *study.plan.options, *where]


def seconds_of(time: str) -> int:
    """A duration as Slurm writes it: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    match = TIME.fullmatch(time)
    if match is None:
        raise InputError(f"time = {time!r}: write hours as in 4:00:00, or days as in 1-12")
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None or len(numbers) == 3:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:
        hours, minutes, seconds = 0, *[*numbers, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _together(study: StudyFolder, asked: Resources, processes: int | None) -> int:
    """Processes that train one run, on all nodes of a task."""
    by_gpus = None if asked.gpus is None else asked.gpus * asked.nodes
    together = processes or by_gpus or study.plan.study.processes
    if together % asked.nodes:
        raise InputError(f"{together} processes do not share {asked.nodes} nodes; give a multiple")
    return together


def _to_submit(study: StudyFolder, workers: int | None) -> list[str]:
    """Cells that are not done; those that have a job already are left to it."""
    runs = [run for run in _next(study).runs if not (study.plan.untuned and run.diverged)]
    undone = [run.cell.name for run in runs if run.queued()]
    if workers is not None or shutil.which("squeue") is None:
        return undone
    states = _states() if (jobs := _read_jobs(study)) else {}
    busy = {c for job in jobs for n, c in enumerate(job["cells"]) if f"{job['id']}_{n}" in states}
    return [name for name in undone if name not in busy]


def _next(study: StudyFolder) -> StudyFolder:
    """What comes next of a study: the runs that find its rates, or else its own."""
    return study.tuner if study.plan.untuned else study


def _submission(
    study: StudyFolder, asked: Resources, how: list[str], cells: list[str], workers: int | None
) -> Submission:
    """A script for these cells, not submitted yet."""
    folder = study.folder / SLURM
    tuning = bool(study.plan.untuned)
    if not cells:
        return Submission("", None, (), folder, tuning)
    line = [sys.executable, "-m", "prism_transformer", "study", "work", *options_of(study), *how]
    command, head = shlex.join(line), ""
    if workers is None:
        head = f"# What is to do, a cell for each task.\ncells=({shlex.join(cells)})\n"
        command += ' --cell "${cells[$SLURM_ARRAY_TASK_ID]}"'
    body = BODY.format(cells=head, command=command)
    script = _script(study.plan.name, folder.resolve(), asked, body, workers or len(cells))
    return Submission(script, None, () if workers else tuple(cells), folder, tuning)


def _script(name: str, folder: Path, asked: Resources, body: str, tasks: int) -> str:
    from submitit.slurm.slurm import _make_sbatch_string

    return _make_sbatch_string(
        body, folder, f"prism-{name}", map_count=tasks, use_srun=False, stderr_to_stdout=True,
        additional_parameters={
            "chdir": Path.cwd(), "output": folder / "%A_%a.log", "requeue": True,
            "signal": f"B:USR1@{asked.warning}", **asked.more,
        },
        **asked.options,
    )  # fmt: skip


def _submit(
    study: StudyFolder, planned: Submission, workers: int | None, heartbeat: int
) -> Submission:
    if workers is None:
        study.keep_file()
    else:
        first = _next(study)
        first.begin(first.queue(heartbeat), first.left if planned.tuning else None)
    job = _ask("sbatch", "--parsable", given=planned.script).strip().partition(";")[0]
    write_whole(planned.folder / f"{job}.sh", planned.script)
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    record = {"id": job, "submitted": now, "cells": planned.cells, "workers": workers or 0}
    jobs = [*_read_jobs(study), record]
    write_whole(planned.folder / JOBS_FILE, json.dumps(jobs, indent=1) + "\n")
    return replace(planned, job=job)


def _read_jobs(study: StudyFolder) -> list[dict[str, Any]]:
    """Jobs that were submitted, oldest first."""
    file = study.folder / SLURM / JOBS_FILE
    return read_json(file) if file.is_file() else []


def _states() -> dict[str, str]:
    """The tasks of this user that Slurm has, running or waiting."""
    mine = ["--user", str(os.getuid()), "--array", "--noheader", "--format", "%F_%K %T"]
    return dict(line.split() for line in _ask("squeue", *mine).splitlines())


def _ask(program: str, *arguments: str, given: str = "") -> str:
    """What a command of Slurm's says."""
    try:
        asked = subprocess.run(
            [program, *arguments], input=given, capture_output=True, text=True, check=True
        )
    except subprocess.CalledProcessError as error:
        raise InputError(f"{program}: {error.stderr.strip() or error}") from None
    return asked.stdout
