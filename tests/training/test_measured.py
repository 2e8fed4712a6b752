"""What was measured names its model."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.sealed import write_sealed
from prism_transformer.training.measured import own_sums, read_measured
from prism_transformer.training.run import checkpoints


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
