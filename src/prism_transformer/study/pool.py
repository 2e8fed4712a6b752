"""Workers side by side on one machine, each a process with devices of its own.

The parent trains nothing. It starts a worker wherever cells wait and a share of the machine is
free, passes on what workers tell, replaces those that die, and stops all of them when it is asked
to stop. Whoever is killed, and be it the parent, loses no more than the steps since a checkpoint:
what is done stands in run folders, and who works on what in the queue.
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
from prism_transformer.study.sharing import Share, Shares
from prism_transformer.training.neighbours import WORKERS
from prism_transformer.training.stopping import STOPPING, Stopped, StopRequest

LOGS = "workers"  # folder of what worker processes print
STARTING = "starting workers"
TICK = 0.2  # seconds that the parent listens at a time


@dataclass
class _Child:
    """A worker process as its parent knows it."""

    place: int
    """whose share of the machine it has"""
    process: subprocess.Popen[bytes]
    log: Path
    rest: bytes = b""
    """of a line that has not come to its end"""
    cell: str | None = None
    """what it is at"""
    heard: bool = False
    """it has told something, so it got as far as a cell"""

    @property
    def pipe(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def close(self) -> None:
        """Neither tell it nor hear of it any more."""
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
    """by the place of their share"""
    started: int = 0
    """workers since all were ready, which takes each some seconds"""
    code: int = 0
    """that the last worker ended with"""
    deaths: int = 0
    """of workers in a row that never got as far as a cell"""
    looked: float = 0.0
    """when the queue was last asked"""
    left: tuple[int, int] = (0, 0)
    """cells that waited then, and that were under way"""

    def run(self, more: Callable[[], bool] = lambda: False) -> None:
        """Work until the queue is empty and nobody is at a cell; ``more`` may still come."""
        with self._open() as stop:
            while not stop.requested:
                self._listen()
                self._look()
                waiting, running = self.left
                if not self.children and not waiting and not running and not more():
                    return
                free = [n for n in range(len(self.shares)) if n not in self.children]
                # Those that have no cell yet are about to take one.
                idle = sum(child.cell is None for child in self.children.values())
                for place in free[: max(0, waiting - idle)]:
                    self._start(place, self.task, self._variables(self.shares.each[place]))

    def measure(self) -> None:
        """One process, alone, for what is measured when nobody else works."""
        task, share = replace(self.task, measure=True), self.shares.each[0]
        gpus = {name: e for name, e in share.variables.items() if name.startswith("CUDA")}
        with self._open() as stop:
            for _ in range(1 + RETRIES):
                self._start(0, task, gpus)
                while self.children and not stop.requested:
                    self._listen()
                if stop.requested or self.code == 0:
                    return
        raise RunError(f"measuring the speed of inference was killed; see {self._log(0)}")

    def _variables(self, share: Share) -> dict[str, str]:
        return {WORKERS: str(len(self.shares)), **share.variables}

    @contextmanager
    def _open(self) -> Iterator[StopRequest]:
        """Whoever is still there in the end saves and leaves, and is waited for."""
        with StopRequest(self.tell) as stop:
            try:
                yield stop
                for child in self.children.values() if stop.requested else ():
                    with suppress(ProcessLookupError):
                        child.process.send_signal(stop.signal)
                while self.children:
                    self._listen(stopping=True)
            finally:
                for child in self.children.values():
                    child.close()  # which a worker takes for our death
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
                # A terminal's Ctrl-C goes to its whole group, and we pass it on ourselves: a
                # worker that heard it twice would not save.
                start_new_session=True,
            )
        self.children[place] = _Child(place, process, log)
        self.started += 1
        self._tell_starting()
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it died at once, which its end will say
            process.stdin.write(task.to_line())
            process.stdin.flush()

    def _ready(self, child: _Child) -> None:
        """A worker that was being started is at work, or will never be."""
        if not child.heard:
            child.heard = True
            self._tell_starting()

    def _tell_starting(self) -> None:
        missing = sum(not child.heard for child in self.children.values())
        self.tell(Advance(STARTING, self.started - missing, self.started, "workers"))
        self.started = self.started if missing else 0

    def _look(self) -> None:
        """Ask the queue, now and then, and give back what the dead have left."""
        if monotonic() - self.looked >= POLL:
            self.queue.give_back()
            self.left, self.looked = self.queue.left(), monotonic()

    def _listen(self, *, stopping: bool = False) -> None:
        """Pass on what workers tell, and bury those that have ended."""
        with DefaultSelector() as selector:
            for child in self.children.values():
                selector.register(child.pipe, EVENT_READ, child)
            ready = [key.data for key, _ in selector.select(TICK)]
        for child in ready:
            if content := os.read(child.pipe, 65536):
                self._hear(child, content)
            else:
                self._bury(child, stopping=stopping)

    def _hear(self, child: _Child, content: bytes) -> None:
        *lines, child.rest = (child.rest + content).split(b"\n")
        for line in lines:
            try:
                event = from_line(line)
            except ValueError:  # cut off by a signal
                continue
            if isinstance(event, Of):
                self._ready(child)
                self.deaths = 0
                cell = None if _ends(event.event) else event.part
                if cell != child.cell:  # fewer wait, or fewer are under way
                    child.cell, self.looked = cell, 0.0
                if event.event == Note(STOPPING):  # all of them do, and it was said
                    continue
            self.tell(event)

    def _bury(self, child: _Child, *, stopping: bool) -> None:
        self.code = code = child.process.wait()
        heard = child.heard
        child.close()
        self._ready(child)
        del self.children[child.place]
        self.looked = 0.0  # a cell is done, or goes back
        if code == 0:
            self.deaths = 0
            with suppress(OSError):  # what has nothing to say goes, and with the last its folder
                if not child.log.stat().st_size:
                    child.log.unlink()
                    child.log.parent.rmdir()
            return
        if child.cell is not None:
            self.tell(Of(child.cell, Left(RUN)))
        if stopping:
            return
        self.deaths += not heard
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        what = f", which was at {child.cell}" if child.cell else ""
        self.tell(Note(f"worker {child.place} has died{what}: {how}; another one takes its place"))
        if self.deaths > RETRIES:
            raise RunError(f"workers die before they take a run; see {child.log}")


def _ends(event: Event) -> bool:
    """Whether a worker is done with a cell, and takes the next one."""
    done = isinstance(event, Advance) and event.what == RUN and event.done == event.total
    return done or event == Left(RUN)
