"""Runs that were left alone, for those that were not to be held against; and a fresh compiler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch._dynamo

from tests.training.runs import LONG, Counters, finish, tiny


@pytest.fixture(scope="session")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was left alone, with a checkpoint of every step."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(folder, tiny(data, "run.checkpoint_every=1", "run.keep_checkpoints=100"))
    return folder


@pytest.fixture(scope="session")
def long_whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A longer one, also left alone."""
    folder = tmp_path_factory.mktemp("long") / "run"
    finish(folder, tiny(data, *LONG))
    return folder


@pytest.fixture
def compiler() -> Iterator[Counters]:
    """What the compiler counts from here on: what other tests compiled here is forgotten."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield torch._dynamo.utils.counters
    torch._dynamo.reset()
