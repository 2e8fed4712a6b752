"""Sampling with a key-value cache, and a product that makes single rows fast on a CPU.

In come a model and tokens, out come more tokens; text is the business of ``training/generate.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from prism_transformer.core.errors import InputError
from prism_transformer.model import Linear, PrismLM
from prism_transformer.recipe import ModelConfig

MIN_TEMPERATURE = 0.001  # below, logits divided by it overflow
MIN_SLABBED = 1 << 17  # entries of a matrix below which spreading one row over cores costs more

Product = Callable[[Tensor], Tensor]


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
    check_sampling(n_new, temperature, top_k, top_p, seed)
    batch, length = tokens.shape
    weight = model.embedding.weight
    cache = KVCache(model.config, batch, length + n_new, device=weight.device, dtype=weight.dtype)
    draw = torch.Generator(device=weight.device).manual_seed(seed)
    tables = model.rotary_tables(torch.arange(length + n_new, device=weight.device))
    fast = fast_products(model) if batch == 1 else {}
    score = row_product(model.scoring) if batch == 1 else model.logits
    new = tokens
    for _ in range(n_new):
        start = cache.filled[0]
        here = slice(start, start + new.shape[1])
        now = {width: table[..., here, :] for width, table in tables.items()}
        # The prompt has many rows and goes through plain products; each token after it has one.
        with using(fast if new.shape[1] == 1 else {}):
            x = model.hidden(model.embedding(new), tables=now, cache=cache)
        logits = score(x[:, -1])[:, : model.config.vocab_size]
        new = _draw(logits, temperature, top_k, top_p, draw)
        yield new


def row_product(weight: Tensor) -> Product:
    """The product of one row (..., K) with a matrix (N, K), on all cores of a CPU.

    One row through a matrix is a product that torch runs on one core. The same product in slabs of
    the matrix is a batch that runs on all of them and takes two thirds of the time.
    """
    slabs = torch.get_num_threads()
    if weight.device.type != "cpu" or weight.numel() < MIN_SLABBED or weight.shape[0] % slabs:
        return lambda x: F.linear(x, weight)
    parts = weight.unflatten(0, (slabs, -1)).mT

    def product(x: Tensor) -> Tensor:
        row = x.reshape(1, 1, -1).expand(slabs, 1, -1)
        return torch.bmm(row, parts).view(*x.shape[:-1], -1)

    return product


def fast_products(model: PrismLM) -> dict[Linear, Product]:
    """What each matrix of a model does with a single row."""
    return {each: row_product(each.weight) for each in model.modules() if isinstance(each, Linear)}


@contextmanager
def using(products: dict[Linear, Product]) -> Iterator[None]:
    """Let these matrices multiply in their own way within the block."""
    # Into the dictionary: the setattr of a module costs more than the product gains.
    for linear, product in products.items():
        linear.__dict__["forward"] = product
    try:
        yield
    finally:
        for linear in products:
            del linear.__dict__["forward"]


def check_sampling(
    n_new: int, temperature: float, top_k: int | None, top_p: float | None, seed: int
) -> None:
    """Refuse what cannot be drawn."""
    if n_new < 0 or (top_k is not None and top_k < 1):
        raise InputError(f"cannot sample with {n_new=}, {top_k=}")
    if temperature != 0 and not MIN_TEMPERATURE <= temperature < math.inf:
        raise InputError(f"cannot sample with {temperature=}; 0, or at least {MIN_TEMPERATURE}")
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"cannot sample with {top_p=}; it is a probability above 0")
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed {seed}: give a number from 0 to 2^63 - 1")


def sample(model: PrismLM, tokens: Tensor, n_new: int, **how: Any) -> Tensor:
    """Continue ``tokens`` (B, T) by ``n_new`` each; options are those of ``stream``."""
    return torch.cat((tokens, *stream(model, tokens, n_new, **how)), dim=1)


def _draw(
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
