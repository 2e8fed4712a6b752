"""Interrupted anywhere, a run ends in the very bits of one that was left alone."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.model import PrismLM
from prism_transformer.recipes.files import load_recipe
from prism_transformer.training.device import settle
from prism_transformer.training.distributed import World
from prism_transformer.training.job import make_optimizer, new_job
from prism_transformer.training.run import (
    METRICS_FILE,
    checkpoints,
    read_environment,
)
from tests.conftest import small_config
from tests.older import without_sums
from tests.training.runs import (
    LONG,
    PATIENCE,
    assert_same_end,
    command,
    finish,
    run_command,
    start_command,
    tiny,
    wait_for_step,
)


def test_only_matrices_decay() -> None:
    model = PrismLM(small_config())
    optimizer = make_optimizer(model, load_recipe("prism-small").optim)
    decay = {
        id(w): group["weight_decay"] for group in optimizer.param_groups for w in group["params"]
    }
    for name, weight in model.named_parameters():
        assert decay[id(weight)] == (0.0 if "norm" in name else 0.1), name
    assert optimizer.defaults["betas"] == (0.9, 0.95)
    assert optimizer.defaults["eps"] == 1e-8


def test_a_batch_that_does_not_split_is_refused(tmp_path: Path, data: Path) -> None:
    recipe = tiny(data)
    settings = settle(recipe, "cpu")
    three = World(0, 3, settings.device, None)
    with (
        pytest.raises(InputError, match="does not split over 3 processes"),
        new_job(tmp_path / "run", recipe, settings, three),
    ):
        pass
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("k", [1, 4, 5, 13, 19, 20])
def test_resume_from_any_step_is_exact(tmp_path: Path, data: Path, whole: Path, k: int) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)  # its metrics go on beyond k, as after a kill
    for folder in checkpoints(run)[k:]:
        shutil.rmtree(folder)
    recipe = tiny(data, "run.checkpoint_every=1", "run.keep_checkpoints=100")
    notes = finish(run, recipe, resume=True)
    assert f"step-{k:08d}" in notes[-1]
    assert_same_end(run, whole)
    assert [session["step"] for session in read_environment(run)["sessions"]] == [0, k]


def test_a_run_without_a_checkpoint_begins_again(tmp_path: Path, data: Path, whole: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "checkpoints")
    recipe = tiny(data, "run.checkpoint_every=1", "run.keep_checkpoints=100")
    assert "begins again" in finish(run, recipe, resume=True)[-1]
    assert_same_end(run, whole)


def test_a_changed_recipe_is_refused_with_the_difference(
    tmp_path: Path, data: Path, whole: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    recipe = tiny(data, "run.checkpoint_every=1", "run.keep_checkpoints=100", "optim.lr=1e-3")
    with pytest.raises(InputError, match=r"optim\.lr: 0\.003 -> 0\.001"):
        finish(run, recipe, resume=True)


def test_a_recipe_that_was_edited_is_refused_before_anything_changes(
    tmp_path: Path, data: Path, whole: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "checkpoints")
    recipe = tiny(data, "run.checkpoint_every=1", "run.keep_checkpoints=100", "train.seed=7")
    with pytest.raises(InputError, match=r"train\.seed: 0 -> 7"):
        finish(run, recipe, resume=True)
    assert (run / METRICS_FILE).read_bytes() == (whole / METRICS_FILE).read_bytes()


def test_more_shards_without_a_manifest_are_refused(tmp_path: Path, data: Path) -> None:
    foreign = tmp_path / "data"
    foreign.mkdir()
    for split in ("train", "val"):
        shutil.copyfile(data / f"{split}_000000.bin", foreign / f"{split}_000000.bin")
    recipe = tiny(data, f"data.folder={foreign}")
    finish(tmp_path / "run", recipe)
    shutil.copyfile(foreign / "train_000000.bin", foreign / "train_000001.bin")
    with pytest.raises(InputError, match=r"train_000001\.bin is not the shard"):
        finish(tmp_path / "run", recipe, resume=True)


@pytest.mark.parametrize("split", ["train", "val"])
def test_other_shards_are_refused(tmp_path: Path, data: Path, split: str) -> None:
    own = tmp_path / "data"
    shutil.copytree(data, own)
    recipe = tiny(data, f"data.folder={own}")
    finish(tmp_path / "run", recipe)
    manifest = own / "manifest.json"
    text = manifest.read_text("utf-8")
    position = text.index(f'"split": "{split}"')
    place = text.index('"sha256": "', position) + len('"sha256": "')
    manifest.write_text(text[:place] + "0" * 64 + text[place + 64 :], "utf-8")
    with pytest.raises(InputError, match=r"manifest.json: is damaged or was changed"):
        finish(tmp_path / "run", recipe, resume=True)
    without_sums(manifest)
    with pytest.raises(InputError, match="is not the shard"):
        finish(tmp_path / "run", recipe, resume=True)


def killed_and_resumed(data: Path, folder: Path, n_kills: int, seed: int) -> None:
    """Train by command, killed at random moments, until it is done."""
    tiny(data)
    draw = random.Random(seed)
    first = command("train", str(data / "tiny.toml"), *LONG, "--out", "run")
    again = command("resume", "run")
    for _ in range(n_kills):
        line = again if (folder / "run" / "recipe.toml").exists() else first
        process = start_command(line, folder)
        time.sleep(draw.uniform(1.5, 7.0))
        process.kill()
        process.communicate()
    line = again if (folder / "run" / "recipe.toml").exists() else first
    done = run_command(line, folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("n_kills", [2, 30], ids=["twice", "thirty times"])
@pytest.mark.slow
def test_killed_at_random_moments(
    tmp_path: Path, data: Path, long_whole: Path, n_kills: int
) -> None:
    killed_and_resumed(data, tmp_path, n_kills, seed=n_kills)
    assert_same_end(tmp_path / "run", long_whole)


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_stop_training(tmp_path: Path, data: Path) -> None:
    tiny(data)
    process = start_command(command("train", str(data / "tiny.toml"), "--out", "run"), tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=PATIENCE)
    assert [folder.name for folder in checkpoints(tmp_path / "run")][-1] == "step-00000020"


@pytest.mark.slow
def test_two_processes_cannot_write_one_run(tmp_path: Path, data: Path, long_whole: Path) -> None:
    tiny(data)
    line = command("train", str(data / "tiny.toml"), *LONG, "--out", "run")
    process = start_command(line, tmp_path)
    wait_for_step(tmp_path / "run", 5, process)
    process.send_signal(signal.SIGSTOP)
    try:
        again = run_command(command("resume", "run"), tmp_path)
        assert again.returncode == 2
        assert f"another process is writing there (process {process.pid} on " in again.stderr
    finally:
        process.send_signal(signal.SIGCONT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert_same_end(tmp_path / "run", long_whole)


# The files that begin a run are 4 kB, metrics 40 kB, weights 0.2 MB, the optimizer twice that: each
# limit stops another file.
@pytest.mark.parametrize(
    "limit",
    [10_000, 100_000, 300_000],
)
@pytest.mark.slow
def test_a_full_disk_is_said_and_nothing_is_lost(
    tmp_path: Path, data: Path, long_whole: Path, limit: int
) -> None:
    recipe = tiny(data, *LONG)

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    line = command("train", str(data / "tiny.toml"), *LONG, "--out", "run")
    done = run_command(line, tmp_path, small_files)
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert "prism resume run" in done.stderr
    assert "Traceback" not in done.stderr
    finish(tmp_path / "run", recipe, resume=True)
    assert_same_end(tmp_path / "run", long_whole)


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path: Path, data: Path, long_whole: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a small disk takes privileges")
    try:
        recipe = tiny(data, *LONG)
        line = command("train", str(data / "tiny.toml"), *LONG, "--out", "run")
        done = run_command(line, disk)
        assert done.returncode == 2, done.stderr
        assert "No space left on device" in done.stderr
        assert "what was saved before is intact: go on with `prism resume run`" in done.stderr
        assert len(checkpoints(disk / "run")) == 2
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        assert "goes on from" in finish(disk / "run", recipe, resume=True)[0]
        assert_same_end(disk / "run", long_whole)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
