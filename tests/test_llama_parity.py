"""The model against transformers' Llama, another implementation of the same mathematics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from prism_transformer.model import Layer, PrismLM
from prism_transformer.recipe import ModelConfig
from tests.conftest import small_config

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
WEIGHTS = pytest.mark.parametrize("trained_like", [False, True], ids=["random", "trained-like"])


def llama_config(config: ModelConfig, n_heads: int) -> LlamaConfig:
    llama = LlamaConfig(
        vocab_size=config.vocab_rows,
        hidden_size=config.d_model,
        intermediate_size=config.d_ff,
        num_hidden_layers=config.n_layers,
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads // config.queries_per_kv,
        max_position_embeddings=config.seq_len,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
    )
    llama._attn_implementation = "sdpa"
    return llama


def build(config: ModelConfig, dtype: torch.dtype, trained_like: bool) -> PrismLM:
    """Trained-like: matrices of many times their initial size and norms far from one."""
    model = PrismLM(config, seed=1).to(dtype).eval()
    if trained_like:
        draw = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() == 1:
                    weight.copy_(0.3 + 2 * torch.rand(weight.shape, generator=draw))
                else:
                    weight.mul_(8.0)
    return model


def copy_layer(ours: Layer, theirs: Any, config: ModelConfig) -> None:
    d, kv = config.d_model, config.d_kv
    q, k, v = ours.attention.qkv.weight.split((d, kv, kv))
    gate, up = ours.mlp.gate_up.weight.chunk(2)
    pairs = [
        (theirs.self_attn.q_proj, q),
        (theirs.self_attn.k_proj, k),
        (theirs.self_attn.v_proj, v),
        (theirs.self_attn.o_proj, ours.attention.out.weight),
        (theirs.mlp.gate_proj, gate),
        (theirs.mlp.up_proj, up),
        (theirs.mlp.down_proj, ours.mlp.down.weight),
        (theirs.input_layernorm, ours.attention_norm.weight),
        (theirs.post_attention_layernorm, ours.mlp_norm.weight),
    ]
    with torch.no_grad():
        for module, weight in pairs:
            module.weight.data.copy_(weight)


def in_full_precision(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Llama's norm always computes in float32; torch's own takes its place for float64."""
    module = module.to(dtype)
    for name, norm in list(module.named_modules()):
        if isinstance(norm, LlamaRMSNorm) and dtype == torch.float64:
            parent, _, leaf = name.rpartition(".")
            plain = nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon, dtype=dtype)
            plain.weight.data.copy_(norm.weight)
            setattr(module.get_submodule(parent), leaf, plain)
    return module.eval()


def tokens_for(config: ModelConfig) -> Tensor:
    return torch.randint(config.vocab_size, (3, 40), generator=torch.Generator().manual_seed(3))


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    relative = (ours - theirs).abs().max() / theirs.abs().max()
    assert relative <= TOLERANCE[ours.dtype], f"off by {relative:.2g}"
    assert theirs.abs().max() > 0.1


@DTYPES
@WEIGHTS
@pytest.mark.parametrize("queries_per_kv", [1, 3, 12])
@torch.no_grad()
def test_uniform_model_is_llama(
    dtype: torch.dtype, trained_like: bool, queries_per_kv: int
) -> None:
    config = small_config("12x4", queries_per_kv=queries_per_kv)
    ours = build(config, dtype, trained_like)
    llama: Any = LlamaForCausalLM(llama_config(config, n_heads=12))
    llama.to(dtype)
    for layer, other in zip(ours.layers, llama.model.layers, strict=True):
        assert isinstance(layer, Layer)
        copy_layer(layer, other, config)
    llama.model.embed_tokens.weight.copy_(ours.embedding.weight)
    llama.model.norm.weight.copy_(ours.norm.weight)
    tokens = tokens_for(config)
    theirs = in_full_precision(llama, dtype)(tokens).logits
    assert_equal(ours(tokens), theirs)


@DTYPES
@WEIGHTS
@pytest.mark.parametrize(
    ("schedule", "queries_per_kv"),
    [("2x1 3x1 6x1 12x2", 1), ("12x2 3x2 1x1", 1), ("2x2 4x1 8x1 12x1", 2)],
)
@torch.no_grad()
def test_prism_model_is_a_stack_of_llama_layers_each_with_its_own_heads(
    dtype: torch.dtype, trained_like: bool, schedule: str, queries_per_kv: int
) -> None:
    config = small_config(schedule, queries_per_kv=queries_per_kv)
    ours = build(config, dtype, trained_like)
    tokens = tokens_for(config)
    positions = torch.arange(tokens.shape[1])[None]
    x = ours.embedding(tokens)
    for index, n_heads in enumerate(config.schedule.heads):
        alone = llama_config(config, n_heads)
        theirs = LlamaDecoderLayer(alone, layer_idx=0).to(dtype)
        layer = ours.layers[index]
        assert isinstance(layer, Layer)
        copy_layer(layer, theirs, config)
        angles = LlamaRotaryEmbedding(alone)(x, positions)
        x = in_full_precision(theirs, dtype)(x, position_embeddings=angles)
    logits = nn.functional.linear(ours.norm(x), ours.embedding.weight)
    assert_equal(ours(tokens), logits)


@torch.no_grad()
def test_a_wrong_head_count_in_one_layer_would_be_seen() -> None:
    config = small_config("2x1 3x1 6x1 12x2")
    wrong = small_config("2x1 3x1 4x1 12x2")
    tokens = tokens_for(config)
    ours, other = build(config, torch.float32, True), build(wrong, torch.float32, True)
    difference = (ours(tokens) - other(tokens)).abs().max() / ours(tokens).abs().max()
    assert difference > 100 * TOLERANCE[torch.float32]
