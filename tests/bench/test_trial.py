"""A trial is a real run; what it says is what the run wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from prism_transformer.bench import trial as trial_module
from prism_transformer.bench.trial import trial, trials
from tests.conftest import Prism

CPU = torch.device("cpu")
TINY = (
    "model.schedule=1x1 2x1", "model.d_model=32", "model.d_ff=32", "model.h_base=2",
    "model.seq_len=16", "model.vocab_size=300", "train.micro_batch=2", "train.batch_tokens=64",
    "train.tokens=640", "data.val_tokens=32",
)  # fmt: skip


@pytest.mark.slow
def test_twenty_steps_of_a_tiny_recipe() -> None:
    row = trial("prism-micro", 1, CPU, TINY)
    assert row["note"] == ""
    assert row["tokens/s"] > 0
    assert row["GiB"] > 0.1
    assert row["utilisation"] is None
    assert row["paper"] is row["estimate"] is None  # the paper has no such model
    assert trial_module.Table("trials", trial_module.COLUMNS, (row,)).plain_rows()


def test_a_batch_that_does_not_split_is_said() -> None:
    assert trial("prism-micro", 3, CPU, TINY)["note"] == "its batch does not split over 3 devices"


@pytest.mark.slow
def test_one_that_fails_says_why() -> None:
    assert (
        "FAILED"
        in trial("prism-micro", 1, CPU, (*TINY, "train.precision=bf16", "optim.lr=1e30"))["note"]
    )


def test_the_paper_and_an_estimate_stand_beside_its_models(tmp_path: Path) -> None:
    expected = trial_module._expected("prism-small", trial_module.load_recipe("prism-small"))
    assert expected["paper"] == 2_875_000
    assert expected["estimate"] > 3e6
    assert 10 < expected["counted GiB"] < 40


@pytest.mark.slow
def test_the_command(prism: Prism) -> None:
    done = prism("doctor", "--train", "--device", "cpu", "--json")
    (row,) = json.loads(done.stdout)
    assert row["recipe"] == "prism-micro"
    assert row["tokens/s"] > 0
    assert trials.__doc__
