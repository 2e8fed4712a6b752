"""Checkpoints: which stay, and which are not believed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.training.checkpoint import (
    STATE_FILE,
    newest_model,
)
from prism_transformer.training.run import (
    checkpoint_folder,
    checkpoints,
)
from tests.training.runs import (
    assert_same_end,
    finish,
    tiny,
)


def test_only_the_newest_checkpoints_stay(tmp_path: Path, data: Path) -> None:
    finish(tmp_path / "run", tiny(data))
    assert [folder.name for folder in checkpoints(tmp_path / "run")] == [
        "step-00000016",
        "step-00000020",
    ]


FILES = [
    "model.json", "model.safetensors", "optimizer.safetensors",
    "recipe.toml", "sha256.json", "state.json",
]  # fmt: skip


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_is_seen_and_an_older_one_used(
    tmp_path: Path, data: Path, whole: Path, file: str, damage: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for folder in checkpoints(run)[10:]:
        shutil.rmtree(folder)
    broken = checkpoint_folder(run, 10) / file
    content = bytearray(broken.read_bytes())
    content[random.Random(file).randrange(len(content))] ^= 1 << 3
    if damage == "remove":
        broken.unlink()
    else:
        broken.write_bytes(content if damage == "flip" else content[:-1])
    recipe = tiny(data, "run.checkpoint_every=1", "run.keep_checkpoints=100")
    notes = finish(run, recipe, resume=True)
    assert "step-00000010" in notes[0]
    assert "goes on from" in notes[1]
    assert "step-00000009" in notes[1]
    # The damaged one gave way to a new one of the same step.
    assert_same_end(run, whole)


def test_no_command_but_resume_takes_an_older_model_in_place_of_a_damaged_one(
    tmp_path: Path, whole: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    *_, before, newest = checkpoints(run)
    assert newest_model(run) == newest
    (newest / STATE_FILE).write_text("{}")
    with pytest.raises(InputError) as refused:
        newest_model(run)
    assert f"{newest / STATE_FILE}: is damaged" in str(refused.value)
    assert f"prism resume {run}" in str(refused.value)
    assert str(refused.value).endswith(str(before))
    assert newest_model(before) == before
