"""Where tasks run: datatrove's executors, watched.

datatrove notes which ranks are done and does not do them again. What it leaves open is who starts
a task again that died: its pool waits for ever for a process that was killed, and on Slurm a
failed task of an array stays failed. Here only what is missing is started again.
"""

from __future__ import annotations

import logging
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple, Protocol

from datatrove.executor import (
    LocalPipelineExecutor,
    RayPipelineExecutor,
    SlurmPipelineExecutor,
)

from prism_transformer.core.errors import InputError, RunError
from prism_transformer.core.family import end_with_parent

TRIES = 4  # starts of a task that gets nothing done
WAIT = 0.1  # seconds between looks
SLURM_WAIT = 1.0


class Stage(NamedTuple):
    """Some ranks of a pipeline: those of pieces from a first one on, or of shards."""

    name: str
    first: int
    ranks: int


Pipeline = Callable[[Stage], list[Any]]
Watch = Callable[[], int]


class Executor(Protocol):
    """Runs every rank of a stage that is not done; ``watch`` says how many are."""

    n_tasks: int
    where_to_look: str

    def run(self, work: Path, stage: Stage, pipeline: Pipeline, watch: Watch) -> None: ...


def _logs(work: Path, stage: Stage) -> str:
    return str(work / "logs" / f"{stage.name}-{stage.first:06d}")


def finished(work: Path, stage: Stage) -> set[int]:
    """Ranks of a stage that datatrove noted as done."""
    return {int(file.name) for file in (Path(_logs(work, stage)) / "completions").glob("*")}


class Share(LocalPipelineExecutor):
    """datatrove's local executor for some ranks, in this process: it needs no pool for them."""

    def __init__(self, pipeline: list[Any], work: Path, stage: Stage, begin: int, end: int) -> None:
        self.pipeline: list[Any]
        super().__init__(
            pipeline,
            tasks=stage.ranks,
            workers=1,
            logging_dir=_logs(work, stage),
            local_tasks=end - begin,
            local_rank_offset=begin,
        )

    def run(self) -> None:
        steps: list[Any] = self.pipeline
        end = self.local_rank_offset + self.local_tasks
        for rank in self.get_incomplete_ranks(range(self.local_rank_offset, end)):
            self.pipeline = deepcopy(steps)  # they count
            self._run_for_rank(rank, local_rank=1)


@dataclass
class Here:
    """As many processes on this machine, each with its share of the ranks."""

    n_tasks: int
    where_to_look: str = "its log is in tasks/logs"

    def run(self, work: Path, stage: Stage, pipeline: Pipeline, watch: Watch) -> None:
        ends = [stage.ranks * n // self.n_tasks for n in range(self.n_tasks + 1)]
        shares = [(a, b) for a, b in pairwise(ends) if a < b]
        Path(_logs(work, stage)).mkdir(parents=True, exist_ok=True)
        if shares == [(0, stage.ranks)]:  # alone: no process is needed for it
            _run_inside(Share(pipeline(stage), work, stage, *shares[0]), _log(work, stage, (0, 0)))
            watch()
            return
        running = {share: _start(work, stage, share) for share in shares}
        tries = dict.fromkeys(shares, 1)
        done = watch()
        try:
            while running:
                sleep(WAIT)
                for share, process in list(running.items()):
                    if (code := process.poll()) is None:
                        continue
                    del running[share]
                    if code in (0, 2):
                        continue
                    before, done = done, watch()
                    tries[share] = 1 if done > before else tries[share] + 1
                    if tries[share] > TRIES:
                        raise RunError(_died(work, stage, share, code))
                    running[share] = _start(work, stage, share)
                done = watch()
        finally:
            for process in running.values():
                process.kill()
                process.wait()


def _run_inside(share: Share, log: Path) -> None:
    """Run a share in this process, its log in a file."""
    with log.open("a", encoding="utf-8") as stream, redirect_stderr(stream):
        try:
            with suppress(InputError):  # word of it was left
                share.run()
        finally:
            quiet()


def _start(work: Path, stage: Stage, share: tuple[int, int]) -> subprocess.Popen[bytes]:
    words = [str(work), *map(str, stage), *map(str, share)]
    command = [sys.executable, "-m", "prism_transformer.data.tasks", *words]
    with _log(work, stage, share).open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,
        )


def _log(work: Path, stage: Stage, share: tuple[int, int]) -> Path:
    return Path(_logs(work, stage)) / f"ranks-{share[0]}.log"


def _die_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    end_with_parent(signal.SIGKILL)


