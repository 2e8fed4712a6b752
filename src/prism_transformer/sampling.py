"""Sampling with a key-value cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from prism_transformer.errors import InputError
from prism_transformer.model import PrismLM
from prism_transformer.recipe import ModelConfig

MIN_TEMPERATURE = 0.001  # below, logits divided by it overflow


class KVCache:
    """Keys and values of up to ``length`` positions, allocated once.

    Heads times width is the same in every layer, so the bytes do not depend on the schedule.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        length: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.layers = [
            torch.empty(
                2, batch, n_heads // config.queries_per_kv, length, width,
                device=device, dtype=dtype,
            ).unbind()
            for n_heads, width in zip(config.schedule.heads, config.head_dims, strict=True)
        ]  # fmt: skip
        self.length = length
        self.filled = [0] * config.n_layers

    @property
    def n_bytes(self) -> int:
        """Memory held."""
        return sum(each.nbytes for layer in self.layers for each in layer)

    def update(self, k: Tensor, v: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Store k and v behind what the layer has, and return all of it as views."""
        start, new = self.filled[layer], k.shape[-2]
        stop = start + new
        if stop > self.length:
            raise IndexError(f"position {stop - 1} is beyond the cache's {self.length}")
        keys, values = self.layers[layer]
        keys.narrow(-2, start, new).copy_(k)
        values.narrow(-2, start, new).copy_(v)
        self.filled[layer] = stop
        return keys.narrow(-2, 0, stop), values.narrow(-2, 0, stop)


@torch.inference_mode()
def stream(
    model: PrismLM,
    tokens: Tensor,
    n_new: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> Iterator[Tensor]:
    """Draw ``n_new`` tokens after ``tokens`` (B, T), each (B, 1) as soon as it is known.

    Temperature 0 takes the likeliest. ``top_k`` keeps that many likeliest tokens, ``top_p`` the
    fewest likeliest that have this probability together. Rows that only pad the embedding are
    never drawn.
    """
    if tokens.dim() != 2 or not tokens.numel():
        raise ValueError(f"tokens have shape {tuple(tokens.shape)}; a prompt is (B, T), T > 0")
    check_sampling(n_new, temperature, top_k, top_p)
    batch, length = tokens.shape
    weight = model.embedding.weight
    cache = KVCache(model.config, batch, length + n_new, device=weight.device, dtype=weight.dtype)
    draw = torch.Generator(device=weight.device).manual_seed(seed)
    tables = model.rotary_tables(torch.arange(length + n_new, device=weight.device))
    new = tokens
    for _ in range(n_new):
        start = cache.filled[0]
        here = slice(start, start + new.shape[1])
        now = {width: table[:, here] for width, table in tables.items()}
        x = model.hidden(model.embedding(new), tables=now, cache=cache)
        logits = model.logits(x[:, -1])[:, : model.config.vocab_size]
        new = _sample(logits, temperature, top_k, top_p, draw)
        yield new


def check_sampling(n_new: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Refuse what cannot be drawn."""
    if n_new < 0 or (top_k is not None and top_k < 1):
        raise InputError(f"cannot sample with {n_new=}, {top_k=}")
    if temperature != 0 and not MIN_TEMPERATURE <= temperature < math.inf:
        raise InputError(f"cannot sample with {temperature=}; 0, or at least {MIN_TEMPERATURE}")
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"cannot sample with {top_p=}; it is a probability above 0")


def generate(model: PrismLM, tokens: Tensor, n_new: int, **how: Any) -> Tensor:
    """Continue ``tokens`` (B, T) by ``n_new`` each; options are those of ``stream``."""
    return torch.cat((tokens, *stream(model, tokens, n_new, **how)), dim=1)


def _sample(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    draw: torch.Generator,
) -> Tensor:
    """One token (B, 1) from logits (B, V)."""
    if temperature == 0.0:
        return logits.argmax(-1, keepdim=True)
    logits = logits / temperature
    if top_k is not None:
        lowest = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    if top_p is not None:
        logits = logits.masked_fill(~_nucleus(logits, top_p), -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=draw)


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Which tokens are among the fewest likeliest that have probability ``top_p`` together."""
    sorted_logits, order = logits.sort(-1, descending=True)
    probabilities = sorted_logits.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before < top_p)
