"""Checkpoints: which stay, and which are not believed."""

from __future__ import annotations

import hashlib
import random
import shutil
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.sealed import write_sealed
from prism_transformer.training.checkpoint import (
    STATE_FILE,
    newest_model,
    own_sums,
    read_measured,
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


def test_what_was_measured_of_another_model_is_refused(tmp_path: Path, whole: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    one, other = checkpoints(run)[-2:]
    facts = {"loss": 1.0, "model": own_sums(one)}
    assert facts["model"] == {
        name: hashlib.sha256((one / name).read_bytes()).hexdigest()
        for name in ("model.json", "model.safetensors")
    }
    mine, wrong = (run / "analysis" / each.name / "loss.json" for each in (one, other))
    write_sealed(mine, facts)
    assert read_measured(mine) == facts
    wrong.parent.mkdir()
    shutil.copy(mine, wrong)  # sound by itself, and not of this checkpoint
    with pytest.raises(InputError, match=f"{wrong}: was measured of another model than {other}"):
        read_measured(wrong)
    write_sealed(wrong, {"loss": 1.0})  # as older versions wrote it
    assert read_measured(wrong) == {"loss": 1.0}
