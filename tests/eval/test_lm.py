"""lm_eval's model with our additions, and the libraries left as they were."""

from __future__ import annotations

import logging
from pathlib import Path

import datasets
import lm_eval
import pytest
import torch
from lm_eval.api.instance import Instance

from prism_transformer.core.errors import InputError, RunError
from prism_transformer.eval.lm import choose_device, open_model, quiet_harness


def request(context: str, rest: str) -> Instance:
    return Instance("loglikelihood", {}, (context, rest), 0)


def test_progress_truncation_and_what_cannot_be_scored(small_model: Path) -> None:
    model = open_model(str(small_model), "float32", 2, "cpu")
    told: list[tuple[int, int]] = []
    model.begin(lambda done, total: told.append((done, total)))
    long = "long " * 60  # 300 bytes, beyond the 256 that the model sees
    model.loglikelihood([request("a", " b"), request(long, " c"), request("d", " e")])
    assert told[-1] == (3, 3)
    assert model.all_truncated() == 1
    model.begin(lambda *_: None)
    assert model.all_truncated() == 0
    with pytest.raises(RunError, match="must be scored whole, the model sees 256"):
        model.loglikelihood([request("a", long)])


def test_devices() -> None:
    assert choose_device("cpu") == "cpu"
    assert choose_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(InputError, match="evaluation runs on cuda and on cpu"):
        choose_device("abacus")


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{tmp_path}: cannot be opened"):
        open_model(str(tmp_path), "float32", 1, "cpu")


def test_the_harness_is_quiet_only_within() -> None:
    def state() -> tuple[object, ...]:
        level = logging.getLogger("lm_eval").level
        return lm_eval.evaluator.add_env_info, level, datasets.are_progress_bars_disabled()

    before = state()
    with quiet_harness():
        assert state() != before
    assert state() == before
