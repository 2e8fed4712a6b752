"""Twenty real steps of a recipe on all devices: what a first hour on a GPU should begin with.

Through the command that trains, with every process, compiler and exchange of a real run; only the
tokens are drawn, so that no corpus is needed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from prism_transformer.bench.estimate import tokens_per_second
from prism_transformer.bench.workloads import train_command
from prism_transformer.core.progress import Note, Tell, silent
from prism_transformer.core.table import Column, Table
from prism_transformer.data.shards import ShardWriter, variant_for
from prism_transformer.models.cost import memory
from prism_transformer.recipe import Recipe
from prism_transformer.recipes.files import load_recipe
from prism_transformer.schedules.paper import SCALES, scales
from prism_transformer.training.device import find_device, logits_bytes
from prism_transformer.training.run import Row, read_metrics

STEPS = 20
SETTLED = 10  # steps that are not counted: they compile, connect and fill caches
MINUTES = 20  # in which a trial must be over
SHARE = 0.9  # of a GPU's memory that a model may need by our count
PAPER_RECIPES = tuple(f"{arm}-{scale}" for scale in SCALES for arm in ("baseline", "prism"))

COLUMNS = (
    Column("recipe", numeric=False),
    Column("tokens/s", places=0),
    Column("paper", places=0),
    Column("estimate", places=0),
    Column("utilisation", places=3),
    Column("GiB", places=1),
    Column("counted GiB", places=1),
    Column("note", numeric=False),
)


def trials(device: str = "auto", *, tell: Tell = silent) -> Table:
    """Twenty steps of every model of the paper that fits, beside the paper and our estimate.

    Without a GPU the nano recipe, since the others would take hours.
    """
    where = find_device(device)
    on_gpu = where.type == "cuda"
    n_devices = torch.cuda.device_count() if on_gpu else 1
    rows: list[Row] = []
    for name in PAPER_RECIPES if on_gpu else ("prism-micro",):
        tell(Note(f"{name}: {STEPS} steps on {n_devices} x {where.type}"))
        rows.append(trial(name, n_devices, where))
    note = "estimated for 8 x H100 and the paper's batch (docs/performance.md), not measured"
    return Table("trials", COLUMNS, tuple(rows), note=note)


def trial(name: str, n_devices: int, device: torch.device, overrides: Sequence[str] = ()) -> Row:
    """What twenty steps of one recipe showed, or why they were not taken."""
    recipe = load_recipe(name, overrides)
    row: Row = {column.key: None for column in COLUMNS}
    row |= {"recipe": name, **_expected(name, recipe), "note": ""}
    if recipe.accumulation(n_devices) is None:
        return row | {"note": f"its batch does not split over {n_devices} devices"}
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
        if _counted(recipe) > SHARE * there:
            return row | {"note": "does not fit: lower train.micro_batch"}
    with TemporaryDirectory() as folder:
        return row | _take_steps(Path(folder), name, recipe, n_devices, device.type, overrides)


def _expected(name: str, recipe: Recipe) -> Row:
    """What the paper printed and what we count, where there is something."""
    found: Row = {"counted GiB": _counted(recipe) / 2**30}
    scale = scales().get(name.rpartition("-")[2])
    if scale is not None:
        found |= {"paper": scale.tokens_per_second, "estimate": tokens_per_second(recipe)}
    return found


def _counted(recipe: Recipe) -> int:
    """Bytes of training on one GPU by our count, its logits included."""
    n_tokens = recipe.train.micro_batch * recipe.model.seq_len
    return memory(recipe).total + logits_bytes(n_tokens, recipe.model.vocab_rows)


def _take_steps(
    place: Path, name: str, recipe: Recipe, n: int, device: str, overrides: Sequence[str]
) -> Row:
    _draw_shards(place, recipe)
    changes = [*overrides, *_changes(place, recipe)]
    line = train_command(n, [name, *changes, "--device", device, "--out", "run"])
    try:
        done = subprocess.run(
            line, cwd=place, capture_output=True, text=True, timeout=60 * MINUTES, check=False
        )
    except subprocess.TimeoutExpired:
        return {"note": f"FAILED: not over after {MINUTES} minutes"}
    if done.returncode:  # the last thing that a process printed says why
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return {"note": f"FAILED: {last[0]}"}
    rows = [row for row in read_metrics(place / "run") if row["kind"] == "train"]
    return _found(rows[SETTLED:])


def _found(rows: list[Row]) -> Row:
    used = [row["utilisation"] for row in rows if row["utilisation"] is not None]
    return {
        "tokens/s": median(row["tokens_per_second"] for row in rows),
        "utilisation": median(used) if used else None,
        "GiB": max(row["memory_bytes"] for row in rows) / 2**30,
    }


def _changes(place: Path, recipe: Recipe) -> Iterator[str]:
    """Of the recipe only what a short run without a corpus needs."""
    yield f"train.tokens={STEPS * recipe.train.batch_tokens}"
    yield f"data.val_tokens={recipe.train.micro_batch * recipe.model.seq_len}"
    yield f"data.folder={place / 'data'}"
    # A corpus of that name is not prepared by itself, as the embedded one would be.
    yield "data.corpus=drawn"
    yield "run.val_every=1000000"
    yield "run.attention_every=1000000"


def _draw_shards(place: Path, recipe: Recipe) -> None:
    """Tokens at random, enough for a few steps; they come round again."""
    folder, config = place / "data", recipe.model
    folder.mkdir()
    draw = np.random.default_rng(0)
    window = config.seq_len
    for split, n in {"train": 64 * window, "val": recipe.train.micro_batch * window}.items():
        variant = variant_for(config.vocab_size)
        writer = ShardWriter(folder / f"{split}_000000.bin", variant)
        writer.append(draw.integers(config.vocab_size, size=n + 1, dtype=variant.dtype.type))
        writer.finish()
