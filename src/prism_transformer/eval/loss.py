"""The loss of a causal LM on text, whole and by position in the context."""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from prism_transformer.errors import InputError

ROPE_SCALINGS = ("linear", "dynamic", "yarn")


@dataclass(frozen=True)
class Loss:
    """Mean cross entropy in nats over every token once, and at each position."""

    n_tokens: int
    n_sequences: int
    by_position: NDArray[np.float64]
    error: float  # standard error over sequences

    @property
    def mean(self) -> float:
        """Nats per token."""
        return float(self.by_position.mean())

    @property
    def perplexity(self) -> float:
        """Its exponential."""
        return math.exp(self.mean)

    def bits_per_byte(self, n_bytes: int) -> float:
        """Over so many bytes of text."""
        return self.mean * self.n_tokens / math.log(2) / n_bytes

    def doubling(self) -> list[dict[str, Any]]:
        """Means over positions 1, 2, 3-4, 5-8 and so on: the loss falls with their logarithm."""
        rows, start = [], 0
        while start < len(self.by_position):
            stop = min(max(1, 2 * start), len(self.by_position))
            rows.append(
                {
                    "positions": f"{start + 1}" if stop == start + 1 else f"{start + 1}-{stop}",
                    "loss": float(self.by_position[start:stop].mean()),
                }
            )
            start = stop
        return rows


@torch.no_grad()
def measure_loss(model: Any, batches: Iterable[Tensor]) -> Loss:
    """The loss of a Hugging Face causal LM on windows (B, T + 1)."""
    model.eval()
    total: NDArray[np.float64] | float = 0.0
    means: list[float] = []
    for rows in batches:
        tokens = rows.to(model.device)
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        losses = F.cross_entropy(logits.float().mT, tokens[:, 1:], reduction="none").double()
        total = total + losses.sum(0).cpu().numpy()
        means += losses.mean(1).tolist()
    if isinstance(total, float):
        raise InputError("no sequence was measured")
    n = len(means)
    error = float(np.std(means, ddof=1) / n**0.5) if n > 1 else math.nan
    return Loss(total.size * n, n, total / n, error)


def check_context(model: Any, length: int, extrapolate: bool) -> None:
    """Refuse sequences beyond a model's context unless that is the question."""
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if longest is None or length <= longest:
        return
    rotary = getattr(model.config.get_text_config(), "rope_parameters", None) is not None
    if not rotary:
        raise InputError(f"--length {length}: this model has {longest} learned positions, no more")
    if not extrapolate:
        raise InputError(
            f"--length {length}: this model's context is {longest}; to go beyond, --extrapolate "
            "its positions as they are, or --rope-scaling linear:2"
        )


def with_rope_scaling(model: Any, scaling: str) -> Any:
    """The same weights with positions rescaled: ``linear:2``, ``dynamic:2`` or ``yarn:4``."""
    kind, _, factor = scaling.partition(":")
    try:
        times = float(factor)
    except ValueError:
        times = math.nan
    if kind not in ROPE_SCALINGS or not 1 <= times < math.inf:
        raise InputError(
            f"--rope-scaling {scaling!r}: write one of {', '.join(ROPE_SCALINGS)} and a factor of "
            "at least 1, as in linear:2"
        )
    config = deepcopy(model.config)
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict) or "rope_theta" not in rope:
        raise InputError(f"--rope-scaling: {type(model).__name__} has no rotary positions to scale")
    context = config.max_position_embeddings
    try:
        config.rope_parameters = {
            "rope_type": kind,
            "rope_theta": rope["rope_theta"],
            "factor": times,
            "original_max_position_embeddings": context,
        }
        config.max_position_embeddings = int(context * times)
        scaled = type(model)(config)
    except (ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"--rope-scaling {scaling}: {type(model).__name__}: {reason}") from None
    scaled.load_state_dict(model.state_dict())
    return scaled.eval()
