"""What training tests share: a tiny recipe, its data, and the final state of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from prism_transformer.models.weights import WEIGHTS_FILE
from prism_transformer.recipe import Recipe
from prism_transformer.recipes.files import load_recipe
from prism_transformer.training.checkpoint import OPTIMIZER_FILE
from prism_transformer.training.device import begin, settle
from prism_transformer.training.distributed import join_world
from prism_transformer.training.job import new_job, resumed_job
from prism_transformer.training.loop import steps
from prism_transformer.training.run import METRICS_FILE, checkpoints, read_metrics

Counters = Mapping[str, Mapping[str, int]]  # what the compiler counts, by topic

PATIENCE = 300.0  # seconds that nothing in a test takes, however busy the machine is

# What a clock or a machine decides.
VARYING = {"seconds", "data_seconds", "tokens_per_second", "utilisation", "memory_bytes"}

TINY = """
base = "base/micro"
[model]
schedule = "2x1 4x1 8x1"
d_model = 32
d_ff = 96
vocab_size = 257
seq_len = 32
[data]
tokenizer = "bytes"
folder = "{folder}"
val_tokens = 1600
[train]
tokens = 10240
batch_tokens = 512
micro_batch = 4
[run]
val_every = 5
checkpoint_every = 4
attention_every = 10
"""


# 150 steps in a few seconds.
LONG = (
    "train.tokens=76800",
    "train.micro_batch=16",
    "run.checkpoint_every=10",
    "run.val_every=40",
)


def tiny(data: Path, *overrides: str) -> Recipe:
    """A recipe of 20 steps that take milliseconds."""
    file = data / "tiny.toml"
    if not file.exists():
        file.write_text(TINY.format(folder=data), "utf-8")
    return load_recipe(file, overrides)


def finish(folder: Path, recipe: Recipe, *, resume: bool = False) -> list[str]:
    """Train to the end in this process; what a resumed run has to say."""
    settings = begin(settle(recipe, "cpu"))
    notes: list[str] = []
    with join_world(settings.device) as world:
        opened = (
            resumed_job(folder, recipe, settings, world, notes)
            if resume
            else new_job(folder, recipe, settings, world)
        )
        with opened as job:
            for _ in steps(job):
                pass
    return notes


def final_state(folder: Path) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Weights and optimizer at the end, and metrics without what the clock decides."""
    last = checkpoints(folder)[-1]
    tensors = {**load_file(last / WEIGHTS_FILE), **load_file(last / OPTIMIZER_FILE)}
    rows = [{k: v for k, v in row.items() if k not in VARYING} for row in read_metrics(folder)]
    return tensors, rows


def assert_same_end(one: Path, other: Path) -> None:
    """Two runs ended in the same bits."""
    (weights, rows), (other_weights, other_rows) = final_state(one), final_state(other)
    assert rows == other_rows
    assert weights.keys() == other_weights.keys()
    for name, weight in weights.items():
        assert weight.equal(other_weights[name]), name


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "prism_transformer", *arguments]


def torchrun(*arguments: str, n: int = 2, options: tuple[str, ...] = ()) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n)]
    where = options or ("--standalone",)
    return [*launcher, *where, "-m", "prism_transformer", *arguments]


def start_command(
    line: list[str], folder: Path, before: Callable[[], None] | None = None
) -> subprocess.Popen[str]:
    """Begin a command, on one thread like the tests themselves."""
    return subprocess.Popen(
        line,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=before,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_command(
    line: list[str],
    folder: Path,
    before: Callable[[], None] | None = None,
    seconds: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    process = start_command(line, folder, before)
    output, errors = process.communicate(timeout=seconds)
    return subprocess.CompletedProcess(line, process.returncode, output, errors)


def wait_until(happened: Callable[[], bool], what: str) -> None:
    """Look again and again, but not for ever."""
    until = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > until:
            raise AssertionError(f"not within {PATIENCE:.0f} s: {what}")
        time.sleep(0.02)


def steps_of(run: Path) -> int:
    """Steps that a run has told of so far."""
    file = run / METRICS_FILE
    return file.read_bytes().count(b'"train"') if file.exists() else 0


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Until a run has told of that many steps; whoever trains it must not end before."""

    def there() -> bool:
        assert process.poll() is None or steps_of(run) >= step, process.communicate()[1]
        return steps_of(run) >= step

    wait_until(there, f"step {step} of {run}")


def kill_all(process: subprocess.Popen[str]) -> None:
    """Kill a command and the processes it has begun, at once; one that has ended stays ended."""
    with suppress(OSError):
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        for number in [process.pid, *map(int, listed.split())]:
            os.kill(number, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
