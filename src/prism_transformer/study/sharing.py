"""How workers share a machine: each gets GPUs, or cores of the CPU, of its own.

A machine, what one run needs, and how many workers are asked for come in; a share for each worker
and a reason in words come out. These are pure functions, so that ``prism study plan`` can show the
shares before anything runs. Nothing here needs torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prism_transformer.core.errors import InputError
from prism_transformer.models.cost import memory, parameters, size_text
from prism_transformer.recipe import Recipe

Workers = int | Literal["auto"]
HEARTBEAT = 10  # seconds between two heartbeats of a worker

# Threads that one run on a CPU uses well: (most parameters of its model, threads). Two runs on one
# thread each do at least the work of one run on two threads, because matrix products and the loops
# between them never split perfectly, and those of a small model hardly at all. Large models still
# get a few threads: no more work is done in all, but fewer runs are in memory at a time, and the
# first result comes earlier.
USED_THREADS = ((10e6, 1), (100e6, 2), (float("inf"), 4))
# What a process takes beside its model: Python, torch and the evaluation harness. Measured as
# 0.56 GB with a tiny model; more is assumed, since too many workers would be killed.
PROCESS_BYTES = 1_000_000_000
# The closed form of training memory (models/cost.py) times this: it counts neither the buffers of
# kernels nor what the allocator wastes.
SCRATCH = 1.5


@dataclass(frozen=True)
class Crew:
    """The workers of a study on this machine, as a user asks for them."""

    device: str = "auto"
    workers: Workers = 1
    """runs that are trained side by side; 1 trains in this process, without a pool"""
    processes: int | None = None
    """that train one run together; None is as many as the study says"""
    heartbeat: int = HEARTBEAT

    def together(self, study: int) -> int:
        """Processes that train one run; ``study`` is the number that the study says."""
        return study if self.processes is None else self.processes


ALONE = Crew()


@dataclass(frozen=True)
class Machine:
    """What a machine has for its workers."""

    cores: int
    memory: int
    """bytes that are free"""
    gpus: tuple[str, ...] = ()
    """as CUDA_VISIBLE_DEVICES names them, by number or UUID; without any, the CPU trains"""
    threads: int | None = None
    """of each process, if the user has set OMP_NUM_THREADS"""


@dataclass(frozen=True)
class Need:
    """What the largest run of a study needs."""

    parameters: int
    memory: int
    """bytes of each of its processes"""
    processes: int = 1
    """that train it together"""


@dataclass(frozen=True)
class Share:
    """What one worker gets."""

    threads: int
    """of each of its processes"""
    gpus: tuple[str, ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """The same as environment variables of its process."""
        found = {"OMP_NUM_THREADS": str(self.threads)}
        return found | ({"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {})


@dataclass(frozen=True)
class Shares:
    """A share for each worker, and why there are so many."""

    each: tuple[Share, ...]
    reason: str

    def __len__(self) -> int:
        return len(self.each)


def need_of(recipes: Iterable[Recipe], processes: int) -> Need:
    """The most that any of these runs needs."""
    known = list(recipes)
    most = max(memory(recipe).total for recipe in known)
    size = max(parameters(recipe.model).total for recipe in known)
    return Need(size, round(SCRATCH * most) + PROCESS_BYTES, processes)


def share_out(machine: Machine, need: Need, workers: Workers, cells: int) -> Shares:
    """A share for each worker: at least one, and no more than there are ``cells`` to do.

    Asking for more GPUs than there are is an error: two runs on one GPU would take each other's
    memory. Asking for more workers than cores is not: they only become slower.
    """
    if workers != "auto" and (not isinstance(workers, int) or workers < 1):
        raise InputError(f"--workers {workers!r}: give 'auto' or a number from 1 on")
    return (_share_gpus if machine.gpus else _share_cores)(machine, need, workers, max(1, cells))


def _share_gpus(machine: Machine, need: Need, workers: Workers, cells: int) -> Shares:
    there, together = len(machine.gpus), need.processes
    each = _count(together, "GPU")
    if together > there:
        raise InputError(f"processes = {together}: a run needs {each}, there are {there}")
    if workers != "auto" and workers * together > there:
        raise InputError(
            f"--workers {workers}: with {each} for each that is {workers * together}, there are "
            f"{there}; give at most {there // together}, or auto"
        )
    count = min(there // together if workers == "auto" else workers, cells)
    threads = machine.threads or max(1, machine.cores // (count * together))
    shares = tuple(
        Share(threads, machine.gpus[n * together : (n + 1) * together]) for n in range(count)
    )
    idle = there - count * together
    rest = f"; {_count(idle, 'GPU')} idle" if idle else ""
    return Shares(shares, f"{_count(count, 'worker')}, {each} each{rest}")


def _share_cores(machine: Machine, need: Need, workers: Workers, cells: int) -> Shares:
    used = machine.threads or next(n for most, n in USED_THREADS if need.parameters <= most)
    by_cores = max(1, machine.cores // (used * need.processes))
    by_memory = max(1, machine.memory // (need.memory * need.processes))
    wanted = min(by_cores, by_memory) if workers == "auto" else workers
    count = min(wanted, cells)
    threads = machine.threads or max(1, machine.cores // (count * need.processes))
    if count * need.processes > machine.cores:
        why = f"as asked, more than the machine's {_count(machine.cores, 'core')}"
    elif count == cells < wanted:
        why = "a run for each" if cells > 1 else "one run is left"
    elif workers != "auto":
        why = "as asked"
    elif by_memory < by_cores:
        size = need.memory * need.processes / 1e9
        why = f"free memory holds {_count(by_memory, 'run')} of about {size:.1f} GB"
    elif machine.threads:
        why = f"OMP_NUM_THREADS is {machine.threads}"
    elif machine.cores < 2 * need.processes:
        why = f"there is {_count(machine.cores, 'core')}"
    elif used == 1:
        why = f"runs of {_size(need)} side by side do more than one run on several threads"
    else:
        why = f"a model of {_size(need)} makes use of {min(used, machine.cores)} threads"
    together = f"{_count(need.processes, 'process')} of " if need.processes > 1 else ""
    what = f"{together}{_count(threads, 'thread')}{' each' if count > 1 else ''}"
    return Shares((Share(threads),) * count, f"{_count(count, 'worker')}, {what}: {why}")


def _count(n: int, what: str) -> str:
    plural = "processes" if what == "process" else f"{what}s"
    return f"{n} {what if n == 1 else plural}"


def _size(need: Need) -> str:
    return f"{size_text(need.parameters)} parameters"


def this_machine(gpus: int) -> Machine:
    """What this process may use of its machine; ``gpus`` is how many torch finds."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    # A container or a batch system may have left us fewer cores than there are.
    known = hasattr(os, "sched_getaffinity")  # not on every system
    return Machine(
        cores=len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1,
        memory=_free_memory(),
        gpus=gpu_names(gpus, os.environ.get("CUDA_VISIBLE_DEVICES")),
        threads=int(given) if given.isdecimal() and int(given) else None,
    )


def gpu_names(count: int, visible: str | None) -> tuple[str, ...]:
    """Names of the GPUs that torch counted, from CUDA_VISIBLE_DEVICES.

    CUDA stops reading that list at the first name it does not know, so only the first ``count``
    names are those of GPUs.
    """
    names = [name.strip() for name in visible.split(",")] if visible else map(str, range(count))
    return tuple(names)[:count]


def _free_memory() -> int:
    """Bytes that can be taken without swapping; all there are where the system does not say."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        line = next(each for each in lines if each.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
