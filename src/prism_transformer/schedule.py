"""Head schedules: how many attention heads each layer has. This is the idea of the paper.

A layer with ``h`` heads cuts the same ``d_model`` channels into ``h`` heads of ``d_model / h``
channels. Weights, parameters and FLOPs do not know the difference.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import overload

from prism_transformer.core.errors import InputError

# Beyond these a number is a typo, and expanding it would only waste memory.
MAX_LAYERS = 1024
MAX_HEADS = 65_536
MAX_D_MODEL = 1_048_576

MARGIN = 13  # columns left of the staircase: "   12 heads |"

NOTATION = "write heads x layers, as in '3x2 6x2 8x2 12x6', or one count per layer, as in '3,3,6,6'"


class ScheduleError(InputError):
    """A schedule that cannot be read, or that does not fit the model it is meant for."""


@dataclass(frozen=True)
class Phase:
    """A run of consecutive layers with one head count."""

    n_heads: int
    first_layer: int
    n_layers: int

    @property
    def layers(self) -> range:
        """The indices of its layers, counted from 0."""
        return range(self.first_layer, self.first_layer + self.n_layers)


@dataclass(frozen=True)
class HeadSchedule:
    """Heads per layer, first layer first. Reads and prints as ``3x2 6x2 8x2 12x6``."""

    heads: tuple[int, ...]

    def __post_init__(self) -> None:
        if isinstance(self.heads, str):
            raise ScheduleError(f"{self.heads!r} is text: read it with HeadSchedule.parse")
        # No further than what is refused anyway: somebody may give a range of a billion.
        some = islice(self.heads, MAX_LAYERS + 1)
        heads = tuple(_head_count(n, layer) for layer, n in enumerate(some))
        if not heads:
            raise ScheduleError(f"the schedule is empty; {NOTATION}")
        _check_depth(len(heads))
        object.__setattr__(self, "heads", heads)

    @classmethod
    def parse(cls, source: str | Iterable[int]) -> HeadSchedule:
        """Read ``3x2 12x10``, ``3,3,12,12``, ``[3, 3, 12, 12]``, or a sequence of counts."""
        if not isinstance(source, Iterable) or isinstance(source, bytes):
            raise ScheduleError(f"{source!r} is not a schedule; {NOTATION}")
        if not isinstance(source, str):
            return cls(tuple(islice(source, MAX_LAYERS + 1)))
        heads: list[int] = []
        for item in _items(source):
            n_heads, n_layers = _read_item(item, layer=len(heads))
            _check_depth(len(heads) + n_layers)
            heads += [n_heads] * n_layers
        return cls(tuple(heads))

    @classmethod
    def uniform(cls, n_heads: int, n_layers: int) -> HeadSchedule:
        """The standard Transformer: every layer the same."""
        _check_depth(n_layers)
        return cls((n_heads,) * n_layers)

    def __str__(self) -> str:
        return " ".join(f"{phase.n_heads}x{phase.n_layers}" for phase in self.phases)

    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator[int]:
        return iter(self.heads)

    @overload
    def __getitem__(self, layer: int) -> int: ...
    @overload
    def __getitem__(self, layer: slice) -> tuple[int, ...]: ...
    def __getitem__(self, layer: int | slice) -> int | tuple[int, ...]:
        """Heads of a layer, or of several."""
        return self.heads[layer]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The schedule as runs of equal layers."""
        phases, first = [], 0
        for n_heads, run in groupby(self.heads):
            phases.append(Phase(n_heads, first, len(list(run))))
            first += phases[-1].n_layers
        return tuple(phases)

    @property
    def mean_heads(self) -> float:
        return sum(self.heads) / len(self.heads)

    def head_dims(self, d_model: int) -> tuple[int, ...]:
        """Width of one head in each layer; refuses a layer that cannot split ``d_model``."""
        return tuple(head_dim(n, layer, d_model) for layer, n in enumerate(self.heads))

    def staircase(self, columns: int = 80, block: str = "█") -> str:
        """The schedule as a picture: a step per head count, a column or two per layer."""
        room = max(columns - MARGIN, 8)
        per_column = -(-len(self) // room)  # layers that share one column of a deep model
        cell = 2 if per_column == 1 and 2 * len(self) <= room else 1
        heads = self.heads[::per_column]
        lines = []
        for level in sorted(set(heads), reverse=True):
            row = "".join((block if n >= level else " ") * cell for n in heads)
            lines.append(f"{level:>5} head{'s' if level > 1 else ' '} |{row.rstrip()}")
        last = str(len(self) - 1)
        axis = f"0{last:>{max(len(heads) * cell - 1, len(last) + 1)}}"
        shared = "" if per_column == 1 else f"\n{'':{MARGIN}}{per_column} layers a column"
        return "\n".join([*lines, f"{'layer':>{MARGIN - 2}}  {axis}{shared}"])

    def _repr_html_(self) -> str:
        """What a notebook shows; lines stand close, so that the blocks of a step touch."""
        return f'<pre style="line-height: 1.1">{self}\n\n{self.staircase()}</pre>'

    def expect_layers(self, n_layers: int) -> None:
        """Refuse a model of another depth."""
        if len(self) != n_layers:
            raise ScheduleError(
                f"schedule {self} has {len(self)} layers but the model has {n_layers}; "
                f"make its layer counts add up to {n_layers}"
            )


def head_counts(d_model: int) -> tuple[int, ...]:
    """Every head count a layer of this width may have, ascending: the head width is even."""
    check_d_model(d_model)
    small = [n for n in range(1, int(d_model**0.5) + 1) if d_model % n == 0]
    divisors = sorted({*small, *(d_model // n for n in small)})
    return tuple(n for n in divisors if d_model // n % 2 == 0)


def head_dim(n_heads: int, layer: int, d_model: int) -> int:
    """Width of one head of this layer, or the reason why there is none."""
    check_d_model(d_model)
    if d_model % n_heads == 0 and d_model // n_heads % 2 == 0:
        return d_model // n_heads
    if d_model % n_heads:
        problem = f"{n_heads} heads do not divide d_model={d_model}"
    else:
        problem = (
            f"{n_heads} heads split d_model={d_model} into heads of width "
            f"{d_model // n_heads}, which is odd: rotary positions turn pairs of channels"
        )
    raise ScheduleError(f"layer {layer}: {problem}; {_nearest(n_heads, d_model)}")


def _nearest(n_heads: int, d_model: int) -> str:
    counts = head_counts(d_model)
    if not counts:
        return "d_model must be even"
    below = [n for n in counts if n < n_heads][-1:]
    above = [n for n in counts if n > n_heads][:1]
    return f"the nearest counts that fit: {' and '.join(map(str, below + above))}"


def _head_count(value: object, layer: int) -> int:
    """One layer's head count as a plain int; numpy integers welcome, booleans and floats not."""
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ScheduleError(f"layer {layer}: head count {value!r} is not a whole number") from None
    if count < 1:
        raise ScheduleError(f"layer {layer}: {count} heads; every layer needs at least 1")
    if count > MAX_HEADS:
        raise ScheduleError(f"layer {layer}: {count} heads; more than {MAX_HEADS} is not a model")
    return count


def _check_depth(n_layers: int) -> None:
    if n_layers < 1:
        raise ScheduleError(f"{n_layers} layers; a schedule needs at least 1")
    if n_layers > MAX_LAYERS:
        raise ScheduleError(f"{n_layers} layers; more than {MAX_LAYERS} is not a model")


def check_d_model(d_model: int) -> None:
    """Refuse a model width that no model has."""
    if not isinstance(d_model, int) or not 2 <= d_model <= MAX_D_MODEL:
        raise ScheduleError(f"d_model={d_model} is not a whole number from 2 to {MAX_D_MODEL}")


def _items(text: str) -> list[str]:
    """The comma- or blank-separated entries of a schedule, brackets and a last comma dropped."""
    body = text.strip()
    if body[:1] + body[-1:] in ("()", "[]"):
        body = body[1:-1].strip()
    body = body.removesuffix(",").rstrip()
    return re.split(r"\s*,\s*|\s+", body) if body else []


def _read_item(item: str, layer: int) -> tuple[int, int]:
    """``3x2`` as (3 heads, 2 layers); ``3`` as (3 heads, 1 layer)."""
    match = re.fullmatch(r"(-?[0-9]{1,20})(?:[xX\u00d7*](-?[0-9]{1,20}))?", item)
    if not match:
        shown = item if len(item) <= 40 else item[:37] + "..."
        raise ScheduleError(f"cannot read {shown!r} at layer {layer}; {NOTATION}")
    n_heads, n_layers = int(match[1]), int(match[2] or 1)
    if n_layers < 1:
        raise ScheduleError(f"{item!r} at layer {layer} covers no layer; drop it or give it one")
    return _head_count(n_heads, layer), n_layers
