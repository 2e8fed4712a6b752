"""One set of weights under another schedule: as they are, or with the least change of function.

``take_schedule`` only cuts the same channels elsewhere. Where rotary positions are involved that
scrambles a trained layer: pairs of channels that turned together belong to different heads now, and
turn at other speeds. ``matched`` moves weights so that every pair stays a pair, at the speed
nearest to its own, and folds the change of attention's scale into the queries. Heads that are
merged then attend by the mean of their logits, and heads that are split each by their share of
them, scaled up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from prism_transformer.core.errors import InputError
from prism_transformer.model import PrismLM, rotary_frequencies
from prism_transformer.recipe import ModelConfig
from prism_transformer.schedule import HeadSchedule


def take_schedule(model: PrismLM, schedule: HeadSchedule) -> None:
    """Give a model another schedule in place, with the weights it has.

    Weights do not depend on it; this way two schedules of a large model need the memory of one.
    """
    schedule.expect_layers(len(model.layers))
    config = model.config.model_copy(update={"schedule": schedule})
    model.config = config
    model.head_dims = schedule.head_dims(config.d_model)
    for layer, n_heads in zip(model.layers, schedule.heads, strict=True):
        attention = layer.get_submodule("attention")
        attention.n_heads = n_heads  # type: ignore[assignment]
        attention.n_kv_heads = n_heads // config.queries_per_kv  # type: ignore[assignment]
        attention.head_dim = config.d_model // n_heads  # type: ignore[assignment]


@contextmanager
def under(model: PrismLM, schedule: HeadSchedule) -> Iterator[None]:
    """The model under another schedule for a while."""
    before = model.config.schedule
    if schedule != before:
        take_schedule(model, schedule)
    try:
        yield
    finally:
        if schedule != before:
            take_schedule(model, before)


@dataclass(frozen=True)
class _Moves:
    """Where the rows of one layer's queries and keys come from, and a factor for the queries."""

    queries: Tensor
    """row of the old matrix for each new row"""
    keys: Tensor
    outputs: Tensor
    """column of the old output matrix for each new one: queries of a group change places"""
    factor: float


def matched(
    tensors: Mapping[str, Tensor], before: ModelConfig, schedule: HeadSchedule, power: float = 1.0
) -> dict[str, Tensor]:
    """A model's tensors, by name, moved to another schedule with the least change of function.

    ``power`` is that of the queries' factor: 1 for weights; -1 and -2 for AdamW's two moments,
    which are of gradients and of their squares.
    """
    after = before.model_copy(update={"schedule": schedule})
    schedule.expect_layers(before.n_layers)
    schedule.head_dims(before.d_model)
    moved = dict(tensors)
    for layer, (old, new) in enumerate(zip(before.schedule, schedule, strict=True)):
        if old == new:
            continue
        moves = _moves(before, after, old, new)
        own = f"layers.{layer}.attention"
        qkv, out = moved[f"{own}.qkv.weight"], moved[f"{own}.out.weight"]
        q, k, v = qkv.split((before.d_model, before.d_kv, before.d_kv))
        q = q[moves.queries] * moves.factor**power
        moved[f"{own}.qkv.weight"] = torch.cat((q, k[moves.keys], v))
        moved[f"{own}.out.weight"] = out[:, moves.outputs].contiguous()
    return moved


def _moves(before: ModelConfig, after: ModelConfig, old: int, new: int) -> _Moves:
    """From one head count to another, through their common divisor where neither divides."""
    if before.rope_frequencies == "split":
        raise InputError(
            'rope_frequencies = "split" gives every head speeds of its own, which no other head '
            "count has: use the map reshape"
        )
    middle = gcd(old, new)  # a multiple of queries_per_kv, as both are
    merge, outputs = _merge(before, old, middle)
    split, split_outputs = _merge(after, new, middle)
    # The way from many heads to few, and the same way backwards.
    queries, keys = (a[torch.argsort(b)] for a, b in zip(merge, split, strict=True))
    factor = _reach(before, old) / _reach(after, new)
    return _Moves(queries, keys, outputs[torch.argsort(split_outputs)], factor)


def _reach(config: ModelConfig, n_heads: int) -> float:
    """Width times scale: the logit of a head whose channel pairs agree by 1 each."""
    width = config.d_model // n_heads
    base = config.base_width if config.attention_scale == "base" else width
    return width * base**0.5 / width


def _merge(config: ModelConfig, old: int, new: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Rows of queries and of keys, and places of outputs, when so many heads become fewer.

    Pairs of all merged heads are laid out by their speed, first those of the fastest, so that both
    counts agree on the order whatever their speeds are called.
    """
    times, group, width = old // new, config.queries_per_kv, config.d_model // old
    speeds = rotary_frequencies(config, old).double()
    pairs = speeds.repeat(times)  # of the merged head: head by head, pair by pair
    order = torch.argsort(pairs, descending=True, stable=True)
    head, pair = order // (width // 2), order % (width // 2)
    first = head * width + pair  # of each pair; the second is half a head further
    within = torch.cat((first, first + width // 2))
    n_kv = new // group
    starts = torch.arange(n_kv)[:, None] * times * width
    keys = (starts + within).flatten()
    # Queries of one key stand side by side. Merged, those of several keys do: (key, query) of the
    # old heads becomes (query, key).
    rows = torch.arange(config.d_model).view(n_kv, times, group, width).transpose(1, 2)
    heads = rows.reshape(new, times * width)
    return (heads[:, within].flatten(), keys), heads.flatten()
