"""Watching the attention of any Hugging Face causal LM, through its attention interface.

The model is not changed: its layers hand queries, keys and values to a function by name, and ours
measures before it passes on what SDPA gives. What this cannot see rightly, it refuses by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from prism_transformer.errors import InputError

NAME = "prism_measure"

# What layers may hand over that changes the weights beyond a softmax of scaled scores.
FOREIGN = {
    "softcap": "caps its scores",
    "s_aux": "adds sinks to its softmax",
    "position_bias": "adds a bias by position",
}

Record = Callable[..., None]


@contextmanager
def watched(model: nn.Module, record: Record) -> Iterator[Callable[[Tensor], None]]:
    """A function that runs tokens (B, T) through the model while ``record`` sees each layer."""
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"{type(model).__name__}: is neither a Prism model nor a Hugging Face one")
    seen: set[int] = set()
    AttentionInterface.register(NAME, _measuring(record, seen))
    AttentionMaskInterface.register(NAME, sdpa_mask)
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(NAME)
    except (ValueError, ImportError) as error:
        raise _cannot(model, str(error).partition("\n")[0]) from None
    n_layers = model.config.get_text_config().num_hidden_layers

    def run(tokens: Tensor) -> None:
        seen.clear()
        _check_length(model, tokens.shape[1])
        model.base_model(input_ids=tokens, use_cache=False)
        if seen != set(range(n_layers)):
            missing = sorted(set(range(n_layers)) - seen)
            raise _cannot(model, f"layers {missing} do not attend through transformers' interface")

    try:
        yield run
    finally:
        model.set_attn_implementation(before)


def _measuring(record: Record, seen: set[int]) -> Callable[..., tuple[Tensor, None]]:
    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **rest: Any,
    ) -> tuple[Tensor, None]:
        layer, window = module.layer_idx, rest.get("sliding_window")
        for name, what in FOREIGN.items():
            if rest.get(name) is not None:
                raise InputError(f"layer {layer} {what} ({name}); its weights are not measured")
        if not rest.get("is_causal", getattr(module, "is_causal", True)):
            raise InputError(f"layer {layer} is not causal; distance back in time has no meaning")
        _check_mask(attention_mask, query.shape[-2], window, layer)
        y, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **rest
        )
        if key.shape[-2] != query.shape[-2]:
            raise InputError(f"layer {layer} attends to a cache; measure without one")
        record(layer, query, key, y.transpose(1, 2), scaling, window)
        seen.add(layer)
        return y, None

    return attend


def _check_mask(mask: Tensor | None, length: int, window: int | None, layer: int) -> None:
    """Refuse masks that are more than causal order and a sliding window."""
    if mask is None:
        if window is not None and window < length:
            raise InputError(f"layer {layer} has a window of {window} but no mask for it")
        return
    if mask.dtype != torch.bool:
        raise InputError(f"layer {layer} adds a bias to its scores; its weights are not measured")
    t = torch.arange(length, device=mask.device)
    expected = t <= t[:, None]
    if window is not None:
        expected &= t > t[:, None] - window
    if not (mask[..., :length] == expected).all():
        raise InputError(
            f"layer {layer} masks more than the future and a sliding window (padding, chunks)"
        )


def _check_length(model: PreTrainedModel, length: int) -> None:
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and length > longest:
        raise InputError(f"sequences of {length} tokens; this model's context is {longest}")


def _cannot(model: nn.Module, why: str) -> InputError:
    return InputError(f"{type(model).__name__}: its attention cannot be measured: {why}")
