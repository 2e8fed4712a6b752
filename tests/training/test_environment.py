"""What is written down of a run, and what two runs of one seed share."""

from __future__ import annotations

from pathlib import Path

import torch

from prism_transformer.core.sealed import read_sealed
from prism_transformer.training.run import read_environment
from tests.training.runs import final_state, finish, tiny


def test_arms_of_one_seed_start_alike_and_see_the_same(tmp_path: Path, data: Path) -> None:
    finish(tmp_path / "prism", tiny(data))
    finish(tmp_path / "uniform", tiny(data, "model.schedule=8x3"))
    finish(tmp_path / "other", tiny(data, "train.seed=1"))
    prism, uniform, other = (
        read_environment(tmp_path / name)["hashes"] for name in ("prism", "uniform", "other")
    )
    assert prism == uniform
    assert prism["initial_weights"] != other["initial_weights"]
    assert prism["data_order"] != other["data_order"]
    assert prism["shards"] == other["shards"]
    assert final_state(tmp_path / "prism")[1] != final_state(tmp_path / "uniform")[1]


def test_environment_of_a_run(tmp_path: Path, data: Path) -> None:
    finish(tmp_path / "run", tiny(data))
    environment = read_environment(tmp_path / "run")
    known = environment["software"]["torch"]
    # What pip calls a CUDA build lacks the end of what it calls itself: 2.15.0, 2.15.0+cu132.
    assert known.partition("+")[0] == torch.__version__.partition("+")[0]
    assert len(environment["attention_backends"]) == 3
    (session,) = environment["sessions"]
    assert (session["step"], session["precision"], session["compiled"]) == (0, "fp32", False)
    assert read_sealed(tmp_path / "run" / "environment.json") == environment


def test_another_number_of_threads_is_said(tmp_path: Path, data: Path) -> None:
    finish(tmp_path / "run", tiny(data))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        notes = finish(tmp_path / "run", tiny(data), resume=True)
    finally:
        torch.set_num_threads(threads)
    assert notes[-1] == f"threads: {threads} before, {threads + 1} now"
