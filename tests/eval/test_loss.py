"""The loss on text against training's own, transformers' own, and rescaled positions by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from torch import Tensor

from prism_transformer import PrismLM
from prism_transformer.errors import InputError
from prism_transformer.eval.loss import check_context, measure_loss, with_rope_scaling
from prism_transformer.eval.source import open_source
from prism_transformer.hf.convert import to_hf
from prism_transformer.train.run import read_metrics
from tests.conftest import small_config
from tests.hf.models import prism


def windows(n: int, length: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(300, (n, length + 1), generator=draw)


def test_a_runs_loss_is_the_one_that_training_reported(trained: Path) -> None:
    source = open_source(str(trained))
    assert isinstance(source.model, PrismLM)
    assert source.n_scored is not None
    found = measure_loss(to_hf(source.model), source.batches(source.n_scored, 7))
    reported = [row["loss"] for row in read_metrics(trained) if row["kind"] == "val"][-1]
    assert found.mean == pytest.approx(reported, abs=2e-6)
    assert found.n_tokens == 1600
    assert found.perplexity == pytest.approx(math.exp(reported), rel=1e-5)
    # A token is a byte, so the two differ by the unit alone.
    assert found.bits_per_byte(1600) == pytest.approx(reported / math.log(2), rel=1e-5)


def test_positions_and_errors_against_every_logit() -> None:
    model = prism(head_schedule="2x1 12x2")
    rows = windows(5, 40)
    found = measure_loss(model, [rows[:3], rows[3:]])
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits
    losses = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
    losses = losses.view(5, 40).double()
    assert found.by_position == pytest.approx(losses.mean(0).numpy(), rel=1e-5)
    assert found.error == pytest.approx(losses.mean(1).std().item() / 5**0.5, rel=1e-4)
    parts = found.doubling()
    assert [part["positions"] for part in parts] == [
        "1", "2", "3-4", "5-8", "9-16", "17-32", "33-40"
    ]  # fmt: skip
    assert parts[-1]["loss"] == pytest.approx(losses[:, 32:].mean().item(), rel=1e-5)


def test_any_causal_lm_has_the_loss_that_transformers_gives() -> None:
    torch.manual_seed(0)
    model: Any = tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    ).eval()
    rows = windows(3, 31)
    with torch.no_grad():
        theirs = model(rows, labels=rows).loss.item()
    assert measure_loss(model, [rows]).mean == pytest.approx(theirs, rel=1e-5)


def test_linear_scaling_halves_the_positions() -> None:
    native = PrismLM(small_config("2x2 12x3")).eval()
    with torch.no_grad():
        for weight in native.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    model = to_hf(native)
    scaled = with_rope_scaling(model, "linear:2")
    assert scaled.config.max_position_embeddings == 128
    tokens = windows(1, 99)
    with torch.no_grad():
        expected = native(tokens, positions=torch.arange(100) / 2)
        torch.testing.assert_close(scaled(tokens).logits, expected, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(model(tokens).logits, expected, atol=1e-2)
    assert model.config.max_position_embeddings == 64  # the model that was given is as it was


def test_beyond_the_context_only_if_that_is_asked_for() -> None:
    model = to_hf(PrismLM(small_config()))
    check_context(model, 64, extrapolate=False)
    check_context(model, 65, extrapolate=True)
    with pytest.raises(InputError, match="--length 65: this model's context is 64; to go beyond"):
        check_context(model, 65, extrapolate=False)
    gpt2 = tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=30, n_embd=8, n_layer=1, n_head=1, n_positions=32)
    )
    with pytest.raises(InputError, match="has 32 learned positions, no more"):
        check_context(gpt2, 33, extrapolate=True)
    with pytest.raises(InputError, match="has no rotary positions to scale"):
        with_rope_scaling(gpt2, "linear:2")


@pytest.mark.parametrize("scaling", ["linear", "linear:x", "linear:0.5", "cubic:2", "linear:nan"])
def test_scalings_that_mean_nothing(scaling: str) -> None:
    with pytest.raises(InputError, match="write one of linear, dynamic, yarn and a factor"):
        with_rope_scaling(to_hf(PrismLM(small_config())), scaling)


def test_no_text_no_loss() -> None:
    with pytest.raises(InputError, match="no sequence was measured"):
        measure_loss(prism(head_schedule="12x2"), [])
