"""Documents packed into one window that do not see each other.

Positions say it all: they count from 0 at the beginning of each document. transformers reads them
the same way, so that an exported model isolates what it is given with such ``position_ids``.

Shapes as in ``model.py``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from prism_transformer.model import Attend
from prism_transformer.recipe import AttentionKind


def document_positions(tokens: Tensor, end_of_text: int) -> Tensor:
    """Positions (B, T) in the document that each token is of; the first may be the rest of one.

    The end-of-text token stands before a document and belongs to it.
    """
    places = torch.arange(tokens.shape[-1], device=tokens.device).expand_as(tokens)
    begins = torch.where(tokens == end_of_text, places, 0)
    return places - begins.cummax(-1).values


def visible(positions: Tensor, attention: AttentionKind) -> Tensor:
    """Which keys each query may see, (B, 1, T, T): those of its own document."""
    same = same_document(positions)[:, None]
    return same.tril() if attention == "causal" else same


def same_document(positions: Tensor) -> Tensor:
    """Which positions (B, T) are of one document, (B, T, T)."""
    document = (positions == 0).cumsum(-1)
    return document[:, :, None] == document[:, None, :]


def isolated_attention(positions: Tensor, attention: AttentionKind) -> Attend:
    """Attention within each document, for ``PrismLM`` with the same positions (B, T)."""
    # Made once for all layers. A mask costs a GPU its flash kernel, and T x T bytes a sequence.
    seen = visible(positions, attention)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=q.shape[1] != k.shape[1])

    return attend
