"""Proof of neutrality: the same measurements on real models that differ only in the schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from prism_transformer.core.progress import Tell, counted, silent
from prism_transformer.core.table import Column, Row, Table, words
from prism_transformer.model import PrismLM
from prism_transformer.models import cost
from prism_transformer.models.sampling import KVCache
from prism_transformer.models.weights import fingerprint
from prism_transformer.recipe import ModelConfig

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
    """the beginning of their fingerprint"""
    forward_flops: int
    backward_flops: int
    kv_bytes: int
    logits: torch.Tensor


def measure(config: ModelConfig, seq_len: int) -> Measurement:
    """Build the model, run one sequence forward and backward, and count."""
    model = PrismLM(config)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (1, seq_len), generator=draw)
    with FlopCounterMode(display=False, custom_mapping=ATTENTION_FORMULAS) as forward:
        logits = model(tokens)
    with FlopCounterMode(display=False, custom_mapping=ATTENTION_FORMULAS) as backward:
        logits.backward(torch.ones_like(logits))
    cache = KVCache(config, 1, seq_len)
    with torch.no_grad():
        model(tokens, cache=cache)
    return Measurement(
        n_params=sum(weight.numel() for weight in model.parameters()),
        weights=fingerprint(model)[:12],
        forward_flops=forward.get_total_flops(),
        backward_flops=backward.get_total_flops(),
        kv_bytes=cache.n_bytes,
        logits=logits.detach(),
    )


@dataclass(frozen=True)
class Neutrality:
    """Two models that differ in the schedule alone, side by side and against the closed forms."""

    table: Table
    logits_apart: float
    """largest difference of their logits: the schedule acts"""

    @property
    def holds(self) -> bool:
        """Everything is equal, but for what the schedule is to change."""
        return set(self.table.values("equal")) == {"yes"} and self.logits_apart > 0


def prove_neutrality(
    uniform: ModelConfig, prism: ModelConfig, seq_len: int, *, tell: Tell = silent
) -> Neutrality:
    """Build both models, run them, and hold what they have and do against ``cost.py``."""
    configs = counted(tell, "building", (uniform, prism), 2, "models")
    first, second = (measure(config, seq_len) for config in configs)
    # torch counts the attention kernel's own recomputation of q k' in the backward pass.
    recomputed = cost.forward_flops(prism, seq_len).attention // 2
    backward = cost.backward_flops(prism, seq_len).total + recomputed
    closed = {
        "parameters": ("n_params", cost.parameters(prism).total),
        "forward FLOPs": ("forward_flops", seq_len * cost.forward_flops(prism, seq_len).total),
        "backward FLOPs": ("backward_flops", seq_len * backward),
        "KV cache bytes": ("kv_bytes", cost.kv_bytes(prism, seq_len, cost.FLOAT32_BYTES)),
        "initial weights": ("weights", None),
    }
    rows: list[Row] = []
    for name, (field, form) in closed.items():
        seen = {"uniform": getattr(first, field), "prism": getattr(second, field)}
        alike = len({*seen.values(), form} - {None}) == 1
        found = {"closed form": form, "equal": "yes" if alike else "NO"}
        rows.append({"measured": name, **seen, **found})
    columns = (*words("measured"), *map(Column, ("uniform", "prism", "closed form", "equal")))
    apart = (first.logits - second.logits).abs().max().item()
    return Neutrality(Table("neutrality", columns, tuple(rows)), apart)
