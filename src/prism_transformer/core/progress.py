"""How long work tells how far it is: small events, handed to one function.

Every verb takes ``tell`` and is silent without it. The terminal draws bars from these events, a
notebook or a test may collect them; nothing below ``cli/`` prints.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Note:
    """A sentence that is worth a line."""

    line: str


@dataclass(frozen=True)
class Advance:
    """How much is done of some work: the first of its name begins it, ``done == total`` ends it."""

    what: str
    done: float
    total: float | None = None
    unit: str = ""
    """of both numbers: ``steps``, ``bytes``, ``texts``"""
    detail: str = ""
    """what else is known right now, as in ``loss 3.0621  9,871 tokens/s``"""


@dataclass(frozen=True)
class Measured:
    """A row of a run's metrics, as it goes into ``metrics.jsonl``."""

    row: dict[str, Any]


@dataclass(frozen=True)
class Begun:
    """A part of a larger work is taken up: a stage of a run, the reading of some data."""

    what: str


@dataclass(frozen=True)
class Left:
    """What was begun is left before its end: it failed, was stopped, or waits for its turn."""

    what: str


@dataclass(frozen=True)
class Of:
    """An event of one part of a larger work, such as one run of a study."""

    part: str
    event: Event


Event = Note | Advance | Measured | Begun | Left | Of
Tell = Callable[[Event], None]
KINDS: dict[str, type[Note | Advance | Measured | Begun | Left]] = {
    kind.__name__: kind for kind in (Note, Advance, Measured, Begun, Left)
}


def silent(_event: Event) -> None:
    """Nobody listens."""


def is_first_process() -> bool:
    """Whether this process prints and writes: the first that torchrun or accelerate launched."""
    return os.environ.get("RANK", "0") == "0"


def within(tell: Tell, part: str) -> Tell:
    """Whatever is told, told as an event of this part."""
    return lambda event: tell(Of(part, event))


def to_line(event: Event) -> str:
    """An event as a line of JSON, for a pipe from one process to another."""
    parts = []
    while isinstance(event, Of):
        parts.append(event.part)
        event = event.event
    return json.dumps({"of": parts, "kind": type(event).__name__, "values": vars(event)}) + "\n"


def from_line(line: str | bytes) -> Event:
    """The event that ``to_line`` wrote; ValueError for any other line."""
    told = json.loads(line)
    try:
        event: Event = KINDS[told["kind"]](**told["values"])
        for part in reversed(told["of"]):
            event = Of(part, event)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{line!r}: is no event") from error
    return event


def counted(
    tell: Tell, what: str, items: Iterable[T], total: int | None = None, unit: str = ""
) -> Iterator[T]:
    """Pass items on, and tell how many of them are done."""
    tell(Advance(what, 0, total, unit))
    done = 0
    for done, item in enumerate(items, start=1):
        yield item
        tell(Advance(what, done, total, unit))
    if done != total:  # fewer or more than was said, or nobody knew: it ends all the same
        tell(Advance(what, done, done, unit))
