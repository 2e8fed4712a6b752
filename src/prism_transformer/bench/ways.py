"""What is measured: a training step, a forward pass over a prompt, decoding, attention alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prism_transformer.bench.rounds import Way
from prism_transformer.model import (
    Layer,
    PrismLM,
    causal_attention,
    rotary_frequencies,
    rotary_table,
)
from prism_transformer.recipe import ModelConfig
from prism_transformer.sampling import generate
from prism_transformer.schedule import HeadSchedule
from prism_transformer.train.device import Settings


def some_tokens(config: ModelConfig, batch: int, length: int, device: torch.device) -> Tensor:
    """Random tokens (B, T), the same every time."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(config.vocab_size, (batch, length), generator=draw).to(device)


def take_schedule(model: PrismLM, schedule: HeadSchedule) -> None:
    """Give a model another schedule in place, with the weights it has.

    Weights do not depend on it; this way two schedules of a large model need the memory of one.
    """
    config = model.config.model_copy(update={"schedule": schedule})
    model.config = config
    model.head_dims = schedule.head_dims(config.d_model)
    for layer, n_heads in zip(model.layers, schedule.heads, strict=True):
        attention = layer.get_submodule("attention")
        attention.n_heads = n_heads  # type: ignore[assignment]
        attention.n_kv_heads = n_heads // config.queries_per_kv  # type: ignore[assignment]


def with_schedule(model: PrismLM, schedule: HeadSchedule, way: Way) -> Way:
    """The same way, the model under another schedule."""

    def run() -> None:
        take_schedule(model, schedule)
        way()

    return run


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Way, settings: Settings
) -> Way:
    """Forward, loss, backward, clip, update."""

    def step() -> None:
        with settings.autocast():
            value = loss()
        assert isinstance(value, Tensor)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        wait_for(settings.device)

    return step


def prefill(model: PrismLM, tokens: Tensor, settings: Settings) -> Way:
    """A forward pass over a prompt, to the scores of the next token."""

    @torch.inference_mode()
    def run() -> None:
        with settings.autocast():
            x = model.hidden(model.embedding(tokens))
            model.logits(x[:, -1])
        wait_for(settings.device)

    return run


def decode(model: PrismLM, prompt: Tensor, n_new: int, settings: Settings) -> Way:
    """Greedy decoding after a prompt."""

    def run() -> None:
        with settings.autocast():
            generate(model, prompt, n_new, temperature=0.0)
        wait_for(settings.device)

    return run


def attention(
    n_heads: int, width: int, batch: int, length: int, settings: Settings, backward: bool
) -> Way:
    """Attention of one layer, with its gradients if asked."""
    dtype = torch.bfloat16 if settings.precision == "bf16" else settings.dtype
    shape = (batch, n_heads, length, width)
    q, k, v = (
        torch.randn(shape, device=settings.device, dtype=dtype, requires_grad=backward)
        for _ in range(3)
    )

    def run() -> None:
        y = causal_attention(q, k, v)
        if backward:
            torch.autograd.grad(y.sum(), (q, k, v))
        wait_for(settings.device)

    return run


def layer(config: ModelConfig, n_heads: int, batch: int, length: int, settings: Settings) -> Way:
    """A whole layer with that many heads, forward and backward."""
    part = Layer(config, n_heads).to(settings.device, settings.dtype)
    for weight in part.parameters():
        torch.nn.init.normal_(weight, std=config.init_std)
    x = torch.randn(batch, length, config.d_model, device=settings.device, dtype=settings.dtype)
    frequencies = rotary_frequencies(
        config.d_model // n_heads, config.rope_base, device=settings.device
    )
    table = rotary_table(torch.arange(length, device=settings.device), frequencies)

    def run() -> None:
        with settings.autocast():
            y = part(x, table, causal_attention)
        torch.autograd.grad(y.sum(), list(part.parameters()))
        wait_for(settings.device)

    return run


def wait_for(device: torch.device) -> None:
    """Until the device has done what it was given; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_rate(settings: Settings, size: int = 2048) -> Way:
    """A square matrix product, for the rate that everything else is measured against."""
    dtype = torch.bfloat16 if settings.precision == "bf16" else settings.dtype
    a, b = (torch.randn(size, size, device=settings.device, dtype=dtype) for _ in range(2))

    def run() -> None:
        torch.mm(a, b)
        wait_for(settings.device)

    return run


def matmul_flops(size: int = 2048) -> int:
    """Of that product."""
    return 2 * size**3
