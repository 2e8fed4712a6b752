"""What a head width means to attention kernels, and how far a schedule can be sharded or grouped.

Knowledge only, and no torch but in ``layer_backends``, which asks torch itself what it would run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from prism_transformer.core.errors import InputError
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.rules import Finding

# Head widths for which flash attention has a kernel of its own; another width is padded up to the
# next one, and first copied if it is no multiple of 8. Beyond the last there is no flash kernel.
FLASH_TILES = (32, 64, 96, 128, 192, 256)
FLASH_LIMIT = FLASH_TILES[-1]
FLASH_MULTIPLE = 8

UNKNOWN = "unknown"  # the backend of a device that is not in this machine

# Dense peak FLOP/s of matrix products in bfloat16, by what is in a device's name: from the makers'
# data sheets. The first that fits counts, so the more precise name stands first.
PEAK_FLOPS = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100": 989.4e12,
    "H200": 989.4e12,
    "B200": 2250e12,
}


@dataclass(frozen=True)
class Alignment:
    """How one head width sits on CUDA's attention kernels."""

    width: int

    @property
    def power_of_two(self) -> bool:
        """The paper's preference: tensor-core tiles divide it evenly."""
        return self.width & (self.width - 1) == 0

    @property
    def tile(self) -> int | None:
        """The flash tile it runs on, itself when native; None beyond the widest."""
        return next((tile for tile in FLASH_TILES if tile >= self.width), None)

    @property
    def native(self) -> bool:
        """Flash has a kernel of exactly this width."""
        return self.tile == self.width

    @property
    def penalty(self) -> int:
        """0 for a native power of two, then other native, padded, copied; far worse off flash."""
        return self._judged[0]

    def __str__(self) -> str:
        return self._judged[1]

    @property
    def _judged(self) -> tuple[int, str]:
        if self.tile is None:
            return 10, f"beyond {FLASH_LIMIT}: no flash kernel"
        padded = f"padded to flash tile {self.tile}"
        if self.width % FLASH_MULTIPLE:
            return 3, f"no multiple of {FLASH_MULTIPLE}: copied and {padded}"
        if not self.native:
            return 2, padded
        return (0, "power of two, flash tile") if self.power_of_two else (1, "flash tile")


def degrees(schedule: HeadSchedule) -> tuple[int, ...]:
    """Divisors of every layer's head count: the GQA and tensor-parallel degrees all layers admit.

    ``queries_per_kv`` of g shares one key-value head between g queries, and tensor parallelism of
    degree t gives each device ``1 / t`` of the heads; g x t must divide every layer's count.
    """
    common = gcd(*schedule.heads)
    return tuple(n for n in range(1, common + 1) if common % n == 0)


def check_hardware(schedule: HeadSchedule, d_model: int) -> list[Finding]:
    """Advice on kernels and sharding; the paper's own schedules do not satisfy all of it."""
    layers = dict(enumerate(map(Alignment, schedule.head_dims(d_model))))
    off_flash = {n: layer for n, layer in layers.items() if layer.tile is None}
    padded = {n: layer for n, layer in layers.items() if layer.tile and not layer.native}
    uneven = {n: layer for n, layer in layers.items() if not layer.power_of_two}
    return [
        _widths("flash", off_flash, "no flash kernel", "flash takes every width"),
        _widths("tile", padded, "padded to the next flash tile", "no width is padded"),
        _widths("power-of-two", uneven, "not a power of two", "all are powers of two"),
        _sharding(schedule),
    ]


def _widths(rule: str, concerned: dict[int, Alignment], problem: str, praise: str) -> Finding:
    widths = sorted({layer.width for layer in concerned.values()}, reverse=True)
    listed = f"width{'s' * (len(widths) > 1)} {', '.join(map(str, widths))}"
    reason = f"{listed}: {problem}" if concerned else praise
    return Finding(rule, "hardware", not concerned, reason, tuple(concerned))


def _sharding(schedule: HeadSchedule) -> Finding:
    admitted = degrees(schedule)
    reason = "the head counts share no divisor: no tensor parallelism above 1, no constant GQA"
    if len(admitted) > 1:
        listed = ", ".join(map(str, admitted))
        reason = f"queries_per_kv x tensor_parallel may be {listed} in every layer"
    return Finding("sharding", "hardware", len(admitted) > 1, reason)


def layer_backends(
    schedule: HeadSchedule,
    d_model: int,
    device: str = "cpu",
    dtype: str | None = None,
    seq_len: int = 1024,
    *,
    queries_per_kv: int = 1,
    causal: bool = True,
) -> tuple[str, ...]:
    """The SDPA backend of each layer in training, e.g. ``flash_attention``.

    ``dtype`` is what models train in there when left out: float32 on the CPU, else bfloat16.
    ``unknown`` where torch cannot say, because the device is not in this machine.
    """
    import torch
    from torch.nn.attention import SDPBackend

    try:
        where = torch.device(device)
    except RuntimeError:
        raise InputError(f"device {device!r} is unknown; try cpu, cuda or mps") from None
    name = dtype or ("float32" if where.type == "cpu" else "bfloat16")
    precision = getattr(torch, name, None)
    if not isinstance(precision, torch.dtype) or not precision.is_floating_point:
        raise InputError(f"dtype {name!r} is unknown; try float32, bfloat16 or float16")
    here = torch.accelerator.current_accelerator(check_available=True)
    if where.type not in ("cpu", here and here.type):
        return (UNKNOWN,) * len(schedule)
    shapes = list(zip(schedule.heads, schedule.head_dims(d_model), strict=True))

    def chosen(n_heads: int, width: int) -> str:
        # Gradients matter: some backends refuse to train what they can infer.
        q, k = (
            torch.empty(1, n, seq_len, width, device=where, dtype=precision, requires_grad=True)
            for n in (n_heads, n_heads // queries_per_kv)
        )
        grouped = queries_per_kv > 1
        choice = torch._fused_sdp_choice(q, k, k, is_causal=causal, enable_gqa=grouped)
        return SDPBackend(choice).name.lower()

    by_shape = {shape: chosen(*shape) for shape in set(shapes)}
    return tuple(by_shape[shape] for shape in shapes)
