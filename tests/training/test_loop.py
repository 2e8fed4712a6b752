"""The loop against a plain one, its stops, what it writes, and validation by brute force."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from prism_transformer.core.errors import RunError
from prism_transformer.data.loader import open_windows
from prism_transformer.data.shards import open_shard
from prism_transformer.model import Layer, PrismLM, causal_attention
from prism_transformer.models.weights import load_model
from prism_transformer.recipe import Recipe
from prism_transformer.recipes.files import load_recipe
from prism_transformer.training.device import Settings
from prism_transformer.training.distributed import World
from prism_transformer.training.job import Job
from prism_transformer.training.loop import (
    BATCH_FILE,
    backward,
    largest_attention_logits,
    shares,
    validation_loss,
)
from prism_transformer.training.objective import Question
from prism_transformer.training.run import read_metrics
from tests.conftest import small_config
from tests.training.runs import finish, tiny

CPU = torch.device("cpu")
SETTINGS = Settings(CPU, "fp32", False, "")


def plain_losses(recipe: Recipe, data: Path) -> list[float]:
    """The same training, written out: logits in full, torch's AdamW, windows by brute force."""
    from prism_transformer.data.loader import permuted

    stream = np.asarray(open_shard(data / "train_000000.bin")).astype(np.int64)
    seq_len, size = recipe.model.seq_len, (len(stream) - 1) // recipe.model.seq_len
    model = PrismLM(recipe.model, recipe.train.seed)
    model.to(torch.float64 if recipe.train.precision == "fp64" else torch.float32)
    decayed = [w for name, w in model.named_parameters() if "norm" not in name]
    rest = [w for name, w in model.named_parameters() if "norm" in name]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        betas=(0.9, 0.95), eps=1e-8, fused=False, foreach=False,
    )  # fmt: skip
    n_steps, warmup = recipe.n_steps, round(0.025 * recipe.n_steps)
    batch, losses = recipe.train.batch_tokens // seq_len, []
    for step in range(n_steps):
        places = [permuted(step * batch + i, size, recipe.train.seed, 0) for i in range(batch)]
        rows = torch.from_numpy(np.stack([stream[p * seq_len :][: seq_len + 1] for p in places]))
        logits = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        share = (step - warmup) / (n_steps - warmup)
        cosine = recipe.optim.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * share)))
        rate = recipe.optim.lr * (step + 1) / (warmup + 1) if step < warmup else cosine
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(run) if row["kind"] == "train"]


def test_the_loss_curve_is_that_of_a_plain_loop(tmp_path: Path, data: Path) -> None:
    recipe = tiny(data, "train.tokens=40960")
    finish(tmp_path / "run", recipe)
    losses = train_losses(tmp_path / "run")
    assert len(losses) == 80
    assert losses == pytest.approx(plain_losses(recipe, data), abs=1e-5)
    assert losses[-1] < losses[0] - 1.5


@pytest.mark.slow
def test_the_nano_recipe_is_that_of_a_plain_loop(tmp_path: Path) -> None:
    from prism_transformer.cli.prepare import prepare

    folder = tmp_path / "data"
    prepare(recipe="prism-micro", out=folder)
    # In float32 rounding alone grows to 1e-5 within some twenty steps at this learning rate.
    overrides = (f"data.folder={folder}", "train.tokens=81920", "train.precision=fp64")
    recipe = load_recipe("prism-micro", overrides)
    finish(tmp_path / "run", recipe)
    assert train_losses(tmp_path / "run") == pytest.approx(plain_losses(recipe, folder), abs=1e-5)


def test_micro_batches_and_checkpointing_change_nothing_but_rounding(
    tmp_path: Path, data: Path
) -> None:
    finish(tmp_path / "one", tiny(data, "train.micro_batch=16"))
    for name, override in {
        "many": "train.micro_batch=2",
        "frugal": "train.activation_checkpointing=true",
    }.items():
        finish(tmp_path / name, tiny(data, override))
        assert train_losses(tmp_path / name) == pytest.approx(
            train_losses(tmp_path / "one"), abs=1e-5
        )


def test_training_does_not_hear_validation_or_any_random_number(tmp_path: Path, data: Path) -> None:
    finish(tmp_path / "often", tiny(data, "run.val_every=1", "run.attention_every=1"))
    random.seed(1)
    torch.manual_seed(1)
    finish(tmp_path / "seldom", tiny(data, "run.val_every=100"))
    assert train_losses(tmp_path / "often") == train_losses(tmp_path / "seldom")


def test_rows_of_a_run(tmp_path: Path, data: Path) -> None:
    recipe = tiny(data)
    finish(tmp_path / "run", recipe)
    rows = read_metrics(tmp_path / "run")
    kinds = [(row["step"], row["kind"]) for row in rows if row["kind"] != "train"]
    assert kinds == [
        (0, "val"), (5, "val"), (10, "val"), (10, "attention"),
        (15, "val"), (20, "val"), (20, "attention"),
    ]  # fmt: skip
    last = [row for row in rows if row["kind"] == "train"][-1]
    assert last["tokens"] == 10240
    assert last["tokens_per_second"] == pytest.approx(512 / last["seconds"])
    assert last["memory_bytes"] > 1e6
    assert last["utilisation"] is None  # nobody knows the peak of this processor
    assert len(rows[-1]["largest_logit"]) == 3


