"""Checkpoints that a thread writes: what training does meanwhile, and parts of them."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
import torch

from prism_transformer.core.errors import InputError
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import SCHEDULE, piece_of, read_tensors, write_tensors
from prism_transformer.recipes.files import load_recipe
from prism_transformer.training import job as job_module
from prism_transformer.training.checkpoint import State
from prism_transformer.training.job import make_optimizer
from prism_transformer.training.run import Run, checkpoints, read_metrics
from prism_transformer.training.saving import Saver, Snapshot, save_whole, snapshot
from tests.conftest import small_config
from tests.training.runs import (
    assert_same_end,
    finish,
    kill_all,
    run_command,
    start_command,
    steps_of,
    tiny,
    torchrun,
    wait_until,
)


def test_what_goes_wrong_in_the_thread_is_raised_once_outside_it() -> None:
    def fails() -> None:
        raise InputError("no room")

    with Saver() as saver:
        saver.begin(fails)
        with pytest.raises(InputError, match="no room"):
            saver.wait()
        saver.wait()
    with pytest.raises(InputError, match="no room"), Saver() as saver:
        saver.begin(fails)


def test_one_checkpoint_is_written_at_a_time_and_all_are() -> None:
    done: list[int] = []
    gate = threading.Event()

    def late() -> None:
        gate.wait()
        done.append(1)

    with Saver() as saver:
        saver.begin(late)
        saver.check()  # does not wait
        assert done == []
        gate.set()
        saver.begin(lambda: done.append(2))
        assert done[0] == 1
    assert done == [1, 2]


def test_a_snapshot_does_not_see_later_steps() -> None:
    model = PrismLM(small_config())
    optimizer = make_optimizer(model, load_recipe("prism-small").optim)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    taken = snapshot(model, optimizer)
    tokens = torch.randint(300, (2, 33), generator=torch.Generator().manual_seed(0))
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    optimizer.step()
    for name, weight in model.named_parameters():
        assert torch.equal(taken.weights[name], before[name])
        assert not torch.equal(weight, before[name])
        assert not taken.moments[f"exp_avg.{name}"].any()


def test_only_who_keeps_a_snapshot_copies() -> None:
    model = PrismLM(small_config())
    taken = snapshot(model, make_optimizer(model, load_recipe("prism-small").optim), keep=False)
    assert taken.weights == taken.moments == {}


def test_pieces_are_rows_in_order(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(10, 3), "b": torch.randn(2)}  # not every process has rows of b
    for number, (start, stop) in enumerate([(0, 4), (4, 8), (8, 12)]):
        part = {name: each[start:stop] for name, each in tensors.items() if len(each) > start}
        write_tensors(part, tmp_path / piece_of("model.safetensors", number, 3))
    found = read_tensors(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, data: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    run = tmp_path / "run"

    def slowly(folder: Path, recipe: object, state: State, taken: Snapshot) -> None:
        wanted = min(state.step + 2, 20)
        for _ in range(500):
            if sum(row["kind"] == "train" for row in read_metrics(run)) >= wanted:
                break
            time.sleep(0.01)
        steps.append(sum(row["kind"] == "train" for row in read_metrics(run)) - state.step)
        save_whole(folder, recipe, state, taken)  # type: ignore[arg-type]

    monkeypatch.setattr(job_module, "save_whole", slowly)
    finish(run, tiny(data, "run.checkpoint_every=5"))
    assert steps[:-1] == [2, 2, 2]
    monkeypatch.undo()
    assert_same_end(run, whole)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fully_shard", "hybrid_shard"])
def test_parts_of_a_sharded_run_are_a_model_and_its_end_is_whole(
    tmp_path: Path, data: Path, way: str
) -> None:
    tiny(data)
    line = ("train", str(data / "tiny.toml"), f"train.distribution={way}", "--out", "run")
    done = run_command(torchrun(*line, "--until", "6"), tmp_path)
    assert done.returncode == 0, done.stderr
    last = checkpoints(tmp_path / "run")[-1]
    pieces = sorted(file.name for file in last.glob("*.safetensors"))
    assert pieces == sorted(
        piece_of(f"{kind}.safetensors", number, 2)
        for kind in ("model", "optimizer")
        for number in (0, 1)
    )
    from prism_transformer import generate

    assert generate(Run.open(tmp_path / "run"), "We", tokens=3).n_tokens <= 3
    done = run_command(torchrun("resume", "run"), tmp_path)
    assert done.returncode == 0, done.stderr
    end = checkpoints(tmp_path / "run")[-1]
    assert SCHEDULE in read_tensors(end / "model.safetensors")
    assert not list(end.glob("*-of-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["train.distribution=ddp", "train.distribution=fully_shard"], ids=["ddp", "sharded"]
)
def test_killed_while_checkpoints_are_written(tmp_path: Path, data: Path, way: str) -> None:
    """Saved at every step, so that a kill at any moment falls into a write."""
    tiny(data)
    often = (way, "train.tokens=51200", "run.checkpoint_every=1", "run.val_every=100")
    first = torchrun("train", str(data / "tiny.toml"), *often, "--out")
    assert run_command([*first, "whole"], tmp_path).returncode == 0
    draw, again = random.Random(way), torchrun("resume", "run")
    for _ in range(10):
        begun = (tmp_path / "run" / "recipe.toml").exists()
        _killed(again if begun else [*first, "run"], tmp_path, draw.uniform(0, 0.3))
    done = run_command(again, tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_end(tmp_path / "run", tmp_path / "whole")


def _killed(line: list[str], folder: Path, pause: float) -> None:
    """Begin a command and kill it a moment after its second step; one that ends before is done."""
    process, goal = start_command(line, folder), steps_of(folder / "run") + 2
    wait_until(
        lambda: process.poll() is not None or steps_of(folder / "run") >= goal, f"step {goal}"
    )
    time.sleep(pause)
    kill_all(process)
