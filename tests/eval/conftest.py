"""One model, one data folder and one run for all evaluation tests of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.data.prepare import Preparation, prepare
from tests.eval.files import write_data, write_model
from tests.training.runs import finish, tiny


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "hf")


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of bytes with two checkpoints."""
    corpus = tmp_path_factory.mktemp("corpus")
    prepare(Preparation(tokenizer="bytes", val_tokens=4096, folder=corpus))
    folder = tmp_path_factory.mktemp("runs") / "first"
    sizes = ("model.seq_len=128", "data.val_tokens=1536", "run.checkpoint_every=10")
    finish(folder, tiny(corpus, *sizes))
    return folder
