"""A one-shot run and a uniform one, trained once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.training.api import train
from prism_transformer.training.run import Run
from tests.training.runs import tiny


@pytest.fixture(scope="session")
def shared_run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Run:
    place = tmp_path_factory.mktemp("search") / "shared"
    recipe = tiny(data, "train.schedule_sampling=layers 2/4/8x3", "train.tokens=5120")
    return train(recipe, place, device="cpu")


@pytest.fixture(scope="session")
def uniform_run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Run:
    place = tmp_path_factory.mktemp("search") / "uniform"
    recipe = tiny(data, "model.schedule=8x3", "train.tokens=5120")
    return train(recipe, place, device="cpu")
