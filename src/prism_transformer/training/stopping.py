"""Stopping when asked: finish the step, save, leave."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from threading import Thread, current_thread, main_thread
from time import monotonic
from typing import Self

from prism_transformer.core.errors import RunError
from prism_transformer.core.progress import Note, Tell, silent

# SIGUSR1 is what srun passes on to the processes of every node; SIGTERM makes it kill them.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# Seconds within which signals are one request: Slurm sends one to every process of a job, and
# torchrun passes its own on to processes that have it already.
SAME_REQUEST = 1.0
STOPPING = "stopping after this step; once more to stop at once"


class Stopped(RunError):
    """A signal ended training early; everything is saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number  # as a shell reports a process that a signal ended


class StopRequest:
    """Whether a signal asked this process to stop; a second one ends it at once.

    Python runs its handlers between two lines of Python, and one line can be a minute of matrix
    products. So a thread of its own listens: the system tells it of every signal as it comes.
    ``tell`` is called from that thread.
    """

    def __init__(self, tell: Tell = silent) -> None:
        self.tell = tell
        self.requested = False
        self.signal = signal.SIGTERM  # unless another one came
        self.since = 0.0

    def __enter__(self) -> Self:
        # Only the main thread may set handlers; training in another one is stopped by its caller.
        self.listens = current_thread() is main_thread()
        if self.listens:
            self.listening, self.telling = socket.socketpair()
            self.telling.setblocking(False)
            number = self.telling.fileno()
            self.told_before = signal.set_wakeup_fd(number, warn_on_full_buffer=False)
            # The handlers do nothing, but without one the signal would end the process.
            self.before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
            Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self.listens:
            for number, handler in self.before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self.told_before)
            self.telling.close()  # which ends the thread

    def _listen(self) -> None:
        with self.listening:
            while told := self.listening.recv(1):
                if told[0] in SIGNALS:
                    self._note(signal.Signals(told[0]))

    def _note(self, number: signal.Signals) -> None:
        if self.requested:
            if monotonic() - self.since > SAME_REQUEST:
                os._exit(128 + number)
            return
        self.since = monotonic()
        self.signal = number
        self.requested = True
        with suppress(Exception):  # this thread must live to hear the second signal
            self.tell(Note(STOPPING))
