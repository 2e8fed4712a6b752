"""Stopping when asked: finish the step, save, leave."""

from __future__ import annotations

import os
import signal
import socket
import sys
from threading import Thread
from types import TracebackType
from typing import Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Whether somebody asked this process to stop; who asks twice is obeyed at once.

    Python runs its handlers between two lines of Python, and one line can be a minute of matrix
    products. So a thread of its own listens: the system tells it of every signal as it comes.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal = signal.SIGTERM  # unless another one came

    def __enter__(self) -> Self:
        self.listening, self.telling = socket.socketpair()
        self.telling.setblocking(False)
        self.told_before = signal.set_wakeup_fd(self.telling.fileno(), warn_on_full_buffer=False)
        self.before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
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
            os._exit(128 + number)
        self.signal = number
        self.requested = True
        if os.environ.get("RANK", "0") == "0":
            print("stopping after this step; once more to stop at once", file=sys.stderr)