def test_a_loss_that_is_not_finite_stops_before_the_update_and_can_be_looked_into(
    tmp_path: Path, data: Path
) -> None:
    recipe = tiny(data, "optim.lr=1e30", "run.checkpoint_every=1", "optim.warmup_fraction=0.0")
    with pytest.raises(RunError, match="stopped before the update") as stop:
        finish(tmp_path / "run", recipe)
    (dump,) = (tmp_path / "run").glob("dump-step-*")
    assert str(dump) in str(stop.value)
    step = int(dump.name.rpartition("-")[2])
    assert [row["step"] for row in read_metrics(tmp_path / "run")][-1] == step - 1
    model = load_model(dump)
    rows = load_file(dump / BATCH_FILE)["tokens"]
    assert rows.shape == (16, 33)
    loss = model(rows[:, :-1], rows[:, 1:])
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert not (loss.isfinite() and norm.isfinite())
    with pytest.raises(RunError, match="stopped before the update"):  # and again, exactly
        finish(tmp_path / "run", recipe, resume=True)


def test_the_gradient_that_is_not_finite_is_named(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prism_transformer.training import loop

    def poisoned(job: Job, passes: list[Question]) -> torch.Tensor:
        loss = backward(job, passes)
        broken = job.model.get_parameter("layers.1.mlp.down.weight").grad
        assert broken is not None
        broken[3, 5] = torch.nan
        return loss

    monkeypatch.setattr(loop, "backward", poisoned)
    with pytest.raises(RunError, match=r"not finite: layers\.1\.mlp\.down\.weight;"):
        finish(tmp_path / "run", tiny(data))


def test_every_token_counts_once_whatever_the_batches(data: Path) -> None:
    model = PrismLM(small_config(seq_len=32, vocab_size=257))
    windows = open_windows(data, "val", 32, 257)
    rows = torch.from_numpy(windows.read(range(23)))
    each = torch.nn.functional.cross_entropy(
        model(rows[:, :-1]).flatten(0, 1).double(), rows[:, 1:].flatten(), reduction="sum"
    )
    for micro_batch in (1, 4, 23, 64):
        alone = World(0, 1, CPU, None)
        loss = validation_loss(model, windows, 23, micro_batch, alone, SETTINGS)
        assert loss == pytest.approx(each.item() / (23 * 32), abs=1e-6)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_processes_share_the_windows_out(data: Path, size: int) -> None:
    windows = open_windows(data, "val", 32, 257)
    seen = []
    for rank in range(size):
        parts = list(shares(windows, 23, 2, World(rank, size, CPU, None)))
        assert all(share.shape == (2, 33) for _, share in parts)
        assert len(parts) == -(-23 // (2 * size))
        seen += [tuple(row) for _, share in parts for row in share if row[0] >= 0]
        for first, share in parts:  # which is what masks are drawn by
            there = share[share[:, 0] >= 0]
            assert (there == windows.read(range(first, first + len(there)))).all()
    assert sorted(seen) == sorted(tuple(row) for row in windows.read(range(23)))


@pytest.mark.parametrize("queries_per_kv", [1, 2])
def test_largest_logits_are_those_of_written_out_scores(queries_per_kv: int) -> None:
    config = small_config("2x1 4x1 12x1", queries_per_kv=queries_per_kv, init_std=0.3)
    model = PrismLM(config)
    tokens = torch.randint(300, (1, 20), generator=torch.Generator().manual_seed(0))
    expected, x = [], model.embedding(tokens)
    tables = model.rotary_tables(torch.arange(20))
    for layer, width in zip(model.layers, config.head_dims, strict=True):
        assert isinstance(layer, Layer)
        q, k, _ = layer.attention.project(layer.attention_norm(x), tables[width])
        scores = [
            (q[0, head, t] @ k[0, head // queries_per_kv, s]).item() / width**0.5
            for head in range(q.shape[1])
            for t in range(20)
            for s in range(t + 1)
        ]
        expected.append(max(scores))
        x = layer(x, tables[width], causal_attention)
    found = largest_attention_logits(model, tokens, SETTINGS)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_largest_logits_of_isolated_documents_are_those_of_each_alone(attention: str) -> None:
    model = PrismLM(small_config("2x1 4x1 12x1", attention=attention, init_std=0.3))
    tokens = torch.randint(300, (1, 20), generator=torch.Generator().manual_seed(0))
    parts = tokens.split([7, 1, 12], dim=1)
    positions = torch.cat([torch.arange(part.shape[1]) for part in parts])[None]
    each = [largest_attention_logits(model, part, SETTINGS) for part in parts]
    found = largest_attention_logits(model, tokens, SETTINGS, positions)
    assert found == pytest.approx([max(layer) for layer in zip(*each, strict=True)], rel=1e-5)
    assert found != pytest.approx(largest_attention_logits(model, tokens, SETTINGS), rel=1e-3)


def test_the_papers_slice_is_whole_windows() -> None:
    for scale in ("small", "medium", "large"):
        recipe = load_recipe(f"prism-{scale}")
        assert recipe.data.val_tokens == 10_240 * recipe.model.seq_len
