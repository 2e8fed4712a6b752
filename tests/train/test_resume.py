"""Interrupted anywhere, a run ends in the very bits of one that was left alone."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from prism_transformer.errors import InputError
from prism_transformer.train.run import (
    METRICS_FILE,
    checkpoint_folder,
    checkpoints,
    read_environment,
)
from prism_transformer.train.stopping import StopRequest
from tests.train.runs import assert_same_end, command, finish, run_command, start_command, tiny

# 150 steps in a few seconds.
LONG = (
    "train.tokens=76800",
    "train.micro_batch=16",
    "run.checkpoint_every=10",
    "run.val_every=40",
)


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was left alone, with a checkpoint of every step."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(folder, tiny(data, "run.checkpoint_every=1", "run.keep_checkpoints=100"))
    return folder


@pytest.fixture(scope="module")
def long_whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A longer one, also left alone."""
    folder = tmp_path_factory.mktemp("long") / "run"
    finish(folder, tiny(data, *LONG))
    return folder


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


def test_another_number_of_threads_is_said(tmp_path: Path, data: Path) -> None:
    finish(tmp_path / "run", tiny(data))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        notes = finish(tmp_path / "run", tiny(data), resume=True)
    finally:
        torch.set_num_threads(threads)
    assert notes[-1] == f"threads: {threads} before, {threads + 1} now"


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
    with pytest.raises(InputError, match="is not the shard the run began with"):
        finish(tmp_path / "run", recipe, resume=True)


def wait_for_step(run: Path, step: int) -> None:
    """Until a run has written that many lines of metrics."""
    for _ in range(600):
        file = run / METRICS_FILE
        if file.exists() and file.read_bytes().count(b"\n") > step:
            return
        time.sleep(0.05)
    raise AssertionError(f"{run} did not get to step {step}")


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


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_asked_to_stop_it_finishes_the_step_saves_and_says_how_to_go_on(
    tmp_path: Path, data: Path, long_whole: Path, number: signal.Signals
) -> None:
    recipe = tiny(data, *LONG)
    line = command("train", str(data / "tiny.toml"), *LONG, "--out", "run")
    process = start_command(line, tmp_path)
    wait_for_step(tmp_path / "run", 30)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "saved; go on with `prism resume run`" in output
    finish(tmp_path / "run", recipe, resume=True)
    assert_same_end(tmp_path / "run", long_whole)


def test_asked_twice_it_stops_at_once_even_within_one_call_of_torch() -> None:
    script = """
import time, torch
from prism_transformer.train.stopping import StopRequest
with StopRequest():
    print("ready", flush=True)
    torch.ones(8000, 8000) @ torch.ones(8000, 8000)  # seconds without a line of Python
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(2):
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 128 + signal.SIGTERM


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert stop.requested
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_stop_training(tmp_path: Path, data: Path) -> None:
    tiny(data)
    process = start_command(command("train", str(data / "tiny.toml"), "--out", "run"), tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=60)
    assert [folder.name for folder in checkpoints(tmp_path / "run")][-1] == "step-00000020"


@pytest.mark.slow
def test_two_processes_cannot_write_one_run(tmp_path: Path, data: Path, long_whole: Path) -> None:
    tiny(data)
    line = command("train", str(data / "tiny.toml"), *LONG, "--out", "run")
    process = start_command(line, tmp_path)
    wait_for_step(tmp_path / "run", 5)
    process.send_signal(signal.SIGSTOP)
    try:
        again = run_command(command("resume", "run"), tmp_path)
        assert again.returncode == 2
        assert "another process is writing there" in again.stderr
    finally:
        process.send_signal(signal.SIGCONT)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert_same_end(tmp_path / "run", long_whole)


# The weights of the tiny model are 0.2 MB, the optimizer's state twice that, metrics 40 kB: each
# limit stops another file.
@pytest.mark.parametrize(
    "limit",
    [3_000, 100_000, 300_000],
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
