"""``prism study submit`` and ``--cell`` as a user types them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Prism
from tests.study.files import write_study


def test_a_dry_run_prints_the_script_and_nothing_else(prism_inside: Prism, tmp_path: Path) -> None:
    line = "submit small --partition gpu --gpus 8 --time 4:00:00 --sbatch qos=high --dry-run"
    shown = prism_inside("study", *line.split())
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("#!/bin/bash\n")
    for option in ("partition=gpu", "gpus-per-node=8", "time=4:00:00", "qos=high", "array=0-5%6"):
        assert f"#SBATCH --{option}\n" in shown.stdout
    assert " --processes 8 " in shown.stdout
    assert shown.stdout.endswith('exit "$code"\n')
    assert list(tmp_path.iterdir()) == []


def test_workers_are_so_many_tasks_on_the_shared_queue(prism_inside: Prism) -> None:
    line = "submit small --workers 3 --storage postgresql://lab@db/prism --heartbeat 30 --dry-run"
    shown = prism_inside("study", *line.split()).stdout
    assert "#SBATCH --array=0-2%3\n" in shown
    assert (
        " --storage postgresql://lab@db/prism --processes 8 --device auto --heartbeat 30" in shown
    )
    assert "--cell" not in shown


def test_one_run_is_done_by_its_name(prism_inside: Prism, tmp_path: Path, data: Path) -> None:
    file = str(write_study(tmp_path, data))
    done = prism_inside("study", "work", file, "--cell", "prism-seed1", "--cell", "uniform-seed0")
    assert done.returncode == 0, done.stderr
    assert "prism-seed1: step 20, validation loss" in done.stdout
    there = {each.name for each in (tmp_path / "studies" / "tiny" / "runs").iterdir()}
    assert there == {"prism-seed1", "uniform-seed0"}
    status = prism_inside("study", "status", file).stdout
    assert "job" not in status.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("submit", "nothing.toml"), "no such study file"),
        (("submit", "small", "--gpus", "0"), "for --gpus"),
        (("submit", "small", "--time", "soon"), "time = 'soon'"),
        (("submit", "small", "--sbatch", "qos"), "--sbatch qos: write an option and its value"),
        (("submit", "small", "--nodes", "3"), "8 processes do not share 3 nodes"),
        (("work", "demo", "--cell", "nobody"), "nobody: is no run of"),
    ],
)
def test_errors_are_plain(
    prism_inside: Prism, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    result = prism_inside("study", *arguments)
    assert result.returncode == 2
    assert reason in result.stderr + result.stdout
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_slurm_it_says_so(
    prism_inside: Prism, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = prism_inside("study", "submit", "small")
    assert result.returncode == 2
    assert result.stderr == (
        "error: sbatch: is not here; submit where Slurm is, or look with --dry-run\n"
    )
    assert list(tmp_path.iterdir()) == []
