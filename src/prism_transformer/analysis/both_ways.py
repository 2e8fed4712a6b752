"""What the heads of an encoder's layer attend to: ``observe.py`` for attention to all positions.

A distance has two directions, and is not linear in a key's position, so each key stands twice: once
for the queries at or behind it and once for those ahead of it, with a mask by which every query
sees exactly one of the two. What each half is worth is then a column of its own.

Shapes and documents as in ``observe.py``. Every query counts: none is short of keys here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from prism_transformer.analysis.observe import BLOCK, EXTRA, over_queries, places_of, with_null_key
from prism_transformer.models.packing import same_document

BOTH_WAYS = (  # beside those that any attention has
    "ahead",  # weight on later positions
    "distance_back",  # E[t - s] of the weight on all others
    "distance_ahead",  # E[s - t] of the weight on later ones
)

# Beside the keys' own columns, which of the extra ones holds what.
FIRST, BACK, AHEAD, BACK_POSITION, AHEAD_POSITION, SQUARE, NULL = range(7)

# Means over the weight that is there, rather than query by query.
RATIOS = {
    "distance_without_sink": ("rest_distance", "rest"),
    "distance_back": ("back_distance", "back"),
    "distance_ahead": ("ahead_distance", "ahead"),
}


def observe_both_ways(
    q: Tensor, k: Tensor, scale: float | None = None, positions: Tensor | None = None
) -> dict[str, Tensor]:
    """Each statistic (B, H) of attention to all of a document, averaged over all queries.

    Those of ``observe``, with ``distance`` E|t - s|; and ``ahead``, the weight on later positions,
    with the mean distance of the weight on either side.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k = q.float(), k.float()
    mean = over_queries(_blocks(q, k, scale, positions), q.shape[-2])
    tiny = torch.finfo(torch.float32).tiny
    found = {name: mean[part] / mean[of].clamp(min=tiny) for name, (part, of) in RATIOS.items()}
    parts = {"rest", "rest_distance", "back", "back_distance", "ahead_distance"}
    return {name: each for name, each in mean.items() if name not in parts} | found


def _blocks(
    q: Tensor, k: Tensor, scale: float, positions: Tensor | None
) -> Iterator[dict[str, Tensor]]:
    """Statistics of each query (B, H, Q), block by block."""
    length = q.shape[-2]
    own = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    places = places_of(positions, length, q.device)
    after = _after(places)
    for start in range(0, length, BLOCK):
        stop = min(start + BLOCK, length)
        centre, here = (start + stop) // 2, slice(start, stop)
        keys, values = _keys_and_values(k, start, stop, centre, places == 0)
        block = q[..., here, :]
        yield with_null_key(
            block, keys, values, _mask(start, stop, length, positions, q.device),
            scale * (block * own[..., here, :]).sum(-1), scale, NULL,
            partial(
                _statistics, q=block, scale=scale, start=start, centre=centre,
                t=places[..., here], after=after[..., here],
            ),
        )  # fmt: skip


def _after(places: Tensor) -> Tensor:
    """How many positions of its document lie behind each."""
    length = places.shape[-1]
    here = torch.arange(length, device=places.device)
    ends = F.pad(places[..., 1:] == 0, (0, 1), value=True)
    # The nearest end at or behind a position: the least of those that are left, from the right.
    last = torch.where(ends, here, length).flip(-1).cummin(-1).values.flip(-1)
    return last - here


def _keys_and_values(
    k: Tensor, start: int, stop: int, centre: int, first: Tensor
) -> tuple[Tensor, Tensor]:
    """The null key, keys 0 to ``stop`` as seen from ahead, keys from ``start`` as from behind."""
    width, length = k.shape[-1], k.shape[-2]
    both = torch.cat((k[..., :stop, :], k[..., start:, :]), dim=-2)
    keys = F.pad(both, (0, EXTRA, 1, 0))
    keys[..., 0, width + NULL] = 1.0
    values = keys.clone()
    places = (torch.arange(length, device=k.device) - centre).float()
    back, ahead = slice(1, stop + 1), slice(stop + 1, None)
    rest = (~first[..., :stop]).float()
    values[..., back, width + FIRST] = 1.0 - rest
    values[..., back, width + BACK] = rest
    values[..., back, width + BACK_POSITION] = places[:stop] * rest
    values[..., ahead, width + AHEAD] = 1.0
    values[..., ahead, width + AHEAD_POSITION] = places[start:]
    values[..., back, width + SQUARE] = places[:stop].square() * rest
    values[..., ahead, width + SQUARE] = places[start:].square()
    return keys, values


def _mask(
    start: int, stop: int, length: int, positions: Tensor | None, device: torch.device
) -> Tensor:
    """Of each key's two places, the one that a query sees; the null key always."""
    queries = torch.arange(start, stop, device=device)[:, None]
    null = torch.ones_like(queries, dtype=torch.bool)
    back = torch.arange(stop, device=device) <= queries
    ahead = torch.arange(start, length, device=device) > queries
    if positions is None:
        return torch.cat((null, back, ahead), dim=1)
    same = same_document(positions)[:, None, start:stop]
    null = null.expand(*same.shape[:3], 1)
    return torch.cat((null, back & same[..., :stop], ahead & same[..., start:]), dim=-1)


def _statistics(
    means: Tensor,
    score: Tensor,
    q: Tensor,
    scale: float,
    start: int,
    centre: int,
    t: Tensor,
    after: Tensor,
) -> dict[str, Tensor]:
    """From means under the weights (B, H, Q, K + EXTRA), the null key among them.

    Before a query lie ``t`` positions of its document, and ``after`` behind it.
    """
    width = q.shape[-1]
    columns = means[..., width:]
    null = columns[..., NULL].clamp(min=torch.finfo(means.dtype).tiny)
    real = columns[..., FIRST] + columns[..., BACK] + columns[..., AHEAD]
    sink, back, ahead, back_place, ahead_place, square = (columns / real[..., None])[
        ..., : SQUARE + 1
    ].unbind(-1)
    offset = (torch.arange(start, start + q.shape[-2], device=q.device) - centre).float()
    behind, before = back * offset - back_place, ahead_place - ahead * offset
    distance = sink * t + behind + before
    mean_score = scale * (q * means[..., :width]).sum(-1) / real
    places = back_place + ahead_place
    return {
        "distance": distance,
        "sink": sink,
        "second_moment": sink * t**2 + (back + ahead) * offset**2 - 2 * offset * places + square,
        "excess": distance - (t * (t + 1) + after * (after + 1)) / (2 * (t + 1 + after)),
        "entropy": score + torch.log(real / null) - mean_score,
        "ahead": ahead,
        "rest": back + ahead,
        "rest_distance": behind + before,
        "back": sink + back,
        "back_distance": sink * t + behind,
        "ahead_distance": before,
        "score": mean_score,
    }
