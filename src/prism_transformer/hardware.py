"""What a head width means to attention kernels, and how far a schedule can be sharded or grouped.

Knowledge only, no torch: ``kernels.py`` asks torch itself what it would run on a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from prism_transformer.rules import Finding
from prism_transformer.schedule import HeadSchedule

# Head widths for which flash attention has a kernel of its own; another width is padded up to the
# next one, and first copied if it is no multiple of 8. Beyond the last there is no flash kernel.
FLASH_TILES = (32, 64, 96, 128, 192, 256)
FLASH_LIMIT = FLASH_TILES[-1]
FLASH_MULTIPLE = 8


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
        if self.tile is None:
            return 10
        if self.width % FLASH_MULTIPLE:
            return 3
        if not self.native:
            return 2
        return 0 if self.power_of_two else 1

    def __str__(self) -> str:
        if self.tile is None:
            return f"beyond {FLASH_LIMIT}: no flash kernel"
        if self.width % FLASH_MULTIPLE:
            return f"no multiple of {FLASH_MULTIPLE}: copied and padded to flash tile {self.tile}"
        if not self.native:
            return f"padded to flash tile {self.tile}"
        return "power of two, flash tile" if self.power_of_two else "flash tile"


def degrees(schedule: HeadSchedule) -> tuple[int, ...]:
    """Divisors of every layer's head count: the GQA and tensor-parallel degrees all layers admit.

    ``queries_per_kv`` of g shares one key-value head between g queries, and tensor parallelism of
    degree t gives each device ``1 / t`` of the heads; g x t must divide every layer's count.
    """
    common = gcd(*schedule.heads)
    return tuple(n for n in range(1, common + 1) if common % n == 0)


def check_hardware(schedule: HeadSchedule, d_model: int) -> list[Finding]:
    """Advice on kernels and sharding; the paper's own schedules do not satisfy all of it."""
    layers = [Alignment(width) for width in schedule.head_dims(d_model)]
    off_flash = [index for index, layer in enumerate(layers) if layer.tile is None]
    padded = [index for index, layer in enumerate(layers) if layer.tile and not layer.native]
    uneven = [index for index, layer in enumerate(layers) if not layer.power_of_two]
    return [
        _widths("flash", layers, off_flash, "no flash kernel", "flash takes every width"),
        _widths("tile", layers, padded, "padded to the next flash tile", "no width is padded"),
        _widths("power-of-two", layers, uneven, "not a power of two", "all are powers of two"),
        _sharding(schedule),
    ]


def _widths(
    rule: str, layers: list[Alignment], concerned: list[int], problem: str, praise: str
) -> Finding:
    widths = sorted({layers[index].width for index in concerned}, reverse=True)
    noun = "width" if len(widths) == 1 else "widths"
    reason = f"{noun} {', '.join(map(str, widths))}: {problem}" if concerned else praise
    return Finding(rule, "hardware", not concerned, reason, tuple(concerned))


def _sharding(schedule: HeadSchedule) -> Finding:
    admitted = degrees(schedule)
    if len(admitted) > 1:
        listed = ", ".join(map(str, admitted))
        reason = f"queries_per_kv x tensor_parallel may be {listed} in every layer"
    else:
        reason = "the head counts share no divisor: no tensor parallelism above 1, no constant GQA"
    return Finding("sharding", "hardware", len(admitted) > 1, reason)
