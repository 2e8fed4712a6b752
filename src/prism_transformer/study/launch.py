"""Processes that train or measure one run together, started by torchrun and followed from outside.

On one machine torchrun starts them. In a Slurm job of several nodes srun starts one torchrun on
each, all with the same line; they meet at the first node.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import sleep

from prism_transformer.core.disk import appended, write_whole
from prism_transformer.core.errors import InputError
from prism_transformer.core.family import end_with_parent
from prism_transformer.core.progress import Measured, Tell
from prism_transformer.recipes.files import recipe_toml
from prism_transformer.study.runs import CellFailed, StudyRun
from prism_transformer.training.run import METRICS_FILE, Row
from prism_transformer.training.stopping import Stopped, StopRequest

POLL = 0.5  # seconds between looks at the metrics that the processes write
PORTS = range(20_000, 40_000)  # to meet at: below those that systems hand out by themselves
# torchrun passes these on and then waits. By default it knows no SIGUSR1, and kills after 30
# seconds: less than a large model takes to be saved.
PATIENT = (
    *("--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"),
    *("--shutdown-timeout", "600"),
)


def log_of(folder: Path) -> Path:
    """The log of a run: beside its folder, which may not exist if training never began."""
    return folder.with_name(f"{folder.name}.log")


def train_together(run: StudyRun, until: int, processes: int, device: str, tell: Tell) -> None:
    """Train under torchrun, as ``prism train`` would be launched by hand.

    In processes of their own: they must not inherit what this one holds (a CUDA context, locks, the
    connection to the queue), and their death must not be ours.
    """
    launch = [*launcher(processes, os.environ), "-m", "prism_transformer"]
    recipe_file = run.folder.with_name(f"{run.folder.name}.toml")
    if run.begun:
        launch += ["resume", str(run.folder)]
    else:
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        write_whole(recipe_file, recipe_toml(run.cell.recipe))
        launch += ["train", str(recipe_file), "--out", str(run.folder)]
    launch += ["--until", str(until), "--device", device]
    # We learn of their progress from the metrics file, as they share no memory with us.
    try:
        for row in _rows(launch, run, tell):
            tell(Measured(row))
    finally:
        recipe_file.unlink(missing_ok=True)


def measure_together(run: StudyRun, line: Sequence[str], processes: int, tell: Tell) -> None:
    """Run a command that measures a run in several processes, each with its share of the work."""
    launch = [*launcher(processes, os.environ), "-m", "prism_transformer", *line]
    for _ in _rows(launch, run, tell):
        pass


def _rows(launch: Sequence[str], run: StudyRun, tell: Tell) -> Iterator[Row]:
    """Run processes to their end; new rows of the run's metrics while they do."""
    log = log_of(run.folder)
    with appended(log) as stream, StopRequest(tell) as stop:
        job = subprocess.Popen(
            launch,
            stdout=stream,
            stderr=subprocess.STDOUT,
            # Or torchrun would go on with a cell that the queue has given to another worker.
            preexec_fn=partial(end_with_parent, signal.SIGTERM),
            # Ctrl-C in a terminal must not reach torchrun, since `_ask_to_stop` passes it on: at
            # the second signal torchrun kills without saving.
            start_new_session=True,
        )
        yield from _follow(run.folder / METRICS_FILE, job, stop)
    if job.returncode and stop.requested:
        raise Stopped(f"stopped {run.cell.name}, saved", stop.signal)
    if job.returncode:
        last = log.read_text("utf-8", "replace").strip().splitlines()[-3:]
        raise CellFailed(f"torchrun exited with {job.returncode}; {log}: {' / '.join(last)}")


def _ask_to_stop(job: subprocess.Popen[bytes]) -> bool:
    """Ask processes that train together to save and stop; whether there were any to ask."""
    if node_count(os.environ) > 1:
        job.send_signal(signal.SIGUSR1)  # to srun, which brings it to every node
        return True
    # Its children and not torchrun itself: whatever asked us to stop (Slurm, say) has often asked
    # torchrun as well, and at a second signal it kills its children at once.
    listed = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    if not listed.parent.exists():  # no Linux: one signal to torchrun, which passes it on
        job.terminate()
        return True
    children: list[str] = []
    with suppress(OSError):  # one of them has just ended
        children += listed.read_text("ascii").split()
        for number in children:
            os.kill(int(number), signal.SIGTERM)
    return bool(children)


def _follow(file: Path, job: subprocess.Popen[bytes], stop: StopRequest) -> Iterator[Row]:
    """New rows of a run's metrics while other processes train it."""
    asked = False
    seen = file.stat().st_size if file.exists() else 0
    rest = b""  # a line that is not written to its end yet
    while True:
        # Polled before reading: rows that are written just before the end are still read below.
        ended = job.poll() is not None
        with suppress(FileNotFoundError), file.open("rb") as stream:
            # A resumed run cuts off the rows after its checkpoint, so the file may have shrunk.
            seen = min(seen, file.stat().st_size)
            stream.seek(seen)
            rest += stream.read()
            seen = stream.tell()
        *lines, rest = rest.split(b"\n")
        for line in lines:
            with suppress(ValueError):
                yield json.loads(line)
        if ended:
            return
        if stop.requested and not asked:
            asked = _ask_to_stop(job)
        sleep(POLL)


def launcher(processes: int, variables: Mapping[str, str]) -> list[str]:
    """What stands before ``-m prism_transformer``; ``variables`` are the environment's."""
    nodes = node_count(variables)
    if processes % nodes:
        raise InputError(f"{processes} processes do not share {nodes} nodes; give a multiple")
    torchrun = [sys.executable, "-m", "torch.distributed.run", *PATIENT]
    here = ["--nproc-per-node", str(processes // nodes)]
    if nodes == 1:
        return [*torchrun, "--standalone", *here]
    job = variables["SLURM_JOB_ID"]
    host = first_host(variables["SLURM_JOB_NODELIST"])
    port = PORTS[int(job) % len(PORTS)]  # two jobs may share their first node
    srun = ["srun", "--nodes", str(nodes), "--ntasks", str(nodes), "--kill-on-bad-exit=1"]
    if cpus := variables.get("SLURM_CPUS_PER_TASK"):  # which srun takes over from no job
        srun += ["--cpus-per-task", cpus]
    # Not --node-rank from SLURM_NODEID, which only a shell on each node could fill in: with c10d
    # the nodes number themselves, and the line is the same everywhere.
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{port}", "--rdzv-id", job]
    return [*srun, *torchrun, "--nnodes", str(nodes), *here, *meeting]


def node_count(variables: Mapping[str, str]) -> int:
    """Nodes of the Slurm job, or of the step of it, that this process is in; 1 outside."""
    return int(variables.get("SLURM_NNODES", "1"))


def first_host(nodes: str) -> str:
    """The first name in Slurm's short form of many: gpu003 of ``gpu[003-007,9],cpu1``."""
    return re.sub(r"\[(\w+)[^]]*\]", r"\1", nodes).split(",")[0]
