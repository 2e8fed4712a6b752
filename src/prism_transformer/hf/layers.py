"""One layer as tools expect it: Llama's names, one matrix each; the maths is ``model.py``'s.

Shapes: B batch, T positions, S positions attended to, D model width, H heads of one layer,
G key-value heads of one layer, K width of one head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from prism_transformer.hf.configuration_prism import PrismConfig
from prism_transformer.model import Attention, Layer, SwiGLU, make_norm, remember_in


class AttentionInterface(nn.Module):
    """The attention function that the config asks for, with this layer's own head counts.

    A module without weights: transformers' functions read its attributes, and its hooks record
    the attention weights that come out of it.
    """

    def __init__(self, config: PrismConfig, layer_idx: int, head_dim: int) -> None:
        super().__init__()
        self.config = config
        self.is_causal = config.attention == "causal"
        self.layer_idx = layer_idx
        self.head_dim = head_dim
        self.scaling = head_dim**-0.5
        self.num_key_value_groups = config.queries_per_kv

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attended values (B, T, H, K), and the weights (B, H, T, S) where they are computed."""
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        y, weights = attention(self, q, k, v, mask, dropout=0.0, scaling=self.scaling, **kwargs)
        # Some return (T, H x K), vLLM's among them.
        return y.reshape(q.shape[0], q.shape[2], q.shape[1], q.shape[3]), weights


class PrismAttention(Attention):
    """The native attention, its first matrix in three parts: tools look for them by name."""

    def __init__(self, config: PrismConfig, layer_idx: int) -> None:
        native = config.native
        heads = native.schedule.heads[layer_idx]
        base_width = native.base_width if native.attention_scale == "base" else None
        super().__init__(native.d_model, heads, native.queries_per_kv, base_width, unset=True)
        del self.qkv, self.out  # from here on the methods below
        self.q_proj = nn.Linear(native.d_model, native.d_model, bias=False)
        self.k_proj = nn.Linear(native.d_model, native.d_kv, bias=False)
        self.v_proj = nn.Linear(native.d_model, native.d_kv, bias=False)
        self.o_proj = nn.Linear(native.d_model, native.d_model, bias=False)
        self.o_proj.adds_to_stream = True  # type: ignore[assignment]  # for its first weights
        self.interface = AttentionInterface(config, layer_idx, native.d_model // heads)

    def qkv(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Queries, keys and values side by side, as the native matrix gives them."""
        return torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), dim=-1)

    def out(self, y: Tensor) -> Tensor:  # type: ignore[override]
        """Onto the stream."""
        return self.o_proj(y)


class PrismMLP(SwiGLU):
    """The native feed-forward, its first matrix in two parts."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__(d_model, d_ff)
        del self.gate_up, self.down
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)
        self.down_proj.adds_to_stream = True  # type: ignore[assignment]

    def gate_up(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Gate and up side by side."""
        return torch.cat((self.gate_proj(x), self.up_proj(x)), dim=-1)

    def down(self, y: Tensor) -> Tensor:  # type: ignore[override]
        """Onto the stream."""
        return self.down_proj(y)


class PrismDecoderLayer(GradientCheckpointingLayer, Layer):
    """The native layer, its parts under Llama's names."""

    mlp: PrismMLP

    def __init__(self, config: PrismConfig, layer_idx: int) -> None:
        nn.Module.__init__(self)  # for the parts that ``Layer`` would make have other names here
        native = config.native
        self.layer_idx = layer_idx
        self.self_attn = PrismAttention(config, layer_idx)
        self.mlp = PrismMLP(native.d_model, native.d_ff)
        self.input_layernorm = make_norm(native)
        self.post_attention_layernorm = make_norm(native)

    # What the native forward calls them.
    attention = property(lambda self: self.self_attn)
    attention_norm = property(lambda self: self.input_layernorm)
    mlp_norm = property(lambda self: self.post_attention_layernorm)

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D); ``position_embeddings`` is the rotary table of its width."""
        interface = self.self_attn.interface

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return interface(q, k, v, attention_mask, **kwargs)[0].transpose(1, 2)

        remember = remember_in(past_key_values, self.layer_idx)
        return Layer.forward(self, hidden_states, position_embeddings, attend, remember)
