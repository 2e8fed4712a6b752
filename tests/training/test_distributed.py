"""Several processes train as one does, and a lost one ends the job."""

from __future__ import annotations

import os
import re
import signal
import socket
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from prism_transformer.core.errors import RunError
from prism_transformer.training import distributed
from prism_transformer.training.checkpoint import read_state
from prism_transformer.training.distributed import Share, World, all_alive, join_world
from prism_transformer.training.run import checkpoints, read_environment, read_metrics
from tests.training.runs import (
    PATIENCE,
    assert_same_end,
    command,
    final_state,
    finish,
    run_command,
    start_command,
    tiny,
    torchrun,
    wait_for_step,
)

DOUBLE = "train.precision=fp64"


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(run) if "loss" in row]


def launch(folder: Path, data: Path, *arguments: str, n: int = 2) -> None:
    line = torchrun("train", str(data / "tiny.toml"), *arguments, n=n)
    done = run_command(line, folder, seconds=900)  # where both compile
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("pieces", [1, 2, 7, 16])
def test_shares_are_every_piece_once(size: int, pieces: int) -> None:
    shares = [Share(World(rank, size, torch.device("cpu"), None), pieces) for rank in range(size)]
    working = [list(share.pieces) for share in shares[:pieces]]
    assert sorted(piece for each in working for piece in each) == list(range(pieces))
    assert max(map(len, working)) - min(map(len, working)) <= 1
    # Whoever has none does the first one, for its shape, and adds nothing.
    assert [list(share.pieces) for share in shares[pieces:]] == [[0]] * max(0, size - pieces)


def test_no_work_is_nobody_s_share() -> None:
    assert list(Share(World(1, 2, torch.device("cpu"), None), 0).pieces) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fully_shard"])
@pytest.mark.parametrize("tied", ["true", "false"], ids=["tied", "untied"])
def test_two_processes_see_the_same_data_and_get_the_same_loss(
    tmp_path: Path, data: Path, way: str, tied: str
) -> None:
    model = (DOUBLE, f"model.tied_embeddings={tied}")
    finish(tmp_path / "one", tiny(data, *model))
    overrides = (*model, f"train.distribution={way}")
    launch(tmp_path, data, *overrides, "--out", "two")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-9)
    (one, _), (two, _) = final_state(tmp_path / "one"), final_state(tmp_path / "two")
    assert one.keys() == two.keys()
    for name, weight in one.items():
        assert weight.shape == two[name].shape
        assert (weight - two[name]).abs().max() < 1e-9, name
    assert (
        read_environment(tmp_path / "one")["hashes"] == read_environment(tmp_path / "two")["hashes"]
    )


@pytest.mark.slow
def test_two_processes_begin_from_weights_and_train_for_longer(
    tmp_path: Path, data: Path, trained: Path
) -> None:
    sharded = (DOUBLE, "train.distribution=fully_shard", "optim.lr_schedule=constant")
    line = ("--from", str(trained), "--out")
    whole = command("train", str(data / "tiny.toml"), *sharded, *line, "one")
    assert run_command(whole, tmp_path).returncode == 0
    launch(tmp_path, data, *sharded, "train.tokens=5120", *line, "two")
    done = run_command(torchrun("resume", "two", "train.tokens=10240"), tmp_path)
    assert done.returncode == 0, done.stderr
    one, two = (
        {
            row["step"]: row["loss"]
            for row in read_metrics(tmp_path / name)
            if row["kind"] == "train"
        }
        for name in ("one", "two")
    )
    assert two == pytest.approx(one, abs=1e-9)
    assert len(two) == 20


def stopped_at(line: list[str], folder: Path, step: int) -> None:
    """Run a command until a step is done, then ask it to stop."""
    process = start_command(line, folder)
    wait_for_step(folder / "run", step, process)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE)
    assert "saved; go on with" in output, errors


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes_and_another_distribution(
    tmp_path: Path, data: Path
) -> None:
    long = (DOUBLE, "train.tokens=102400", "train.distribution=fully_shard")
    finish(tmp_path / "one", tiny(data, *long))
    stopped_at(torchrun("train", str(data / "tiny.toml"), *long, "--out", "run"), tmp_path, 40)
    stopped_at(command("resume", "run"), tmp_path, 90)
    done = run_command(torchrun("resume", "run", n=4), tmp_path)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "one"), abs=1e-9)
    sessions = read_environment(tmp_path / "run")["sessions"]
    assert [session["processes"] for session in sessions] == [2, 1, 4]


