"""The largest attention weights of every head over one text, and a coarse map of all of them.

Statistics of a head are exact, as in ``observe.py``. Of its T x T weights two things are kept: the
largest of each query, and the mean weight of blocks of queries on blocks of keys, which shows what
the largest do not where attention is spread out. Both as shares of 65,535: half of that unit is
less than the last digit that is shown of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prism_transformer.analysis.profile import Profile
from prism_transformer.analysis.record import Recorder, watch
from prism_transformer.core.errors import InputError
from prism_transformer.models.packing import same_document

WHOLE = 65_535  # a weight of 1
LARGEST = 12  # weights of a query that are kept
BLOCKS = 48  # rows and columns of a head's map, at most

Units = NDArray[np.uint16]


@dataclass(frozen=True)
class HeadWeights:
    """One head: its largest weights for each query, and its map."""

    keys: Units
    """positions of the largest weights of each query (T, n), the largest first"""
    weights: Units
    """(T, n), in units of 1 / WHOLE; 0 where a query has fewer keys"""
    blocks: Units
    """mean weight of the queries of a block on the keys of a block (B, B)"""


@dataclass(frozen=True)
class TextWeights:
    """All heads of a model over one text."""

    profile: Profile
    heads: tuple[tuple[HeadWeights, ...], ...]
    """by layer, as many as it has"""

    @property
    def n_heads(self) -> int:
        return sum(map(len, self.heads))


def text_weights(model: nn.Module, tokens: Tensor, end_of_text: int | None = None) -> TextWeights:
    """Run one text (T,) through a Prism model or any Hugging Face LM.

    ``end_of_text`` stands before each document, where documents do not see each other.
    """
    if len(tokens) < 2:
        raise InputError(f"a text of {len(tokens)} tokens shows no attention; give two at least")
    recorder = Recorder()
    layers: list[tuple[HeadWeights, ...]] = []

    def see(
        layer: int,
        q: Tensor,
        k: Tensor,
        y: Tensor,
        scale: float | None,
        window: int | None,
        causal: bool,
        positions: Tensor | None,
    ) -> None:
        recorder(layer, q, k, y, scale, window, causal, positions)
        hidden = _hidden(q.shape[-2], window, causal, positions, q.device)
        own = k[0].repeat_interleave(q.shape[1] // k.shape[1], dim=0)  # the keys each head sees
        heads = zip(q[0].float(), own.float(), strict=True)
        layers.append(tuple(_head(*each, scale, hidden) for each in heads))

    watch(model, [tokens[None]], see, end_of_text)
    profile = Profile(recorder.seq_len, 1, tuple(recorder.widths), recorder.layers())
    return TextWeights(profile, tuple(layers))


def _hidden(
    length: int, window: int | None, causal: bool, positions: Tensor | None, device: torch.device
) -> Tensor:
    """Which keys a query does not see (T, T): later ones, those out of its window or document."""
    t = torch.arange(length, device=device)
    hidden = (t > t[:, None]) & causal
    if window is not None:
        hidden |= t <= t[:, None] - window
    if positions is not None:
        hidden |= ~same_document(positions)[0]
    return hidden


def _head(q: Tensor, k: Tensor, scale: float | None, hidden: Tensor) -> HeadWeights:
    """One head's queries and keys (T, K)."""
    length, width = q.shape
    scores = (q @ k.mT) * (width**-0.5 if scale is None else scale)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    largest, keys = weights.topk(min(LARGEST, length), dim=-1)
    return HeadWeights(_units(keys, 1), _units(largest), _units(_blocks(weights)))


def _units(values: Tensor, whole: int = WHOLE) -> Units:
    return (values * whole).round().cpu().numpy().astype(np.uint16)


def _blocks(weights: Tensor) -> Tensor:
    """Mean over queries of each block of the weight on each block of keys."""
    length = len(weights)
    block = torch.tensor(block_of(length), device=weights.device)
    member = torch.nn.functional.one_hot(block).to(weights.dtype)  # (T, B)
    return (member / member.sum(0)).mT @ weights @ member


def block_of(length: int) -> list[int]:
    """The block of each position: all of one size but the last; of a short text single ones."""
    size = -(-length // BLOCKS)
    return [t // size for t in range(length)]


def kept(models: Iterable[TextWeights], n_bytes: int) -> int:
    """How many of the largest weights of a query fit, of all models together; one at least."""
    each = sum(one.n_heads * one.profile.seq_len for one in models) * 4
    return max(1, min(LARGEST, n_bytes // each))
