"""Proof of neutrality: the same measurements on real models that differ only in the schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from prism_transformer.model import PrismLM, fingerprint
from prism_transformer.recipe import ModelConfig
from prism_transformer.sampling import KVCache

aten = torch.ops.aten


def _attention_flops(q: Any, k: Any, *_: Any, **__: Any) -> int:
    """Two products, q k' and weights v, each 2 B H T S K."""
    batch, n_heads, queries, width = q
    return 4 * batch * n_heads * queries * k[-2] * width


def _attention_backward_flops(_grad: Any, q: Any, k: Any, *_: Any, **__: Any) -> int:
    """Five products: q k' once more, and the gradients of weights, q, k and v."""
    return 5 * _attention_flops(q, k) // 2


# torch 2.13 has no formula for attention on the CPU and silently counts it as zero.
ATTENTION_FORMULAS: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}


@dataclass(frozen=True)
class Measurement:
    """What a real model was seen to have and to do. Only the logits may know the schedule."""

    n_params: int
    weights: str
    forward_flops: int
    backward_flops: int
    kv_bytes: int
    logits: torch.Tensor


def measure(config: ModelConfig, seq_len: int, seed: int = 0) -> Measurement:
    """Build the model, run one sequence forward and backward, and count."""
    model = PrismLM(config, seed)
    tokens = torch.randint(
        config.vocab_size, (1, seq_len), generator=torch.Generator().manual_seed(seed)
    )
    with FlopCounterMode(display=False, custom_mapping=ATTENTION_FORMULAS) as forward:
        logits = model(tokens)
    with FlopCounterMode(display=False, custom_mapping=ATTENTION_FORMULAS) as backward:
        logits.backward(torch.ones_like(logits))
    cache = KVCache(config, 1, seq_len)
    with torch.no_grad():
        model(tokens, cache=cache)
    return Measurement(
        n_params=sum(weight.numel() for weight in model.parameters()),
        weights=fingerprint(model),
        forward_flops=forward.get_total_flops(),
        backward_flops=backward.get_total_flops(),
        kv_bytes=cache.n_bytes,
        logits=logits.detach(),
    )
