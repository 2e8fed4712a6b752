"""A worker process: it is told what to do on its standard input, and tells how far it is.

``pool.py`` starts such processes as ``python -m prism_transformer.study.process``. Events go to
standard output, a line of JSON each. Standard input stays open for as long as the parent lives: at
its end the process saves what it is at and leaves, whatever became of the parent.
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

GRACE = 120  # seconds to save in, once the parent is gone


@dataclass(frozen=True)
class Task:
    """What a worker process is told.

    The plan itself and not the file that it came from: that may have changed since.
    """

    plan: Plan
    folder: Path
    storage: str | None
    heartbeat: int
    processes: int
    device: str
    elsewhere: frozenset[str] = frozenset()
    """cells that were collected before and need no work"""
    only_one: bool = False
    """leave after one cell"""
    measure: bool = False
    """take no cell, measure what has the machine to itself"""

    def to_line(self) -> bytes:
        return TASK.dump_json(self) + b"\n"


TASK = TypeAdapter(Task)


def work(task: Task, tell: Tell) -> None:
    """Take cells for as long as there are any; who waits for others' is the parent."""
    worker = Worker(task.plan, task.folder, task.processes, task.device, tell)
    if task.measure:
        worker.measure()
        return
    queue = Queue(task.plan, task.folder, task.storage, task.heartbeat, task.elsewhere)
    while queue.left()[0]:
        queue.take_one(worker.do)
        if task.only_one:
            return


def main() -> NoReturn:
    """Work as standard input says, and leave with an exit code: 0 when there was nothing left."""
    # Libraries print: what they print goes to the log, and to the pipe only what we tell.
    pipe = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(event: Event) -> None:
        with suppress(BrokenPipeError):  # nobody reads any more: standard input has ended, too
            os.write(pipe, to_line(event).encode())

    asked = signal.SIGINT

    def stop(number: int, _frame: object) -> NoReturn:
        """While it trains there is something to save, and training listens by itself."""
        nonlocal asked
        asked = signal.Signals(number)
        raise KeyboardInterrupt  # which no library takes for a failure of its own

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
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(GRACE)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
