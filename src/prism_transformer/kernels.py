"""Which attention backend torch would run for a layer, asked of torch itself."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend

from prism_transformer.errors import InputError
from prism_transformer.schedule import HeadSchedule

UNKNOWN = "unknown"


def layer_backends(
    schedule: HeadSchedule,
    d_model: int,
    device: str = "cpu",
    dtype: str | None = None,
    seq_len: int = 1024,
) -> tuple[str, ...]:
    """The SDPA backend of each layer for causal training, e.g. ``flash_attention``.

    ``dtype`` is what models train in there when left out: float32 on the CPU, else bfloat16.
    ``unknown`` where torch cannot say, because the device is not in this machine.
    """
    where = _device(device)
    precision = _dtype(dtype or ("float32" if where.type == "cpu" else "bfloat16"))
    if not _present(where):
        return (UNKNOWN,) * len(schedule)
    shapes = list(zip(schedule.heads, schedule.head_dims(d_model), strict=True))
    chosen = {shape: _backend(*shape, seq_len, where, precision) for shape in set(shapes)}
    return tuple(chosen[shape] for shape in shapes)


def _backend(
    n_heads: int, head_dim: int, seq_len: int, device: torch.device, dtype: torch.dtype
) -> str:
    shape = (1, n_heads, seq_len, head_dim)
    # Gradients matter: some backends refuse to train what they can infer.
    q = torch.empty(shape, device=device, dtype=dtype, requires_grad=True)
    return SDPBackend(torch._fused_sdp_choice(q, q, q, is_causal=True)).name.lower()


def _present(device: torch.device) -> bool:
    if device.type == "cpu":
        return True
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == device.type


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"dtype {name!r} is unknown; try float32, bfloat16 or float16")
    return dtype


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise InputError(f"device {name!r} is unknown; try cpu, cuda or mps") from None