def _died(work: Path, stage: Stage, share: tuple[int, int], code: int) -> str:
    log = _log(work, stage, share)
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    how = f"signal {-code}" if code < 0 else f"code {code}"
    last = f": {lines[-1]}" if lines else ""
    return f"a task ended with {how} {TRIES} times and got nothing done{last}; its log is {log}"


class _Array(SlurmPipelineExecutor):
    def launch_merge_stats(self) -> None:
        """Left out: a job that waits for tasks which failed would wait for ever."""


@dataclass
class Slurm:
    """An array job of as many tasks, each with its share of the ranks; waits for it."""

    n_tasks: int
    options: Mapping[str, str] = field(default_factory=dict)
    """of sbatch, by their long names"""
    where_to_look: str = "Slurm's logs are in tasks/logs"

    def run(self, work: Path, stage: Stage, pipeline: Pipeline, watch: Watch) -> None:
        options = dict(self.options)
        named: dict[str, Any] = {
            "time": options.pop("time", "24:00:00"),
            "partition": options.pop("partition", ""),
            "cpus_per_task": int(options.pop("cpus-per-task", "1")),
            "qos": options.pop("qos", None),
        }
        if not named["partition"]:
            raise InputError("--on slurm: give the partition, as in --sbatch partition=cpu")
        done, tries = watch(), 0
        while done < stage.ranks and tries < TRIES:
            job = _Array(
                pipeline(stage),
                tasks=stage.ranks,
                tasks_per_job=math.ceil(stage.ranks / self.n_tasks),
                logging_dir=_logs(work, stage),
                job_name="prism-prepare",
                env_command=f"export PATH={Path(sys.executable).parent}:$PATH",
                sbatch_args=options,
                with_srun=False,
                **named,
            )
            _submit(job)
            if job.job_id == -1:  # all ranks are noted as done
                return
            while _is_queued(str(job.job_id)):
                watch()
                sleep(SLURM_WAIT)
            before, done = done, watch()
            tries = 0 if done > before else tries + 1
            if list((work / "pieces").glob("*.problem")):
                return


@dataclass
class Ray:
    """Tasks on the cluster of Ray that RAY_ADDRESS names, or on one that is begun here."""

    n_tasks: int
    where_to_look: str = "its log is in tasks/logs"

    def run(self, work: Path, stage: Stage, pipeline: Pipeline, watch: Watch) -> None:
        _begin_ray()
        done, tries = watch(), 0
        while done < stage.ranks and tries < TRIES:
            job = RayPipelineExecutor(
                pipeline(stage),
                tasks=stage.ranks,
                workers=self.n_tasks,
                tasks_per_job=math.ceil(stage.ranks / self.n_tasks),
                mem_per_cpu_gb=0,  # Ray reserves it, whatever is used
                logging_dir=_logs(work, stage),
            )
            with ThreadPoolExecutor(1) as thread:
                running = thread.submit(job.run)
                while not running.done():
                    watch()
                    sleep(WAIT)
            if (error := running.exception()) is not None and not _is_rays(error):
                raise error
            before, done = done, watch()
            tries = 0 if done > before else tries + 1
            if list((work / "pieces").glob("*.problem")):
                return


def _begin_ray() -> None:
    import ray

    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)


def _is_rays(error: BaseException) -> bool:
    """Whether a task failed or died, which is tried again, and not Ray itself."""
    from ray.exceptions import RayError

    return isinstance(error, RayError)


def _submit(job: SlurmPipelineExecutor) -> None:
    try:
        job.run()
    except FileNotFoundError:
        raise InputError("--on slurm: there is no sbatch on this machine") from None
    except subprocess.CalledProcessError as error:
        raise RunError(f"sbatch refused the job, code {error.returncode}; see above") from None


def _is_queued(job: str) -> bool:
    command = ["squeue", "--noheader", "--jobs", job, "--format", "%T"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:  # a job that has long ended is not known any more
        return "Invalid job id" not in done.stderr
    return bool(done.stdout.split())


def open_executor(on: str, n_tasks: int, sbatch: Sequence[str] = ()) -> Executor:
    """Where so many tasks are to run; datatrove is quiet from now on."""
    quiet()
    if on == "here":
        return Here(n_tasks)
    if on == "ray":
        if find_spec("ray") is None:
            raise InputError("--on ray: Ray is not installed: pip install ray")
        return Ray(n_tasks)
    for option in sbatch:
        if "=" not in option:
            raise InputError(f"--sbatch {option!r}: write NAME=VALUE, as in partition=cpu")
    return Slurm(n_tasks, dict(option.split("=", 1) for option in sbatch))


def quiet() -> None:
    """Keep datatrove's log off the terminal: it is in files."""
    from loguru import logger

    logger.remove()
