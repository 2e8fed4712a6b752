"""What a head width means to attention kernels, and how far a schedule can be sharded or grouped.

Knowledge only, no torch: ``kernels.py`` asks torch itself what it would run on a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from prism_transformer.rules import Finding
from prism_transformer.schedule import HeadSchedule

# Head widths for which flash attention has a kernel of its own; another width is padded up to the
# next one. Beyond the last there is no flash kernel at all.
FLASH_TILES = (32, 64, 96, 128, 192, 256)
FLASH_LIMIT = FLASH_TILES[-1]
FLASH_MULTIPLE = 8


@dataclass(frozen=True)
class Alignment:
    """How one head width sits on the hardware."""

    width: int

    @property
    def power_of_two(self) -> bool:
        """The paper's preference: tensor-core tiles divide it evenly."""
        return self.width & (self.width - 1) == 0

    @property
    def tile(self) -> int | None:
        """The flash tile it runs on, itself when native; None where flash refuses the width."""
        if self.width > FLASH_LIMIT or self.width % FLASH_MULTIPLE:
            return None
        return next(tile for tile in FLASH_TILES if tile >= self.width)

    @property
    def native(self) -> bool:
        """Flash has a kernel of exactly this width."""
        return self.tile == self.width

    @property
    def penalty(self) -> int:
        """0 for a native power of two, then other native, padded and, far worse, off flash."""
        if self.tile is None:
            return 10
        if not self.native:
            return 2
        return 0 if self.power_of_two else 1

    def __str__(self) -> str:
        if self.width > FLASH_LIMIT:
            return f"beyond {FLASH_LIMIT}: no flash kernel"
        if self.tile is None:
            return f"not a multiple of {FLASH_MULTIPLE}: no flash kernel"
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
    kinds = [Alignment(width) for width in schedule.head_dims(d_model)]
    off_flash = [layer for layer, kind in enumerate(kinds) if kind.tile is None]
    padded = [layer for layer, kind in enumerate(kinds) if kind.tile and not kind.native]
    odd = [layer for layer, kind in enumerate(kinds) if not kind.power_of_two]
    return [
        _widths("flash", kinds, off_flash, "no flash kernel", "flash takes every width"),
        _widths("tile", kinds, padded, "padded to the next flash tile", "no width is padded"),
        _widths("power-of-two", kinds, odd, "not a power of two", "every width is a power of two"),
        _sharding(schedule),
    ]


def _widths(
    rule: str, kinds: list[Alignment], layers: list[int], problem: str, praise: str
) -> Finding:
    widths = sorted({kinds[layer].width for layer in layers}, reverse=True)
    noun = "width" if len(widths) == 1 else "widths"
    reason = f"{noun} {', '.join(map(str, widths))}: {problem}" if layers else praise
    return Finding(rule, "hardware", not layers, reason, tuple(layers))


def _sharding(schedule: HeadSchedule) -> Finding:
    admitted = degrees(schedule)
    if len(admitted) > 1:
        listed = ", ".join(map(str, admitted))
        reason = f"queries_per_kv x tensor_parallel may be {listed} in every layer"
    else:
        reason = "the head counts share no divisor: no tensor parallelism above 1, no constant GQA"
    return Finding("sharding", "hardware", len(admitted) > 1, reason)
