"""The validation loss and the largest attention logits, against brute force."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prism_transformer.data.loader import open_windows
from prism_transformer.model import Layer, PrismLM, causal_attention
from prism_transformer.recipe_file import load_recipe
from prism_transformer.train.device import Settings
from prism_transformer.train.distributed import World
from prism_transformer.train.validation import largest_attention_logits, validation_loss
from tests.conftest import small_config

CPU = torch.device("cpu")
SETTINGS = Settings(CPU, "fp32", False, "")


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
    from prism_transformer.train.validation import _shares

    windows = open_windows(data, "val", 32, 257)
    seen = []
    for rank in range(size):
        shares = list(_shares(windows, 23, 2, World(rank, size, CPU, None)))
        assert all(share.shape == (2, 33) for share in shares)
        assert len(shares) == -(-23 // (2 * size))
        seen += [tuple(row) for share in shares for row in share if row[0] >= 0]
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


def test_the_papers_slice_is_whole_windows() -> None:
    for scale in ("small", "medium", "large"):
        recipe = load_recipe(f"prism-{scale}")
        assert recipe.data.val_tokens == 10_240 * recipe.model.seq_len
