"""Weights of heads against transformers' own eager attention, and sums against loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from prism_transformer.analysis.profile import attention_profile
from prism_transformer.analysis.weights import (
    BLOCKS,
    LARGEST,
    WHOLE,
    TextWeights,
    block_of,
    kept,
    text_weights,
)
from prism_transformer.core.errors import InputError
from prism_transformer.hf.export import to_hf
from tests.analysis.models import model_of, some_tokens

UNIT = 0.5 / WHOLE + 1e-6  # what rounding may change, and float32


def grouped() -> Any:
    """Two key heads for four of queries, and a window of 16 in every layer."""
    torch.manual_seed(0)
    return tf.MistralForCausalLM(
        tf.MistralConfig(
            vocab_size=300, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, sliding_window=16,
            max_position_embeddings=128,
        )
    ).eval()  # fmt: skip


def eager(model: Any, tokens: torch.Tensor) -> list[np.ndarray]:
    """(H, T, T) of each layer, as transformers computes them."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(tokens[None], output_attentions=True).attentions
    model.set_attn_implementation(before)
    return [layer[0].double().numpy() for layer in found]


def check(found: TextWeights, expected: list[np.ndarray]) -> None:
    assert [len(layer) for layer in found.heads] == [len(layer) for layer in expected]
    for layer, weights in zip(found.heads, expected, strict=True):
        for head, own in zip(layer, weights, strict=True):
            for t, row in enumerate(own):
                best = np.sort(row)[::-1][:LARGEST]
                assert head.weights[t] / WHOLE == pytest.approx(best, abs=UNIT)
                seen = head.weights[t] > 0
                at = head.keys[t].astype(int)[seen]
                assert row[at] == pytest.approx(head.weights[t][seen] / WHOLE, abs=UNIT)


def test_largest_weights_are_those_of_transformers() -> None:
    tokens, model = some_tokens(1)[0], model_of()
    check(text_weights(model, tokens), eager(to_hf(model), tokens))


def test_an_encoder_looks_both_ways() -> None:
    tokens, model = some_tokens(1)[0], model_of(attention="bidirectional")
    found = text_weights(model, tokens)
    check(found, eager(to_hf(model), tokens))
    later = [head.keys[0][head.weights[0] > 0] for layer in found.heads for head in layer]
    assert all(keys.max() > 0 for keys in later)


def test_grouped_keys_and_windows_of_another_model() -> None:
    tokens, model = some_tokens(1)[0], grouped()
    check(text_weights(model, tokens), eager(model, tokens))


@pytest.mark.parametrize("length", [20, 128])
def test_blocks_are_means_over_queries_of_sums_over_keys(length: int) -> None:
    tokens, model = some_tokens(1, length)[0], grouped()
    found, (first, *_) = text_weights(model, tokens), eager(model, tokens)
    block = block_of(length)
    n = block[-1] + 1
    assert n <= BLOCKS
    expected = np.zeros((n, n))
    for t, q in enumerate(block):
        for s, k in enumerate(block):
            expected[q, k] += first[1, t, s] / block.count(q)
    assert found.heads[0][1].blocks / WHOLE == pytest.approx(expected, abs=UNIT)


def test_statistics_are_those_of_a_profile() -> None:
    tokens = some_tokens(1)
    one, other = (
        text_weights(model_of(), tokens[0]).profile,
        attention_profile(model_of(), [tokens]),
    )
    assert one.schedule == other.schedule
    for statistic in ("distance", "entropy", "sink"):
        assert one.means(statistic) == pytest.approx(other.means(statistic))


def test_what_is_kept_fits() -> None:
    found = text_weights(model_of(), some_tokens(1)[0])
    entries = 4 * found.n_heads * 48
    assert kept([found], 10**9) == LARGEST
    assert kept([found], 5 * entries) == 5
    assert kept([found, found], 5 * entries) == 2
    assert kept([found], 1) == 1


def test_one_token_is_refused() -> None:
    with pytest.raises(InputError, match="two at least"):
        text_weights(model_of(), some_tokens(1)[0][:1])
