"""A portion of the campaign of faults; ``make torture`` runs all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parents[1] / "benchmarks" / "faults"


@pytest.mark.slow
def test_a_portion_of_the_campaign_finds_nothing_wrong() -> None:
    line = [sys.executable, str(FAULTS), "--size", "portion"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stderr
    rows = [row.split() for row in done.stdout.splitlines()[2:]]
    assert len(rows) == 14
    assert {row[4] for row in rows} == {"0"}
