"""What tests share: small models of any schedule, and the prism command as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from prism_transformer.recipe import ModelConfig
from prism_transformer.schedule import HeadSchedule

Prism = Callable[..., subprocess.CompletedProcess[str]]

torch.set_num_threads(1)  # tests run side by side, one per core


def small_config(schedule: str = "2x1 3x1 6x1 12x2", **changes: Any) -> ModelConfig:
    """A model that runs in milliseconds: d_model 96 admits 1, 2, 3, 4, 6, 8, 12, ... heads."""
    values: dict[str, Any] = {
        "schedule": HeadSchedule.parse(schedule),
        "d_model": 96,
        "h_base": 12,
        "d_ff": 160,
        "vocab_size": 300,
        "seq_len": 64,
    }
    return ModelConfig(**(values | changes))


@pytest.fixture
def prism_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Prism:
    """Run ``prism`` in an empty folder and in this process: what it imports is imported once."""
    from prism_transformer.cli import main

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["prism", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        code = int(stop.value.code or 0)
        return subprocess.CompletedProcess(list(arguments), code, *capsys.readouterr())

    return run


@pytest.fixture
def prism(tmp_path: Path) -> Prism:
    """Run ``prism`` in an empty folder, plain: no terminal, 100 columns."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "prism_transformer", *arguments]
        environment = {**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded corpus as bytes, prepared once for all tests of a process."""
    from prism_transformer.data.prepare import Preparation, prepare
    from tests.training.runs import tiny

    folder = tmp_path_factory.mktemp("data")
    prepare(Preparation(tokenizer="bytes", val_tokens=4096, folder=folder))
    tiny(folder)  # writes the recipe that commands name
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A finished run of twenty steps."""
    from tests.training.runs import finish, tiny

    folder = tmp_path_factory.mktemp("runs") / "tiny"
    finish(folder, tiny(data))
    return folder
