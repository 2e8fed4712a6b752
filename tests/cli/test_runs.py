from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.conftest import Prism


def test_runs_that_are_here(tmp_path: Path, trained: Path, prism_inside: Prism) -> None:
    nothing = prism_inside("runs")
    assert nothing.returncode == 0
    assert nothing.stdout == "no run in runs/ and studies/; begin one with: prism train\n"
    shutil.copytree(trained, tmp_path / "runs" / "deep" / "one")
    (row,) = json.loads(prism_inside("runs", "--json").stdout)
    assert (row["run"], row["step"], row["state"]) == ("runs/deep/one", 20, "complete")
    assert f"{row['loss']:.4f}" in prism_inside("runs", "runs/deep").stdout
    assert prism_inside("runs", "nowhere").returncode == 2
