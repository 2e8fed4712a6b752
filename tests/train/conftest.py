"""One prepared corpus for all training tests of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.cli.prepare import prepare
from tests.train.runs import tiny


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded corpus as bytes."""
    folder = tmp_path_factory.mktemp("data")
    prepare("sotu", tokenizer="bytes", val_tokens=4096, out=folder)
    tiny(folder)  # writes the recipe that commands name
    return folder
