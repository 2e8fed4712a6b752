"""A process learns from the system that its parent has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PARENT = """
import os, signal, subprocess, sys
child = '''
import signal, sys, time
from prism_transformer.core.family import end_with_parent
signal.signal(signal.SIGTERM, lambda *_: (print("told", flush=True), sys.exit(0)))
end_with_parent(signal.SIGTERM)
print("ready", flush=True)
time.sleep(60)
'''
subprocess.Popen([sys.executable, "-c", child])
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of it")
def test_a_signal_comes_when_the_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    os.kill(parent.pid, signal.SIGKILL)
    said, _ = parent.communicate(timeout=50)  # its child holds the pipe until it ends
    assert said == "told\n"
