"""What the heads of one layer attend to, from their queries and keys alone.

Each statistic is a mean under the attention weights, so one call of SDPA gives them all, with the
quantities to be averaged as its values: memory grows with T, and the speed is the kernel's.

Four things make it exact. Positions are counted from the middle of a block of queries: in float32
the difference of two squares near T^2 would leave nothing of a distance of two. The first token,
where much of the weight may lie, has a column of its own. A null key whose score is known tells the
normaliser, which SDPA keeps to itself: with weight p at score r, logsumexp = r + log(1/p - 1). And
the weights' own sum divides out what rounding adds to it.

Of documents that do not see each other, each has positions and a first token of its own.

Shapes as in ``model.py``, and Q queries of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from prism_transformer.models.packing import same_document

STATISTICS = (
    "distance",  # E[t - s], the paper's
    "sink",  # weight on the first token
    "distance_without_sink",  # E[t - s] of the weight on all others
    "second_moment",  # E[(t - s)^2]
    "excess",  # distance beyond that of uniform attention
    "entropy",  # of the weights, in nats
)

BLOCK = 512  # queries whose positions are counted from one centre
EXTRA = 8  # columns beside the keys'; kernels like widths in eights
FIRST, REST, POSITION, SQUARE, NULL = range(5)  # which of them holds what
ENOUGH = 1e-20  # weight of the null key that is far from underflow


def observe(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    positions: Tensor | None = None,
) -> dict[str, Tensor]:
    """Each statistic of causal attention (B, H), averaged over the queries of the last half.

    ``window`` is how many positions a query sees, itself included, where attention slides.
    ``positions`` (B, T) count from 0 in each document, where documents do not see each other.
    """
    length, width = q.shape[-2:]
    scale = width**-0.5 if scale is None else scale
    # Half precision holds no integer above 2048, and bfloat16 none above 256.
    q, k = q.float(), k.float()
    first = length // 2
    mean = over_queries(_blocks(q, k, first, scale, window, positions), length - first)
    # Of all weight that is not on the first token, rather than query by query: one that looks
    # nowhere else has no such distance.
    rest, rest_distance = mean.pop("rest"), mean.pop("rest_distance")
    mean["distance_without_sink"] = rest_distance / rest.clamp(min=torch.finfo(torch.float32).tiny)
    return mean


def over_queries(blocks: Iterable[dict[str, Tensor]], n_queries: int) -> dict[str, Tensor]:
    """Means (B, H) of statistics that come block by block (B, H, Q); summed in float64."""
    sums = [{name: each.double().sum(-1) for name, each in block.items()} for block in blocks]
    return {name: torch.stack([each[name] for each in sums]).sum(0) / n_queries for name in sums[0]}


def with_null_key(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    score: Tensor,
    scale: float,
    null: int,
    statistics: Callable[[Tensor, Tensor], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """What ``statistics`` makes of the means of a block of queries and the null key's score.

    ``score`` (B, H, Q) is what a query gives its own position, rarely far from the largest. Where
    it is far, the null key's weight underflows, and the mean score that came out, which is within
    log T of the normaliser, is tried in its place. ``null`` is the column of that key.
    """
    width = q.shape[-1]
    for _ in range(2):
        queries = F.pad(q, (0, EXTRA))
        queries[..., width + null] = score / scale
        means = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=scale,
            enable_gqa=q.shape[1] != keys.shape[1],
        )  # fmt: skip
        found = statistics(means, score)
        if means[..., width + null].min() > ENOUGH:
            break
        score = found["score"]
    del found["score"]
    return found


def _blocks(
    q: Tensor, k: Tensor, first: int, scale: float, window: int | None, positions: Tensor | None
) -> Iterator[dict[str, Tensor]]:
    """Statistics of each query (B, H, Q), block by block."""
    length, width = q.shape[-2:]
    own_places = places_of(positions, length, q.device)
    keys, values = _keys_and_values(k, own_places == 0)
    own = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # the keys each head sees
    for start in range(first, length, BLOCK):
        stop = min(start + BLOCK, length)
        centre = (start + stop) // 2
        here = slice(start, stop)
        places = torch.arange(stop, device=q.device) - centre
        rest = own_places[..., :stop] > 0
        values[..., 1 : stop + 1, width + POSITION] = (places * rest).float()
        values[..., 1 : stop + 1, width + SQUARE] = (places.square() * rest).float()
        block, seen = q[..., here, :], slice(stop + 1)
        yield with_null_key(
            block, keys[..., seen, :], values[..., seen, :],
            _mask(start, stop, window, positions, q.device),
            scale * (block * own[..., here, :]).sum(-1), scale, NULL,
            partial(
                _statistics, q=block, scale=scale, start=start, centre=centre, window=window,
                t=own_places[..., here],
            ),
        )  # fmt: skip


def places_of(positions: Tensor | None, length: int, device: torch.device) -> Tensor:
    """Positions (B, 1, T) of each query in its document; of one document alone (T,)."""
    return torch.arange(length, device=device) if positions is None else positions[:, None]


def _keys_and_values(k: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Keys behind a null key (B, G, T + 1, K + EXTRA), and what is averaged over them."""
    width = k.shape[-1]
    keys = F.pad(k, (0, EXTRA, 1, 0))
    keys[..., 0, width + NULL] = 1.0
    values = keys.clone()
    values[..., 1:, width + FIRST] = first.float()
    values[..., 1:, width + REST] = (~first).float()
    return keys, values


def _mask(
    start: int, stop: int, window: int | None, positions: Tensor | None, device: torch.device
) -> Tensor:
    """What queries start..stop may see ([B, 1,] Q, stop + 1); the null key always."""
    queries = torch.arange(start, stop, device=device)[:, None]
    keys = torch.arange(-1, stop, device=device)
    seen = keys <= queries
    if window is not None:
        seen &= (keys > queries - window) | (keys < 0)
    if positions is not None:
        same = same_document(positions[:, :stop])[:, None, start:]
        seen = seen & F.pad(same, (1, 0), value=True)
    return seen


def _statistics(
    means: Tensor,
    score: Tensor,
    q: Tensor,
    scale: float,
    start: int,
    centre: int,
    window: int | None,
    t: Tensor,
) -> dict[str, Tensor]:
    """From means under the weights (B, H, Q, K + EXTRA), the null key among them.

    ``t`` is where a query stands in its document, and so how far its first token is.
    """
    width = q.shape[-1]
    columns = means[..., width:]
    null = columns[..., NULL].clamp(min=torch.finfo(means.dtype).tiny)
    real = columns[..., FIRST] + columns[..., REST]  # what the null key leaves
    sink, rest = columns[..., FIRST] / real, columns[..., REST] / real
    position, square = columns[..., POSITION] / real, columns[..., SQUARE] / real
    offset = (torch.arange(start, start + q.shape[-2], device=q.device) - centre).float()
    rest_distance = rest * offset - position
    distance = sink * t + rest_distance
    uniform = (t if window is None else t.clamp(max=window - 1)) / 2
    mean_score = scale * (q * means[..., :width]).sum(-1) / real
    return {
        "distance": distance,
        "sink": sink,
        "rest": rest,
        "rest_distance": rest_distance,
        "second_moment": sink * t**2 + rest * offset**2 - 2 * offset * position + square,
        "excess": distance - uniform,
        "entropy": score + torch.log(real / null) - mean_score,
        "score": mean_score,
    }
