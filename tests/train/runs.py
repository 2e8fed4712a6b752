"""What training tests share: a tiny recipe, its data, and the final state of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from prism_transformer.recipe import Recipe
from prism_transformer.recipe_file import load_recipe
from prism_transformer.train.checkpoint import OPTIMIZER_FILE
from prism_transformer.train.device import settle
from prism_transformer.train.distributed import join_world
from prism_transformer.train.job import new_job, resumed_job
from prism_transformer.train.loop import train
from prism_transformer.train.run import checkpoints, read_metrics
from prism_transformer.weights import WEIGHTS_FILE

# What a clock or a machine decides.
VARYING = {"seconds", "data_seconds", "tokens_per_second", "utilisation", "memory_bytes"}

TINY = """
base = "base/nano"
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


def tiny(data: Path, *overrides: str) -> Recipe:
    """A recipe of 20 steps that take milliseconds."""
    file = data / "tiny.toml"
    if not file.exists():
        file.write_text(TINY.format(folder=data), "utf-8")
    return load_recipe(file, overrides)


def finish(folder: Path, recipe: Recipe, *, resume: bool = False) -> list[str]:
    """Train to the end in this process; what a resumed run has to say."""
    settings = settle(recipe, "cpu")
    notes: list[str] = []
    with join_world(settings.device) as world:
        opened = (
            resumed_job(folder, recipe, settings, world, notes)
            if resume
            else new_job(folder, recipe, settings, world)
        )
        with opened as job:
            for _ in train(job):
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
    line: list[str], folder: Path, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    process = start_command(line, folder, before)
    output, errors = process.communicate(timeout=180)
    return subprocess.CompletedProcess(line, process.returncode, output, errors)