@pytest.mark.slow
def test_in_float32_only_rounding_differs(tmp_path: Path, data: Path) -> None:
    finish(tmp_path / "one", tiny(data))
    launch(tmp_path, data, "--out", "two")
    drift = [
        abs(a - b) for a, b in zip(losses(tmp_path / "one"), losses(tmp_path / "two"), strict=True)
    ]
    assert drift[1] < 1e-5  # the first step; row 0 validates the start
    print(f"float32, two processes against one: {max(drift):.1e} nats at most over 20 steps")
    assert max(drift) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fully_shard"])
def test_a_killed_worker_ends_the_job_and_the_next_one_goes_on_exactly(
    tmp_path: Path, data: Path, way: str
) -> None:
    long = ("train.tokens=153600", f"train.distribution={way}")
    launch(tmp_path, data, *long, "--out", "whole")
    line = torchrun("train", str(data / "tiny.toml"), *long, "--out", "run")
    process = start_command(line, tmp_path)
    wait_for_step(tmp_path / "run", 30, process)
    os.kill(_worker(process.pid, rank=1), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)  # sooner than a step may take
    assert process.returncode != 0
    assert re.search(r"another process of this job is gone .*resume run", errors), errors[-2000:]
    done = run_command(torchrun("resume", "run"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_end(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_processes_of_a_killed_launcher_save_and_leave(tmp_path: Path, data: Path) -> None:
    long = ("train.tokens=153600", "run.checkpoint_every=300")
    launch(tmp_path, data, *long, "--out", "whole")
    line = torchrun("train", str(data / "tiny.toml"), *long, "--out", "run")
    process = start_command(line, tmp_path)
    wait_for_step(tmp_path / "run", 30, process)
    process.kill()
    process.communicate(timeout=PATIENCE)  # until nobody holds its pipes any more: they are gone
    (saved,) = checkpoints(tmp_path / "run")
    assert read_state(saved).step < 300
    done = run_command(torchrun("resume", "run"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_end(tmp_path / "run", tmp_path / "whole")


def test_nobody_waits_long_for_a_launcher_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
        launched = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
                    "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
                    "TORCHELASTIC_RESTART_COUNT": "0"}  # fmt: skip
        for name, value in launched.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(distributed, "STEP_TIMEOUT", timedelta(seconds=1))
        monkeypatch.setattr(distributed, "end_with_parent", lambda _number: None)  # not pytest
        gone = pytest.raises(RunError, match=r"another process of this job is gone .*; again")
        with gone, all_alive("again"), join_world(torch.device("cpu")):
            pass


def _worker(launcher: int, rank: int) -> int:
    """The process of a rank among a launcher's children."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"PPid:\t{launcher}\n" in status and b"RANK=%d" % rank in environment:
            return int(folder.name)
    raise AssertionError(f"no rank {rank}")


@pytest.mark.slow
def test_two_nodes_meet(tmp_path: Path, data: Path) -> None:
    finish(tmp_path / "one", tiny(data, DOUBLE))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    meeting = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
    line = torchrun("train", str(data / "tiny.toml"), DOUBLE, "--out", "two", n=1, options=meeting)
    nodes = [start_command(line, tmp_path) for _ in range(2)]
    for node in nodes:
        _, errors = node.communicate(timeout=PATIENCE)
        assert node.returncode == 0, errors
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "within"),
    [
        (("train.distribution=ddp", "train.compile=on"), 1e-3),
        (("train.distribution=fully_shard", "train.precision=bf16"), 2e-2),
        (("train.distribution=hybrid_shard", "train.precision=bf16", "train.compile=on"), 2e-2),
    ],
    ids=["ddp compiled", "fully_shard mixed", "hybrid mixed compiled"],
)
def test_as_a_gpu_would_train_but_on_two_cpus(
    tmp_path: Path, data: Path, how: tuple[str, ...], within: float
) -> None:
    finish(tmp_path / "one", tiny(data))
    launch(tmp_path, data, *how, "--out", "two")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=within)
