"""How long a training step should take on a GPU: counted FLOPs and bytes over assumed rates.

Nothing here was measured on a GPU. Rates are what large kernels reach on an H100 by common report;
bytes and launches were counted in the code that torch's compiler generates for one. The function
``step_parts`` says it for this code and for how it was before, so that a change shows as a number.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from prism_transformer.models.cost import parameters
from prism_transformer.recipe import Recipe

PRODUCTS = 600e12  # FLOP/s of large bfloat16 products
ATTENTION = 300e12  # FLOP/s of fused attention, forward and backward
MEMORY = 3e12  # bytes/s of the GPU's memory
LAUNCH = 1e-6  # seconds of a small kernel that does next to nothing
WAIT = 0.7e-3  # seconds in which the GPU has nothing to do, for each wait of the CPU
PINNED = 20e9  # bytes/s from the GPU into pinned memory
SAVING = 0.38e9  # bytes/s into plain memory, written, hashed and read back, one after the other

# Counted in the generated code of one layer of the small model, over 32 x 1024 tokens; it grows
# with d_model, since d_ff is 8 / 3 of it at all scales.
LAYER_BYTES = 3.67e9 / (32 * 1024 * 768)  # per token and channel
ROTATION_BYTES = 0.30e9 / (32 * 1024 * 768)  # of that, for heads that came first too early
# Passes over (tokens x vocabulary) logits in bytes per logit.
CHUNKED_BYTES = 100e9 / (32 * 1024 * 50_304)
PLAIN_BYTES = 10e9 / (32 * 1024 * 50_304)
CHUNK_LAUNCHES = 34  # of each chunk of the chunked loss, forward and backward
ADAMW_BYTES = 40  # per parameter: norm 4, clip 8, AdamW 28


@dataclass(frozen=True)
class Parts:
    """Milliseconds of one step on one of several GPUs."""

    products: float
    attention: float
    elementwise: float
    loss: float
    rest: float
    """clip, AdamW, casts of weights, waits of the CPU"""
    checkpoints: float
    """what training waits for them, per step"""

    @property
    def total(self) -> float:
        return sum(astuple(self))


def step_parts(recipe: Recipe, n_devices: int = 8, *, before: bool = False) -> Parts:
    """A step of a recipe; ``before`` as it was with a chunked loss and checkpoints in between.

    Exchanges of gradients are taken to hide behind the backward pass.
    """
    config, counts = recipe.model, parameters(recipe.model)
    tokens = recipe.train.batch_tokens // n_devices
    layer_bytes = LAYER_BYTES - (0 if before else ROTATION_BYTES)
    channels = tokens * config.d_model * config.n_layers
    passes = recipe.accumulation(n_devices) or 1
    casts = 6 * passes * counts.matrices  # read in float32, written in bfloat16
    state = 12 * counts.total  # bytes of a checkpoint
    seconds = Parts(
        products=6 * tokens * (counts.attention + counts.mlp) / PRODUCTS,
        # Forward 2 T d a token, as half of the scores are masked; backward 2.5 times that.
        attention=7 * channels * config.seq_len / ATTENTION,
        elementwise=channels * layer_bytes / MEMORY,
        loss=_loss_seconds(recipe, tokens, before),
        rest=(ADAMW_BYTES * counts.total + casts) / MEMORY + WAIT * (3 if before else 1),
        checkpoints=state / (SAVING if before else PINNED) / recipe.run.checkpoint_every,
    )
    return Parts(*(1e3 * each for each in astuple(seconds)))


def _loss_seconds(recipe: Recipe, tokens: int, before: bool) -> float:
    config = recipe.model
    logits = tokens * config.vocab_rows
    product = 2 * logits * config.d_model / PRODUCTS
    if not before:
        return 3 * product + logits * PLAIN_BYTES / MEMORY
    launches = CHUNK_LAUNCHES * tokens / _chunk_rows(recipe)
    return 4 * product + logits * CHUNKED_BYTES / MEMORY + launches * LAUNCH


def _chunk_rows(recipe: Recipe) -> int:
    """Rows of a chunk as torch chose them: half the power of two at which logits match inputs."""
    config = recipe.model
    rows = recipe.train.micro_batch * config.seq_len
    matching = -(-rows // -(-config.vocab_rows // config.d_model))
    return 1 << (matching - 1).bit_length() >> 1


def tokens_per_second(recipe: Recipe, *, before: bool = False) -> float:
    """Of eight GPUs together, by these estimates."""
    return 1e3 * recipe.train.batch_tokens / step_parts(recipe, before=before).total
