"""What a model is asked of windows: the next token, or those that are masked.

Shapes: B windows, T tokens of each, as in ``model.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prism_transformer.core.errors import InputError
from prism_transformer.core.loss import IGNORED
from prism_transformer.data.masking import Masking
from prism_transformer.data.tokenizer import vocabulary
from prism_transformer.models.packing import document_positions, isolated_attention
from prism_transformer.recipe import AttentionKind, Recipe

Batch = NDArray[np.int64]


@dataclass(frozen=True)
class Question:
    """One pass: what a model sees, and what it is to say."""

    tokens: Tensor
    """(B, T)"""
    targets: Tensor
    """(B, T); -100 where nothing is asked"""
    positions: Tensor | None = None
    """(B, T), from 0 in each document, where documents are isolated"""

    @property
    def n_scored(self) -> int:
        return int((self.targets != IGNORED).sum())

    def pinned(self, device: torch.device) -> Question:
        """In memory from which a GPU copies by itself."""
        return self._each("pin_memory") if device.type == "cuda" else self

    def to(self, device: torch.device) -> Question:
        """On a device, without waiting for the copy."""
        return self._each("to", device, non_blocking=True)

    def _each(self, method: str, *given: Any, **named: Any) -> Question:
        parts = {"tokens": self.tokens, "targets": self.targets, "positions": self.positions}
        there = {name: part for name, part in parts.items() if part is not None}
        moved = {name: getattr(each, method)(*given, **named) for name, each in there.items()}
        return replace(self, **moved)

    def loss(self, model: Any, attention: AttentionKind) -> Tensor:
        """The mean loss of a ``PrismLM``, in a wrapper or not."""
        if self.positions is None:
            return model(self.tokens, self.targets)
        attend = isolated_attention(self.positions, attention)
        return model(self.tokens, self.targets, positions=self.positions, attend=attend)


@dataclass(frozen=True)
class Objective:
    """How windows become questions."""

    masking: Masking | None = None
    """None: the next token is asked"""
    end_of_text: int | None = None
    """where documents are isolated: the token before each"""

    def question(self, rows: Batch, first: int, seed: int) -> Question:
        """Of windows and the token after each (B, T + 1), the first of them at this place.

        Rows of -100 only fill up a batch.
        """
        windows = rows[:, :-1]
        if self.masking is None:
            seen, wanted = windows, rows[:, 1:]
        else:
            places = range(first, first + len(rows))
            seen, wanted = self.masking.masked(windows, places, seed)
            wanted = np.where(windows == IGNORED, IGNORED, wanted)
        positions = None
        if self.end_of_text is not None:
            positions = document_positions(torch.from_numpy(windows), self.end_of_text)
        shown = torch.from_numpy(np.maximum(seen, 0))
        return Question(shown, torch.from_numpy(np.ascontiguousarray(wanted)), positions)


NEXT_TOKEN = Objective()


def objective_of(recipe: Recipe, seq_len: int | None = None) -> Objective:
    """What a recipe asks, of windows as long as its own or of another length.

    Refuses a vocabulary that has no room for the mask.
    """
    train, config, tokenizer = recipe.train, recipe.model, recipe.data.tokenizer
    masking = None
    if train.objective == "masked":
        if config.vocab_size <= vocabulary(tokenizer):
            raise InputError(
                f"model.vocab_size = {config.vocab_size}: tokenizer {tokenizer} has as many tokens "
                f"already, and the mask needs one more; set it to {vocabulary(tokenizer) + 1}"
            )
        shares = (train.mask_replaced, train.mask_random)
        n_masked = max(1, round(train.mask_share * (seq_len or config.seq_len)))
        masking = Masking(n_masked, config.mask_token, config.vocab_size - 1, *shares)
    isolate = recipe.data.boundaries == "isolate"
    return Objective(masking, vocabulary(tokenizer) - 1 if isolate else None)
