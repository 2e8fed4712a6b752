"""What a model costs, in closed form: parameters, FLOPs, memory, time.

None of it depends on the schedule, but for one small tensor of the activations. Tests hold each
formula against the real model; ``neutrality.py`` does it for any two schedules.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from prism_transformer.recipe import ModelConfig, Precision, Recipe

FLOAT32_BYTES = 4
# Where the device decides, the more: auto is float32 on a CPU.
MATMUL_BYTES: dict[Precision, int] = {"bf16": 2, "auto": 4, "fp32": 4, "fp64": 8}


@dataclass(frozen=True)
class Parameters:
    """Parameter counts; a tied embedding is counted once."""

    embedding: int
    lm_head: int
    """the matrix that scores tokens, where that is not the embedding"""
    attention: int
    mlp: int
    norms: int

    @property
    def matrices(self) -> int:
        """Parameters that take part in a matrix product for every token."""
        return (self.lm_head or self.embedding) + self.attention + self.mlp

    @property
    def active(self) -> int:
        """All but an embedding in which tokens are only looked up."""
        return self.matrices + self.norms

    @property
    def total(self) -> int:
        return self.embedding + self.lm_head + self.attention + self.mlp + self.norms


def parameters(config: ModelConfig) -> Parameters:
    d, n_layers = config.d_model, config.n_layers
    return Parameters(
        embedding=config.vocab_rows * d,
        lm_head=0 if config.tied_embeddings else config.vocab_rows * d,
        attention=n_layers * (d * (d + 2 * config.d_kv) + d * d),
        mlp=n_layers * 3 * d * config.d_ff,
        norms=(2 * n_layers + 1) * d,
    )


def size_text(n_parameters: int) -> str:
    """How large a model is, wherever one is named: 0.47M, 2.1M, 124M."""
    millions = n_parameters / 1e6
    return f"{millions:.{2 if millions < 1 else 1 if millions < 10 else 0}f}M"


def tokens_per_parameter(recipe: Recipe) -> float:
    """Training tokens, in whole steps, for each parameter."""
    return recipe.n_steps * recipe.train.batch_tokens / parameters(recipe.model).total


@dataclass(frozen=True)
class Flops:
    """Floating point operations per token; a multiply-add is two."""

    matrices: int
    attention: int

    @property
    def total(self) -> int:
        return self.matrices + self.attention


def forward_flops(config: ModelConfig, seq_len: int) -> Flops:
    """One pass over a sequence, per token. Attention as a full square, as kernels are counted."""
    # h heads of width d/h: every query-key product and every weighted value is 2 h (d/h) = 2 d.
    square = 4 * config.n_layers * config.d_model * seq_len
    return Flops(matrices=2 * parameters(config).matrices, attention=square)


def backward_flops(config: ModelConfig, seq_len: int) -> Flops:
    """The gradients of inputs and of weights: each product of the forward pass twice."""
    forward = forward_flops(config, seq_len)
    return Flops(matrices=2 * forward.matrices, attention=2 * forward.attention)


def utilisation_flops(config: ModelConfig, seq_len: int) -> int:
    """6 N + 12 L d T per token: the customary numerator of model FLOPs utilisation.

    N is without an embedding in which tokens are only looked up: that costs nothing.
    """
    return 6 * parameters(config).active + 12 * config.n_layers * config.d_model * seq_len


def needed_flops(config: ModelConfig, seq_len: int) -> int:
    """The same with only the scores that are needed: all of an encoder's, else the lower triangle.

    That is (T + 1) / 2 keys for a query in the mean.
    """
    twice = 2 * seq_len if config.attention == "bidirectional" else seq_len + 1
    return 6 * parameters(config).active + 6 * config.n_layers * config.d_model * twice


def kv_bytes(config: ModelConfig, n_positions: int, value_bytes: int = 2) -> int:
    """Key-value cache of one sequence: heads x width is d_kv in every layer."""
    return 2 * config.n_layers * config.d_kv * n_positions * value_bytes


@dataclass(frozen=True)
class Memory:
    """Bytes on one device in training."""

    weights: int
    gradients: int
    optimizer: int
    casts: int
    activations: int
    loss: int

    @property
    def total(self) -> int:
        """Of all of it; kernels need scratch memory on top."""
        return sum(astuple(self))


def memory(recipe: Recipe) -> Memory:
    """One device's training memory: float32 weights, gradients and both AdamW moments."""
    counts = parameters(recipe.model)
    config, train = recipe.model, recipe.train
    mixed = train.precision == "bf16"
    # The chunked loss holds the gradients of its two inputs, or in bfloat16 their casts.
    loss_rows = train.micro_batch * config.seq_len + config.vocab_rows
    return Memory(
        weights=FLOAT32_BYTES * counts.total,
        gradients=FLOAT32_BYTES * counts.total,
        optimizer=2 * FLOAT32_BYTES * counts.total,
        casts=MATMUL_BYTES["bf16"] * (counts.attention + counts.mlp) if mixed else 0,
        activations=activation_bytes(recipe),
        loss=MATMUL_BYTES[train.precision] * config.d_model * loss_rows,
    )


def activation_bytes(recipe: Recipe) -> int:
    """What one pass through the layers saves for the backward, without the rotary tables.

    Exact for unfused norms; where torch fuses them it saves two d_model per layer less.
    """
    config, d = recipe.model, recipe.model.d_model
    value = MATMUL_BYTES[recipe.train.precision]
    # In float32: both norms' input and normalised input, and their scales.
    norms = FLOAT32_BYTES * (4 * d + 2)
    # In the precision of matmuls: both norms' outputs; q and k after rotation, and v; the attended
    # values; gate and up, the activated gate, and their product.
    products = value * (4 * d + 2 * config.d_kv + 4 * config.d_ff)
    layers = [norms + products + FLOAT32_BYTES * n_heads for n_heads in config.schedule.heads]
    saved = sum(layers)
    if recipe.train.activation_checkpointing:  # the stream between layers, and one layer at a time
        saved = FLOAT32_BYTES * d * config.n_layers + max(layers)
    last_norm = FLOAT32_BYTES * (2 * d + 1)
    return recipe.train.micro_batch * config.seq_len * (saved + last_norm)


def hours(tokens: int, tokens_per_second: float) -> float:
    """Wall-clock time at a given rate."""
    return tokens / tokens_per_second / 3600


def token_rate(flops_per_token: int, peak_flops: float, utilisation: float) -> float:
    """Tokens per second of hardware with this peak, at this utilisation."""
    return peak_flops * utilisation / flops_per_token
