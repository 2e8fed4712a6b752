from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from prism_transformer.core.errors import InputError
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    fingerprint,
    load_model,
    save_model,
)
from tests.conftest import small_config


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_model(PrismLM(small_config(), seed=4), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_comes_back_as_it_was(tmp_path: Path, dtype: torch.dtype) -> None:
    model = PrismLM(small_config("2x1 4x1 8x1 12x2", queries_per_kv=2), seed=4).to(dtype)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.config == model.config
    assert fingerprint(loaded) == fingerprint(model)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    assert torch.equal(loaded(tokens), model(tokens))


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / CONFIG_FILE
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | changes), "utf-8")


def test_weights_of_another_schedule_are_refused(saved: Path) -> None:
    change_config(saved, schedule="12x5")
    with pytest.raises(InputError, match="belong to schedule 2x1 3x1 6x1 12x2, the config says"):
        load_model(saved)
    weights = load_file(saved / WEIGHTS_FILE)
    del weights["head_schedule"]
    save_file(weights, saved / WEIGHTS_FILE)
    with pytest.raises(InputError, match="schedule is unknown"):
        load_model(saved)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"d_ff": 128}, "gate_up.weight has shape|down.weight has shape"),
        ({"vocab_size": 1000}, "embedding.weight has shape"),
        ({"tied_embeddings": False}, r"lm_head.weight has shape None, but .* needs \(384, 96\)"),
        ({"schedule": "5x5"}, "5 heads do not divide"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_configs_that_do_not_fit_are_refused(
    saved: Path, changes: dict[str, Any], problem: str
) -> None:
    change_config(saved, **changes)
    with pytest.raises(InputError, match=problem):
        load_model(saved)


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
@pytest.mark.parametrize("content", [None, b"", b"junk \xff", b"{}"])
def test_damaged_files_are_named(saved: Path, name: str, content: bytes | None) -> None:
    if content is None:
        (saved / name).unlink()
    else:
        (saved / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        load_model(saved)
