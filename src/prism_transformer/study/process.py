"""A worker process: a task comes in on standard input, events go out on standard output.

``pool.py`` starts such processes as ``python -m prism_transformer.study.process``. Task and events
are a line of JSON each. The parent keeps standard input open: when it ends, the parent has gone
(even if it was killed), and this process saves its run and exits.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import sleep
from typing import NoReturn

from pydantic import TypeAdapter

from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Event, Note, Tell, to_line
from prism_transformer.study.plan import Plan
from prism_transformer.study.queue import Queue
from prism_transformer.study.worker import Worker
from prism_transformer.training.stopping import SIGNALS, Stopped

GRACE = 120  # seconds to save the run in after the parent has gone


@dataclass(frozen=True)
class Task:
    """What a worker process has to do.

    It has the plan and not the study file, which may have changed since the parent read it.
    """

    plan: Plan
    folder: Path
    storage: str | None
    heartbeat: int
    processes: int
    device: str
    collected: frozenset[str] = frozenset()
    """cells that were collected before and need no work"""
    only_one: bool = False
    """leave after one cell"""
    measure: bool = False
    """take no cell; measure the speed of inference, which needs the machine to itself"""

    def to_line(self) -> bytes:
        return TASK.dump_json(self) + b"\n"


TASK = TypeAdapter(Task)


def work(task: Task, tell: Tell) -> None:
    """Do cells while any are waiting. The parent, not this process, waits for those of others."""
    worker = Worker(task.plan, task.folder, task.processes, task.device, tell)
    if task.measure:
        worker.measure()
        return
    queue = Queue(task.plan, task.folder, task.storage, task.heartbeat, task.collected)
    while queue.left()[0]:
        queue.take_one(worker.do)
        if task.only_one:
            return


def main() -> NoReturn:
    """Do the task on standard input, then exit: 0 when nothing was left to do."""
    # Libraries print to standard output, which would garble the lines of events. So the pipe gets a
    # descriptor of its own, and standard output goes where standard error goes: to the log.
    pipe = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(event: Event) -> None:
        with suppress(BrokenPipeError):  # the parent has gone, so `_end_with_parent` ends us
            os.write(pipe, to_line(event).encode())

    asked = signal.SIGINT

    def stop(number: int, _frame: object) -> NoReturn:
        """Outside of training, where nothing is to be saved; training has its own handlers."""
        nonlocal asked
        asked = signal.Signals(number)
        raise KeyboardInterrupt  # the one exception that no library catches as an error of its own

    for number in SIGNALS:
        signal.signal(number, stop)
    code = 0
    try:
        task = TASK.validate_json(sys.stdin.buffer.readline())
        Thread(target=_end_with_parent, daemon=True).start()
        work(task, tell)
    except KeyboardInterrupt:
        code = 128 + asked
    except InputError as error:
        code = error.exit_code
        if not isinstance(error, Stopped):
            tell(Note(str(error)))
    sys.exit(code)


def _end_with_parent() -> None:
    """Wait for the end of standard input, then stop this process: gently, then for good."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(GRACE)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
