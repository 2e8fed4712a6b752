"""Workers side by side on one machine, each a process with devices of its own.

The parent (``Pool``) trains nothing. While cells wait and a share of the machine is free it starts
a worker (``process.py``), passes on the events of its workers, replaces those that die, and stops
all of them when it is asked to stop. Whichever process is killed, the parent included, no more is
lost than the steps since the last checkpoint: results are in run folders, and the queue knows which
worker had which cell.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from time import monotonic

from prism_transformer.core.disk import appended, writing
from prism_transformer.core.errors import RunError
from prism_transformer.core.progress import (
    Advance,
    Event,
    Left,
    Note,
    Of,
    Tell,
    from_line,
    silent,
)
from prism_transformer.core.threads import prepare_environment
from prism_transformer.study.process import Task
from prism_transformer.study.queue import POLL, RETRIES, Queue
from prism_transformer.study.runs import RUN
from prism_transformer.study.sharing import Shares
from prism_transformer.training.neighbours import WORKERS
from prism_transformer.training.stopping import STOPPING, Stopped, StopRequest

LOGS = "workers"  # folder of what worker processes print
STARTING = "starting workers"
TICK = 0.2  # seconds that the parent waits for events at a time


@dataclass
class _Child:
    """A worker process as its parent sees it."""

    place: int
    """the number of its share of the machine"""
    process: subprocess.Popen[bytes]
    log: Path
    rest: bytes = b""
    """the start of a line whose end has not been read yet"""
    cell: str | None = None
    """that it works on"""
    ready: bool = False
    """it has sent an event of a cell, so it started well"""

    @property
    def pipe(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def close(self) -> None:
        """Close both pipes; a worker that is alive takes the end of its input for our death."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()


