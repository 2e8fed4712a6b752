"""The Prism Transformer: the paper's Algorithm 1, once.

Shapes: B batch, T positions, S positions attended to, D model width, H heads of one layer,
G key-value heads of one layer, K width of one head, F inner width of SwiGLU, V vocabulary.

No model-wide H or K exists: each layer is handed its own number of heads. What a layer does with
q, k and v is the ``attend`` function's business, so that measuring attention needs no flag here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import LinearCrossEntropyOptions
from torch.utils.checkpoint import checkpoint

from prism_transformer.recipe import ModelConfig

IGNORED = -100  # a target that does not count, as torch has it
MIN_SLABBED = 1 << 17  # entries of a matrix below which spreading one row over cores costs more

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Remember = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Cache(Protocol):
    """Keys and values of earlier positions: ours in ``sampling.py``, or one of Hugging Face's."""

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
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=1 < queries == keys,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def rotary_frequencies(
    head_dim: int,
    rope_base: float,
    period: int | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Radians per position of each channel pair: (K / 2,).

    ``period`` repeats the frequencies of a head that wide, so that a wider head turns no pair at
    a speed the narrow one does not have.
    """
    width = period or head_dim
    pairs = torch.arange(0, width, 2, dtype=torch.float32, device=device)
    frequencies = 1.0 / rope_base ** (pairs / width)
    return frequencies[torch.arange(head_dim // 2, device=device) % len(frequencies)]


def rotary_table(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Cosines and sines of every angle, stacked: (2, ..., T, K / 2), in float32.

    bfloat16 frequencies would be off by whole radians at position 1000; cast the table instead.
    """
    angles = positions[..., None].float() * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def rotary_tables(positions: Tensor, frequencies: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """A table for each head width, at positions (T,) or (B, T).

    Computed anew in each pass: it costs almost nothing, and there is no buffer to move, cast, save
    or lose.
    """
    if positions.dim() == 2:
        positions = positions[:, None]  # (B, T) -> (B, 1, T), broadcast over heads
    return {width: rotary_table(positions, each) for width, each in frequencies.items()}


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn each channel pair (i, i + K/2) of x (B, H, T, K) by its position's angle."""
    cos, sin = table.to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Linear(nn.Linear):
    """A matrix without bias. ``PrismLM.init_weights`` fills it, so construction draws nothing."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__(d_in, d_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., d_out)."""
        return multiply(x, self.weight)

    def reset_parameters(self) -> None:
        """Leave the weight unset."""


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """X (..., K) times weight (N, K) transposed.

    One row through a matrix, which is what decoding does, runs on one core of a CPU; the same
    product in slabs of rows runs on all of them and takes two thirds of the time.
    """
    if x.numel() > x.shape[-1] or weight.numel() < MIN_SLABBED or torch.is_grad_enabled():
        return F.linear(x, weight)
    slabs = torch.get_num_threads()
    if x.device.type != "cpu" or weight.shape[0] % slabs:
        return F.linear(x, weight)
    row = x.reshape(1, 1, -1).expand(slabs, 1, -1)
    return torch.bmm(row, weight.unflatten(0, (slabs, -1)).mT).view(*x.shape[:-1], -1)


class Embedding(nn.Embedding):
    """A token table, also left to ``PrismLM.init_weights``."""

    def reset_parameters(self) -> None:
        """Leave the weight unset."""


class Attention(nn.Module):
    """Attention with this layer's number of heads; its weights do not depend on that number."""

    def __init__(self, d_model: int, n_heads: int, queries_per_kv: int = 1) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_heads // queries_per_kv
        self.qkv = Linear(d_model, d_model + 2 * (d_model // queries_per_kv))
        self.out = Linear(d_model, d_model)

    def forward(
        self, x: Tensor, table: Tensor, attend: Attend, remember: Remember | None = None
    ) -> Tensor:
        """(B, T, D) -> (B, T, D); ``table`` is the rotary table of this layer's head width."""
        q, k, v = self.project(x, table)
        if remember is not None:
            k, v = remember(k, v)
        y = attend(q, k, v)
        return self.out(y.transpose(1, 2).flatten(-2))  # (B, H, T, K) -> (B, T, D)

    def project(self, x: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries (B, H, T, K), rotated keys and plain values (B, G, T, K)."""
        n_qk = self.n_heads + self.n_kv_heads
        heads = self.qkv(x).unflatten(-1, (n_qk + self.n_kv_heads, -1)).transpose(1, 2)
        qk, v = heads.split((n_qk, self.n_kv_heads), dim=1)
        q, k = rotate(qk, table).split((self.n_heads, self.n_kv_heads), dim=1)
        # A copy of v: a view would keep all of qkv in memory for the backward pass.
        return q, k, v.contiguous()


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
        self.attention_norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.attention = Attention(config.d_model, n_heads, config.queries_per_kv)
        self.mlp_norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.mlp = SwiGLU(config.d_model, config.d_ff)

    def forward(
        self, x: Tensor, table: Tensor, attend: Attend, remember: Remember | None = None
    ) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.attention(self.attention_norm(x), table, attend, remember)
        return x + self.mlp(self.mlp_norm(x))


class PrismLM(nn.Module):
    """A causal language model whose layers follow a head schedule."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.head_dims = config.schedule.head_dims(config.d_model)
        self.activation_checkpointing = False
        self.embedding = Embedding(config.vocab_rows, config.d_model)
        self.layers = nn.ModuleList(Layer(config, n_heads) for n_heads in config.schedule.heads)
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.init_weights(seed)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        attend: Attend = causal_attention,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of the token after each of ``tokens`` (B, T); with ``targets`` the loss.

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
        return chunked_loss(x.flatten(0, 1), self.embedding.weight, targets.flatten())

    def logits(self, x: Tensor) -> Tensor:
        """Scores of every token (..., V) from the last hidden states (..., D)."""
        return multiply(x, self.embedding.weight)

    def hidden(
        self,
        x: Tensor,
        *,
        positions: Tensor | None = None,
        tables: Mapping[int, Tensor] | None = None,
        attend: Attend = causal_attention,
        cache: Cache | None = None,
    ) -> Tensor:
        """Run embedded tokens (B, T, D) through all layers and the last norm.

        ``tables`` are the rotary tables of the positions, for a caller that has them already.
        """
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
        config = self.config
        period = config.d_model // config.h_base if config.rope_frequencies == "tiled" else None
        frequencies = {
            width: rotary_frequencies(width, config.rope_base, period, positions.device)
            for width in set(self.head_dims)
        }
        return rotary_tables(positions, frequencies)

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Fill every weight; the same seed gives the same bits for every schedule and device.

        embedding, qkv, gate_up   normal, init_std
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


def fingerprint(model: nn.Module) -> str:
    """sha256 of every weight, by name: equal for models that start alike."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
        raw = weight.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()


def remember_in(cache: Cache | None, layer: int) -> Remember | None:
    """How a layer keeps its keys and values, if there is a cache to keep them in."""
    return None if cache is None else lambda k, v: cache.update(k, v, layer)


def chunked_loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of targets (N,) under hidden states x (N, D), never holding all logits."""
    device = x.device.type
    if torch.is_autocast_enabled(device):  # autocast does not know this function
        dtype = torch.get_autocast_dtype(device)
        x, weight = x.to(dtype), weight.to(dtype)
    options = _loss_options(device)
    if x.dtype in (torch.float32, torch.float64):
        return F.linear_cross_entropy(x, weight, targets, options=options)
    # A mean of bfloat16 losses is rounded to 1/64 near 3, more than the effect we measure: take
    # the mean in float32.
    losses = F.linear_cross_entropy(x, weight, targets, reduction="none", options=options)
    return losses.float().sum() / (targets != IGNORED).sum()


def _loss_options(device: str) -> LinearCrossEntropyOptions:
    """Chunks of the vocabulary product; torch's automatic choice is four times slower on a CPU."""
    if device == "cpu":
        return LinearCrossEntropyOptions(
            batch_chunk_size=512, chunking_method=None, acc_policy="compact"
        )
    return LinearCrossEntropyOptions()
