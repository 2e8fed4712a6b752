"""One layer against the native one that has the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface as Registry
from transformers.modeling_layers import GradientCheckpointingLayer

from prism_transformer.hf.layers import PrismDecoderLayer
from prism_transformer.hf.names import LAYER_NAMES
from prism_transformer.model import Layer, causal_attention
from tests.hf.models import EACH, prism

Fields = dict[str, Any]


@EACH
@pytest.mark.parametrize("scale", ["per-width", "base"])
@torch.no_grad()
def test_every_layer_is_the_native_one(fields: Fields, scale: str) -> None:
    model = prism(**fields, attention_scale=scale).double()
    native = model.config.native
    x = torch.randn(2, 9, 96, dtype=torch.float64)
    tables = model.model.rotary_tables(torch.arange(9)[None])
    for heads, width, layer in zip(
        native.schedule.heads, native.head_dims, model.model.layers, strict=True
    ):
        assert isinstance(layer, PrismDecoderLayer)
        assert isinstance(layer, GradientCheckpointingLayer)
        twin = Layer(native, heads).double()
        for ours, theirs in LAYER_NAMES.items():
            parts = [layer.get_submodule(name).get_parameter("weight") for name in theirs]
            twin.get_submodule(ours).get_parameter("weight").copy_(torch.cat(parts))
        expected = twin(x, tables[width], causal_attention)
        torch.testing.assert_close(layer(x, position_embeddings=tables[width]), expected)


@torch.no_grad()
def test_attention_may_come_back_flat_as_from_vllm() -> None:
    def flat(module: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Any:
        return causal_attention(q, k, v).transpose(1, 2).flatten(0, 1).flatten(1), None

    Registry.register("flat", flat)
    model = prism(head_schedule="2x1 12x2")
    text = torch.arange(3, 12)[None]
    expected = model(text).logits
    model.config._attn_implementation = "flat"
    torch.testing.assert_close(model(text).logits, expected)
