"""Stopping when asked, at the end of a step or at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prism_transformer.training.stopping import SAME_REQUEST, StopRequest
from tests.training.runs import (
    LONG,
    assert_same_end,
    command,
    finish,
    start_command,
    tiny,
    wait_for_step,
)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_asked_to_stop_it_finishes_the_step_saves_and_says_how_to_go_on(
    tmp_path: Path, data: Path, long_whole: Path, number: signal.Signals
) -> None:
    recipe = tiny(data, *LONG)
    line = command("train", str(data / "tiny.toml"), *LONG, "--out", "run")
    process = start_command(line, tmp_path)
    wait_for_step(tmp_path / "run", 30, process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "saved; go on with `prism resume run`" in output
    finish(tmp_path / "run", recipe, resume=True)
    assert_same_end(tmp_path / "run", long_whole)


def test_asked_twice_it_stops_at_once_even_within_one_call_of_torch() -> None:
    script = """
import time, torch
from prism_transformer.training.stopping import StopRequest
with StopRequest():
    print("ready", flush=True)
    torch.ones(8000, 8000) @ torch.ones(8000, 8000)  # seconds without a line of Python
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGUSR1)  # the same request on another way, as under Slurm
    time.sleep(SAME_REQUEST + 0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 128 + signal.SIGTERM


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert stop.requested
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
