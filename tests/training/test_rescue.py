"""A run folder that goes away while it is being trained."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from errno import ENOENT
from pathlib import Path

import pytest

from prism_transformer.core.errors import RunError
from prism_transformer.core.progress import Event, Measured
from prism_transformer.recipe import Recipe
from prism_transformer.training import job as job_module
from prism_transformer.training.api import resume, train
from prism_transformer.training.checkpoint import State, check_checkpoint, read_state
from prism_transformer.training.run import checkpoints, read_metrics
from prism_transformer.training.saving import Snapshot, save_whole
from tests.training.runs import (
    PATIENCE,
    assert_same_end,
    finish,
    start_command,
    tiny,
    torchrun,
    wait_until,
)


def removed(run: Path) -> None:
    shutil.rmtree(run)


def replaced(run: Path) -> None:
    run.rename(run.with_name("moved"))
    shutil.copytree(run.with_name("moved"), run)


@pytest.mark.parametrize("harm", [removed, pytest.param(replaced, marks=pytest.mark.slow)])
def test_a_run_whose_folder_goes_is_saved_beside(
    tmp_path: Path, data: Path, harm: Callable[[Path], None]
) -> None:
    run = tmp_path / "run"

    def tell(event: Event) -> None:
        if isinstance(event, Measured) and event.row["step"] == 6 and event.row["kind"] == "train":
            harm(run)

    with pytest.raises(RunError, match=r"removed or replaced .* `prism resume .*run-saved`") as end:
        train(tiny(data), run, device="cpu", tell=tell)
    assert end.value.exit_code == 1
    resume(tmp_path / "run-saved", device="cpu")
    finish(tmp_path / "whole", tiny(data))
    assert_same_end(tmp_path / "run-saved", tmp_path / "whole")


def test_a_folder_that_goes_while_a_checkpoint_is_written(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"

    def harmed(folder: Path, recipe: Recipe, state: State, taken: Snapshot) -> None:
        if folder.is_relative_to(run):
            removed(run)
            raise FileNotFoundError(ENOENT, "No such file or directory", str(folder))
        save_whole(folder, recipe, state, taken)

    monkeypatch.setattr(job_module, "save_whole", harmed)
    with pytest.raises(RunError, match=r"removed or replaced"):
        train(tiny(data), run, device="cpu")
    monkeypatch.undo()
    assert not run.exists()
    resume(tmp_path / "run-saved", device="cpu")
    finish(tmp_path / "whole", tiny(data))
    assert_same_end(tmp_path / "run-saved", tmp_path / "whole")


@pytest.mark.slow
def test_parts_of_a_sharded_run_are_saved_beside(tmp_path: Path, data: Path) -> None:
    tiny(data)
    ways = ("train.distribution=fully_shard", "run.checkpoint_every=2", "train.tokens=160_000")
    process = start_command(
        torchrun("train", str(data / "tiny.toml"), *ways, "--out", "run"), tmp_path
    )
    wait_until(
        lambda: bool(checkpoints(tmp_path / "run")) or process.poll() is not None, "a checkpoint"
    )
    (tmp_path / "run").rename(tmp_path / "moved")
    _, errors = process.communicate(timeout=PATIENCE)
    assert "all of the run is in run-saved now" in errors
    saved = checkpoints(tmp_path / "run-saved")
    assert len(list(saved[-1].glob("*-of-*"))) == 4
    check_checkpoint(saved[-1])
    state = read_state(saved[-1])
    assert read_metrics(tmp_path / "run-saved")[-1]["step"] == state.step
    assert not list(tmp_path.glob(".*"))
