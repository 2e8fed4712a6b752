"""Cross entropy of many targets without all of their logits at once.

Shapes: N targets, D width of a hidden state, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import LinearCrossEntropyOptions
from torch.utils.checkpoint import checkpoint

IGNORED = -100  # a target that does not count, as torch has it


def chunked_loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of targets (N,) under hidden states x (N, D), never holding all logits."""
    device = x.device.type
    if device != "cpu":
        return recomputed_loss(x, weight, targets)
    if torch.is_autocast_enabled(device):  # autocast does not know this function
        dtype = torch.get_autocast_dtype(device)
        x, weight = x.to(dtype), weight.to(dtype)
    # Torch's automatic choice of chunks is four times slower on a CPU.
    options = LinearCrossEntropyOptions(
        batch_chunk_size=512, chunking_method=None, acc_policy="compact"
    )
    if x.dtype in (torch.float32, torch.float64):
        return F.linear_cross_entropy(x, weight, targets, options=options)
    # A mean of bfloat16 losses is rounded to 1/64 near 3, more than the effect we measure: take
    # the mean in float32.
    losses = F.linear_cross_entropy(x, weight, targets, reduction="none", options=options)
    return losses.float().sum() / (targets != IGNORED).sum()


def recomputed_loss(x: Tensor, weight: Tensor, targets: Tensor, rows: int = 2048) -> Tensor:
    """The same in chunks on any device; the backward pass computes their logits again.

    torch's own chunks add up the weight's gradient in bfloat16: 1.5 % off after 128 of them. Here
    each casts the weight anew, so that autograd adds up what comes back through casts, in float32.
    """
    device = x.device.type
    mixed = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if mixed else x.dtype

    def chunk_loss(x: Tensor, targets: Tensor) -> Tensor:
        logits = F.linear(x, weight.to(dtype)).to(torch.promote_types(dtype, torch.float32))
        return F.cross_entropy(logits, targets, reduction="sum")

    chunks = zip(x.to(dtype).split(rows), targets.split(rows), strict=True)
    losses = [checkpoint(chunk_loss, *each, use_reentrant=False) for each in chunks]
    return torch.stack(losses).sum() / (targets != IGNORED).sum()
