"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def end_with_parent(number: signal.Signals) -> None:
    """Have the system send this process a signal when its parent ends; only Linux can.

    A parent that has ended before this call is not noticed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
