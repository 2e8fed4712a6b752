"""The loss on the validation slice, every token once, and a look at attention there.

Nothing here draws a random number, so that training goes on as if it had not happened.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from prism_transformer.data.loader import Windows, prefetched
from prism_transformer.model import IGNORED, PrismLM, causal_attention
from prism_transformer.train.device import Settings
from prism_transformer.train.distributed import World


@torch.no_grad()
def validation_loss(
    model: PrismLM,
    windows: Windows,
    n_windows: int,
    micro_batch: int,
    world: World,
    settings: Settings,
) -> float:
    """Mean loss in nats over the first windows, shared out over all processes."""
    model.eval()
    loss, count = 0.0, 0
    for rows in prefetched(_shares(windows, n_windows, micro_batch, world)):
        tokens = torch.from_numpy(rows).to(world.device)
        n_scored = int((rows[:, 1:] != IGNORED).sum())
        with settings.autocast():
            mean = model(tokens[:, :-1].clamp(min=0), tokens[:, 1:])
        if n_scored:
            loss += mean.double().item() * n_scored
            count += n_scored
    model.train()
    loss, count_all = world.total([loss, count])
    return loss / count_all


def _shares(
    windows: Windows, n_windows: int, micro_batch: int, world: World
) -> Iterator[np.ndarray]:
    """The batches of this process: all of one shape, and as many as any other has.

    Under fully_shard every pass is one of all processes, so none may have fewer.
    """
    stride = micro_batch * world.size
    for start in range(0, n_windows, stride):
        first = start + micro_batch * world.rank
        rows = windows.read(range(first, min(first + micro_batch, n_windows)))
        missing = micro_batch - len(rows)
        yield np.pad(rows, ((0, missing), (0, 0)), constant_values=IGNORED)


@torch.no_grad()
def largest_attention_logits(model: PrismLM, tokens: Tensor, settings: Settings) -> list[float]:
    """The largest scaled score of each layer before the softmax, on tokens (B, T)."""
    largest: list[float] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        scores = (q.float() @ keys.float().mT) * q.shape[-1] ** -0.5
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        largest.append(scores.masked_fill(~seen, -torch.inf).max().item())
        return causal_attention(q, k, v)

    model.eval()
    # Compiled layers hold ordinary attention; this one runs as it is written.
    with torch.compiler.set_stance("force_eager"), settings.autocast():
        model(tokens, attend=attend)
    model.train()
    return largest
