"""Stopping when asked: finish the step, save, leave."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Whether somebody asked this process to stop; who asks twice is obeyed at once."""

    def __init__(self) -> None:
        self.requested = False
        self.signal = signal.SIGTERM  # unless another one came

    def __enter__(self) -> Self:
        self.before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.requested:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.requested = True
        self.signal = signal.Signals(number)
