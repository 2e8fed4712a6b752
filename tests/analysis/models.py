"""What tests of attention share: a model with heads of many widths, and tokens for it."""

from __future__ import annotations

import torch
from torch import Tensor

from prism_transformer import PrismLM
from prism_transformer.recipe import AttentionKind
from tests.conftest import small_config

RAGGED = "1x1 2x1 3x1 12x2"


def some_tokens(n: int, length: int = 48) -> Tensor:
    return torch.randint(300, (n, length), generator=torch.Generator().manual_seed(0))


def model_of(schedule: str = RAGGED, attention: AttentionKind = "causal") -> PrismLM:
    model = PrismLM(small_config(schedule, attention=attention)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    return model
