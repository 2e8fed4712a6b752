"""Weights by Llama's names, as Hugging Face folders have them, and by the native model's.

Tools look for ``q_proj`` and its like, one matrix each; the native model keeps query, key and value
in one matrix, and gate and up in another. Both hold the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SCHEDULE = "model.head_schedule.heads"

# Of one layer: the native name, and Llama's for the parts of it, top to bottom.
LAYER_NAMES = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
    "attention_norm": ("input_layernorm",),
    "mlp_norm": ("post_attention_layernorm",),
}
TOP_NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
    "head_schedule": SCHEDULE,
}


def is_native(names: Mapping[str, object] | set[str]) -> bool:
    """Whether weights have the native model's names: so do folders exported before 0.2."""
    return "embedding.weight" in names


def to_llama_names(weights: Mapping[str, Tensor], queries_per_kv: int) -> dict[str, Tensor]:
    """Native weights under Llama's names; each is a copy of its own."""
    renamed = {TOP_NAMES[name]: weights[name].clone() for name in TOP_NAMES if name in weights}
    for layer in range(_n_layers(weights, "layers.")):
        for ours, theirs in LAYER_NAMES.items():
            weight = weights[f"layers.{layer}.{ours}.weight"]
            rows = [len(weight) // len(theirs)] * len(theirs)
            if len(theirs) == 3:  # keys and values have fewer rows where queries share them
                kv = len(weight) // (queries_per_kv + 2)
                rows = [kv * queries_per_kv, kv, kv]
            for name, part in zip(theirs, weight.split(rows), strict=True):
                renamed[f"model.layers.{layer}.{name}.weight"] = part.clone()
    return renamed


def to_native_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The reverse: weights under Llama's names as a native model has them."""
    renamed = {ours: weights[name].clone() for ours, name in TOP_NAMES.items() if name in weights}
    for layer in range(_n_layers(weights, "model.layers.")):
        for ours, theirs in LAYER_NAMES.items():
            parts = [weights[f"model.layers.{layer}.{name}.weight"] for name in theirs]
            renamed[f"layers.{layer}.{ours}.weight"] = torch.cat(parts)
    return renamed


def _n_layers(weights: Mapping[str, Tensor], prefix: str) -> int:
    named = (name.removeprefix(prefix) for name in weights if name.startswith(prefix))
    return len({name.split(".")[0] for name in named})
