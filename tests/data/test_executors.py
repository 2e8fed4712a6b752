"""Executors: what is missing is started again, and nothing else; on a Slurm of our own, too."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError, RunError
from prism_transformer.data.executors import Here, Slurm, Stage, open_executor
from prism_transformer.data.shards import read_manifest
from tests.data.test_stream import hashes
from tests.data.test_tasks import order
from tests.study.cluster import cluster, why_not


@pytest.mark.slow
def test_a_task_that_gets_nothing_done_is_given_up(tmp_path: Path) -> None:
    """There is no order in this folder, so every start fails."""
    with pytest.raises(RunError, match=r"ended with code 1 4 times .*order\.json"):
        Here(2).run(tmp_path, Stage("pieces", 0, 2), lambda _: [], lambda: 0)


def test_slurm_wants_a_partition(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--sbatch partition=cpu"):
        Slurm(2).run(tmp_path, Stage("pieces", 0, 2), lambda _: [], lambda: 0)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_ray_is_asked_for_by_name() -> None:
    with pytest.raises(InputError, match="--on ray: Ray is not installed: pip install ray"):
        open_executor("ray", 2)


def test_options_of_sbatch_are_names_with_values() -> None:
    with pytest.raises(InputError, match="'cpu': write NAME=VALUE"):
        open_executor("slurm", 2, ["cpu"])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_tasks_of_ray_give_the_bytes_of_none(tmp_path: Path) -> None:
    subprocess.run(order(tmp_path / "0", 0), check=True)
    subprocess.run(order(tmp_path / "2", 2, "ray"), check=True)
    assert hashes(tmp_path / "2") == hashes(tmp_path / "0")
    assert read_manifest(tmp_path / "2") == read_manifest(tmp_path / "0")


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_tasks_of_slurm_give_the_bytes_of_none(tmp_path: Path) -> None:
    subprocess.run(order(tmp_path / "0", 0), check=True)
    with cluster() as slurm:
        done = subprocess.run(
            order(tmp_path / "2", 2, "slurm", "partition=gpu", "mem-per-cpu=1M"),
            env=slurm.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert hashes(tmp_path / "2") == hashes(tmp_path / "0")
    assert read_manifest(tmp_path / "2") == read_manifest(tmp_path / "0")
