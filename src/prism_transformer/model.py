"""The Prism Transformer: the paper's Algorithm 1, once.

Shapes: B batch, T positions, S positions attended to, D model width, H heads of one layer,
G key-value heads of one layer, K width of one head, F inner width of SwiGLU, V vocabulary.

No model-wide H or K exists: each layer is handed its own number of heads. What a layer does with
q, k and v is the ``attend`` function's business, so that measuring attention needs no flag here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from prism_transformer.core.loss import chunked_loss
from prism_transformer.recipe import ROPE_BASE, ModelConfig
from prism_transformer.schedule import HeadSchedule, ScheduleError

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Remember = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


class Cache(Protocol):
    """Keys and values of earlier positions: ``models/sampling.py`` has one, Hugging Face others."""

    def update(self, k: Tensor, v: Tensor, layer: int, /) -> tuple[Tensor, Tensor]:
        """Append k and v, each (B, G, T, K), and return the layer's whole (B, G, S, K).

        ``causal_attention`` takes the last of S for the newest position; a cache that returns
        slots it has not filled yet needs an ``attend`` that masks them.
        """


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention (B, H, T, K) in which the last query sees every key."""
    queries, keys = q.shape[-2], k.shape[-2]
    mask = None
    if 1 < queries < keys:  # several new positions behind a cache
        mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    causal = bool(1 < queries == keys)  # under export the comparison is a symbol
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=grouped)


def bidirectional_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention (B, H, T, K) in which every query sees every key."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


ATTENTION: dict[str, Attend] = {
    "causal": causal_attention,
    "bidirectional": bidirectional_attention,
}  # by what a recipe calls it


def rotary_frequencies(
    config: ModelConfig, n_heads: int, device: torch.device | None = None
) -> Tensor:
    """Radians per position of each channel pair, in a layer of so many heads: (K / 2,).

    Two controls tell the width of a head from its frequencies. ``tiled`` repeats those of the base
    width, so that a wide head turns no pair at a speed that a narrow one does not have. ``split``
    gives heads different ones, (H + G, 1, K / 2) for queries and keys: together they turn at the
    speeds of one head as wide as all of them.
    """
    width = rotary_width(config, n_heads)
    return dealt(config, n_heads, pair_frequencies(width, config.rope_base, device))