@dataclass
class Pool:
    """The workers of one study on this machine."""

    task: Task
    shares: Shares
    queue: Queue
    tell: Tell = silent
    children: dict[int, _Child] = field(default_factory=dict)
    """by the number of their share"""
    started: int = 0
    """workers that were started since all were ready; starting takes each some seconds"""
    code: int = 0
    """exit code of the worker that ended last"""
    deaths: int = 0
    """workers in a row that died before they took a cell"""
    asked_at: float = 0.0
    """when the queue was last asked; 0 asks it again at once"""
    left: tuple[int, int] = (0, 0)
    """cells that waited then, and cells that were running"""

    def run(self, more: Callable[[], bool] = lambda: False) -> None:
        """Work until no cell waits or runs anywhere and ``more`` says that none will be added."""
        with self._open() as stop:
            while not stop.requested:
                self._read_events()
                self._ask_queue()
                waiting, running = self.left
                if not self.children and not waiting and not running and not more():
                    return
                free = [n for n in range(len(self.shares)) if n not in self.children]
                # Workers that have no cell yet are about to take one of those that wait.
                idle = sum(child.cell is None for child in self.children.values())
                for place in free[: max(0, waiting - idle)]:
                    variables = {WORKERS: str(len(self.shares))}
                    self._start(place, self.task, variables | self.shares.each[place].variables)

    def measure(self) -> None:
        """Start one process that measures the speed of inference while no other works."""
        task, share = replace(self.task, measure=True), self.shares.each[0]
        gpus = {name: e for name, e in share.variables.items() if name.startswith("CUDA")}
        with self._open() as stop:
            for _ in range(1 + RETRIES):
                self._start(0, task, gpus)
                while self.children and not stop.requested:
                    self._read_events()
                if stop.requested or self.code == 0:
                    return
        raise RunError(f"measuring the speed of inference was killed; see {self._log(0)}")

    @contextmanager
    def _open(self) -> Iterator[StopRequest]:
        """Listen for signals; at the end have all workers save and exit, and wait for them."""
        with StopRequest(self.tell) as stop:
            try:
                yield stop
                for child in self.children.values() if stop.requested else ():
                    with suppress(ProcessLookupError):
                        child.process.send_signal(stop.signal)
                while self.children:
                    self._read_events(stopping=True)
            finally:
                # After an exception of ours, too, no worker may go on: it would train a cell that
                # the next command takes as well.
                for child in self.children.values():
                    child.close()
                for child in self.children.values():
                    child.process.wait()
                self.children.clear()
        if stop.requested:
            message = "stopped, all runs are saved; the same command goes on"
            raise Stopped(message, stop.signal)

    def _log(self, place: int) -> Path:
        return self.task.folder / LOGS / f"{place}.log"

    def _start(self, place: int, task: Task, variables: dict[str, str]) -> None:
        log, environment = self._log(place), {**os.environ, **variables}
        prepare_environment(environment)
        with writing(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            stream = appended(log)
        with stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "prism_transformer.study.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=environment,
                # A terminal sends Ctrl-C to its whole process group, and `_open` passes it on: a
                # worker that got it twice would exit at once, without saving.
                start_new_session=True,
            )
        self.children[place] = _Child(place, process, log)
        self.started += 1
        self._tell_starting()
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it died at once; `_ended` will notice
            process.stdin.write(task.to_line())
            process.stdin.flush()

    def _set_ready(self, child: _Child) -> None:
        """Count a worker as started: it works, or it has ended."""
        if not child.ready:
            child.ready = True
            self._tell_starting()

    def _tell_starting(self) -> None:
        missing = sum(not child.ready for child in self.children.values())
        self.tell(Advance(STARTING, self.started - missing, self.started, "workers"))
        self.started = self.started if missing else 0

    def _ask_queue(self) -> None:
        """Every POLL seconds: put the cells of dead workers back, and count what is left."""
        if monotonic() - self.asked_at >= POLL:
            self.queue.give_back()
            self.left, self.asked_at = self.queue.left(), monotonic()

    def _read_events(self, *, stopping: bool = False) -> None:
        """Pass on the events of workers; the end of its pipe is the end of a worker."""
        with DefaultSelector() as selector:
            for child in self.children.values():
                selector.register(child.pipe, EVENT_READ, child)
            ready = [key.data for key, _ in selector.select(TICK)]
        for child in ready:
            if content := os.read(child.pipe, 65536):
                self._pass_on(child, content)
            else:
                self._ended(child, stopping=stopping)

    def _pass_on(self, child: _Child, content: bytes) -> None:
        *lines, child.rest = (child.rest + content).split(b"\n")
        for line in lines:
            try:
                event = from_line(line)
            except ValueError:  # cut off, because the worker was killed while writing it
                continue
            if isinstance(event, Of):
                self._set_ready(child)
                self.deaths = 0
                cell = None if _finishes(event.event) else event.part
                if cell != child.cell:  # it took or finished one, so the counts have changed
                    child.cell, self.asked_at = cell, 0.0
                if event.event == Note(STOPPING):  # our own StopRequest has said so for all
                    continue
            self.tell(event)

    def _ended(self, child: _Child, *, stopping: bool) -> None:
        """Forget a worker that has ended; raise when one after another dies at its start."""
        self.code = code = child.process.wait()
        was_ready = child.ready
        child.close()
        self._set_ready(child)
        del self.children[child.place]
        self.asked_at = 0.0  # its cell is done, or goes back to the queue
        if code == 0:
            self.deaths = 0
            with suppress(OSError):  # remove an empty log, and with the last one their folder
                if not child.log.stat().st_size:
                    child.log.unlink()
                    child.log.parent.rmdir()
            return
        if child.cell is not None:
            self.tell(Of(child.cell, Left(RUN)))
        if stopping:
            return
        self.deaths += not was_ready
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        what = f", which was at {child.cell}" if child.cell else ""
        self.tell(Note(f"worker {child.place} has died{what}: {how}; another one takes its place"))
        if self.deaths > RETRIES:
            raise RunError(f"workers die before they take a run; see {child.log}")


def _finishes(event: Event) -> bool:
    """Whether a worker is done with a cell."""
    done = isinstance(event, Advance) and event.what == RUN and event.done == event.total
    return done or event == Left(RUN)