def rotary_width(config: ModelConfig, n_heads: int) -> int:
    """Channels over which the frequencies of a layer are spread: a head's, or a control's."""
    widths = {"tiled": config.base_width, "split": config.d_kv}
    return widths.get(config.rope_frequencies, config.d_model // n_heads)


def dealt(config: ModelConfig, n_heads: int, frequencies: Tensor) -> Tensor:
    """The frequencies of a rotary width as the heads of a layer have them."""
    if config.rope_frequencies == "split":
        n_kv_heads = n_heads // config.queries_per_kv
        keys = frequencies.unflatten(0, (-1, n_kv_heads)).T  # every head from the fast to the slow
        queries = keys.repeat_interleave(config.queries_per_kv, dim=0)  # as the keys they meet
        return torch.cat((queries, keys))[:, None]
    n_pairs = config.d_model // n_heads // 2
    return frequencies[torch.arange(n_pairs, device=frequencies.device) % len(frequencies)]


def pair_frequencies(width: int, base: float, device: torch.device | None = None) -> Tensor:
    """Radians per position of each channel pair of a head, from fast to slow: (width / 2,)."""
    pairs = torch.arange(0, width, 2, dtype=torch.float32, device=device)
    return 1.0 / base ** (pairs / width)


def rotary_table(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Cosines and sines of every angle, stacked: (2, ..., T, K / 2), in float32.

    bfloat16 frequencies would be off by whole radians at position 1000; cast the table instead.
    """
    angles = positions[..., None].float() * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def rotary_tables(positions: Tensor, frequencies: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """A table for each head width, at positions (T,) or (B, T).

    Computed anew in each pass: that costs almost nothing, and there is no buffer to move or lose.
    """
    if positions.dim() == 2:
        positions = positions[:, None]  # (B, T) -> (B, 1, T), broadcast over heads
    return {width: rotary_table(positions, each) for width, each in frequencies.items()}


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn each channel pair (i, i + K/2) of x (..., K) by the angle that the table has for it."""
    cos, sin = table.to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Linear(nn.Linear):
    """A matrix without bias. ``PrismLM.init_weights`` fills it, so construction draws nothing."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__(d_in, d_out, bias=False)

    def reset_parameters(self) -> None:
        """Leave the weight unset."""


class Embedding(nn.Embedding):
    """A token table, also left to ``PrismLM.init_weights``."""

    def reset_parameters(self) -> None:
        """Leave the weight unset."""


def make_norm(config: ModelConfig) -> nn.RMSNorm | nn.LayerNorm:
    """One weight for each channel, whichever norm the recipe names."""
    if config.norm == "layernorm":
        return nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=False)
    return nn.RMSNorm(config.d_model, eps=config.norm_eps)


class Attention(nn.Module):
    """Attention with this layer's number of heads; its weights do not depend on that number.

    It stands alone as well: ``Attention(768, 12)(x)``.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        queries_per_kv: int = 1,
        base_width: int | None = None,
        rope_base: float = ROPE_BASE,
        *,
        unset: bool = False,
    ) -> None:
        """``unset`` leaves the weights to ``PrismLM.init_weights``."""
        super().__init__()
        (self.head_dim,) = HeadSchedule((n_heads,)).head_dims(d_model)
        if n_heads % queries_per_kv:
            raise ScheduleError(f"queries_per_kv = {queries_per_kv}: does not divide {n_heads=}")
        self.n_heads = n_heads
        self.base_width = base_width
        self.rope_base = rope_base
        self.n_kv_heads = n_heads // queries_per_kv
        self.qkv = Linear(d_model, d_model + 2 * (d_model // queries_per_kv))
        self.out = Linear(d_model, d_model)
        if not unset:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both matrices as torch draws those of any linear layer."""
        for matrix in (self.qkv, self.out):
            nn.Linear.reset_parameters(matrix)

    def extra_repr(self) -> str:
        """What ``print`` says of it."""
        shared = f", {self.n_kv_heads} of keys and values"
        own = self.n_kv_heads == self.n_heads
        return f"{self.n_heads} heads of {self.head_dim}{'' if own else shared}"

    def forward(
        self,
        x: Tensor,
        table: Tensor | None = None,
        attend: Attend = causal_attention,
        remember: Remember | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D); ``table`` is the rotary table of this layer's head width.

        Left out, positions count from 0: behind a cache give ``rotary_table(positions)``.
        """
        if table is None:
            table = self.rotary_table(torch.arange(x.shape[1], device=x.device))
        q, k, v = self.project(x, table)
        if remember is not None:
            k, v = remember(k, v)
        y = attend(q, k, v)
        return self.out(y.transpose(1, 2).flatten(-2))  # (B, H, T, K) -> (B, T, D)

    def rotary_table(self, positions: Tensor) -> Tensor:
        """The table of this layer's head width, at positions (T,) or (B, T)."""
        frequencies = pair_frequencies(self.head_dim, self.rope_base, positions.device)
        return rotary_tables(positions, {self.head_dim: frequencies})[self.head_dim]

    def project(self, x: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries (B, H, T, K), rotated keys and plain values (B, G, T, K)."""
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim))  # (B, T, heads, K)
        # Of the heads that are here: tensor parallelism gives each process a part of them.
        n_kv = heads.shape[2] * self.n_kv_heads // (self.n_heads + 2 * self.n_kv_heads)
        qk, v = heads.split((heads.shape[2] - n_kv, n_kv), dim=2)
        # Turned as it lies in memory; heads come first only as a view. Attention's backward pass
        # then writes gradients in the layout that this one reads, without a copy between them.
        by_head = table[:, None] if table.dim() == 3 else table  # (2, [B,] H or 1, T, K / 2)
        turned = rotate(qk, by_head.transpose(-3, -2))
        q, k = turned.transpose(1, 2).split((turned.shape[2] - n_kv, n_kv), dim=1)
        if self.base_width is not None:
            # Adam moves every channel of a head in step, so the logit of a head K wide moves as
            # K / sqrt(K) under attention's own scale. This leaves sqrt(base width) for all.
            q = q * (self.base_width / q.shape[-1]) ** 0.5
        # A copy of v: a view would keep all of qkv in memory for the backward pass.
        return q, k, v.contiguous().transpose(1, 2)


class SwiGLU(nn.Module):
    """The gated feed-forward half of a layer."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate_up = Linear(d_model, 2 * d_ff)
        self.down = Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Layer(nn.Module):
    """Attention, then SwiGLU, each behind a norm and added to the stream."""

    def __init__(self, config: ModelConfig, n_heads: int) -> None:
        super().__init__()
        base_width = config.base_width if config.attention_scale == "base" else None
        self.attention_norm = make_norm(config)
        self.attention = Attention(
            config.d_model, n_heads, config.queries_per_kv, base_width, config.rope_base, unset=True
        )
        self.mlp_norm = make_norm(config)
        self.mlp = SwiGLU(config.d_model, config.d_ff)

    def forward(
        self, x: Tensor, table: Tensor, attend: Attend, remember: Remember | None = None
    ) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.attention(self.attention_norm(x), table, attend, remember)
        return x + self.mlp(self.mlp_norm(x))


class PrismLM(nn.Module):
    """A language model, causal or masked, whose layers follow a head schedule."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.head_dims = config.schedule.head_dims(config.d_model)
        self.activation_checkpointing = False
        self.training_loss: Loss = chunked_loss  # a GPU has a faster one: training/device.py
        self.embedding = Embedding(config.vocab_rows, config.d_model)
        self.layers = nn.ModuleList(Layer(config, n_heads) for n_heads in config.schedule.heads)
        self.norm = make_norm(config)
        # The last to be made and so to be drawn: all other weights are those of the tied model.
        self.lm_head = None if config.tied_embeddings else Linear(config.d_model, config.vocab_rows)
        self.init_weights(seed)

    def extra_repr(self) -> str:
        """The first line of ``print(model)``; each layer then says its heads and their width."""
        size = sum(weight.numel() for weight in self.parameters())
        return f"{self.config.schedule} heads, {size / 1e6:.2f}M parameters"

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        attend: Attend | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of the token after each of ``tokens`` (B, T); with ``targets`` the loss.

        Of a bidirectional model they are logits of the tokens themselves, where they are masked.

        The loss is the mean cross entropy in nats over targets other than -100; it comes out of
        the model itself, so that whatever wraps the model sees training pass through.
        ``positions`` is (T,), or (B, T) where sequences start apart; left out it counts from 0, so
        a call with a filled cache must give it.
        """
        x = self.hidden(self.embedding(tokens), positions=positions, attend=attend, cache=cache)
        if targets is None:
            return self.logits(x)
        if tokens.shape != targets.shape:
            raise ValueError(f"tokens {tuple(tokens.shape)} and targets {tuple(targets.shape)}")
        loss = self.training_loss if self.training else chunked_loss
        return loss(x.flatten(0, 1), self.scoring, targets.flatten())

    def logits(self, x: Tensor) -> Tensor:
        """Scores of every token (..., V) from the last hidden states (..., D)."""
        return F.linear(x, self.scoring)

    @property
    def scoring(self) -> Tensor:
        """The matrix (V, D) that scores tokens: the embedding, unless the model has another."""
        return self.embedding.weight if self.lm_head is None else self.lm_head.weight

    def hidden(
        self,
        x: Tensor,
        *,
        positions: Tensor | None = None,
        tables: Mapping[int, Tensor] | None = None,
        attend: Attend | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Run embedded tokens (B, T, D) through all layers and the last norm.

        ``tables`` are the rotary tables of the positions, for a caller that has them already;
        ``attend`` stands in for the attention that the config names.
        """
        attend = attend or ATTENTION[self.config.attention]
        if tables is None:
            if positions is None:
                positions = torch.arange(x.shape[1], device=x.device)
            tables = self.rotary_tables(positions)
        for index, layer in enumerate(self.layers):
            table = tables[self.head_dims[index]]
            if self.activation_checkpointing and self.training and cache is None:
                x = checkpoint(layer, x, table, attend, use_reentrant=False)
            else:
                x = layer(x, table, attend, remember_in(cache, index))
        return self.norm(x)

    def rotary_tables(self, positions: Tensor) -> dict[int, Tensor]:
        """One table per distinct head width, shared by the layers of that width."""
        heads = dict(zip(self.head_dims, self.config.schedule.heads, strict=True))
        frequencies = {
            width: rotary_frequencies(self.config, n_heads, positions.device)
            for width, n_heads in heads.items()
        }
        return rotary_tables(positions, frequencies)

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Fill every weight; the same seed gives the same bits for every schedule and device.

        embedding, qkv, gate_up   normal, init_std; also lm_head, where there is one
        out, down                 normal, init_std / sqrt(2 n_layers): they add to the stream
        norms                     one
        """
        if self.embedding.weight.is_meta:
            return
        draw = torch.Generator().manual_seed(seed)  # on the CPU: devices draw differently
        std = self.config.init_std
        residual_std = std / (2 * self.config.n_layers) ** 0.5
        for name, weight in self.named_parameters():
            if weight.dim() == 1:
                weight.fill_(1.0)
            else:
                scale = residual_std if name.endswith(("out.weight", "down.weight")) else std
                weight.copy_(torch.randn(weight.shape, generator=draw) * scale)


def remember_in(cache: Cache | None, layer: int) -> Remember | None:
    """How a layer keeps its keys and values, if there is a cache to keep them in."""
    return None if cache is None else lambda k, v: cache.update(k, v, layer)
