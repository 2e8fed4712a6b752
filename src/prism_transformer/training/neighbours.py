"""What a run is told of the study around it: who trains beside it, and whether all are compiled.

By environment variables, so that every process that trains it hears of it, torchrun's as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

WORKERS = "PRISM_WORKERS"  # runs that this machine trains side by side
COMPILE = "PRISM_COMPILE"  # what train.compile = "auto" means for all runs: "on: why", "off: why"


def workers() -> int:
    """Runs that are trained side by side with this one, itself included."""
    return int(os.environ.get(WORKERS, "1"))


def compiled() -> tuple[bool, str] | None:
    """Whether all runs of the study are compiled, and why; None where no study says so."""
    choice, _, why = os.environ.get(COMPILE, "").partition(": ")
    return (choice == "on", why) if choice else None


@contextmanager
def told(variables: Mapping[str, str]) -> Iterator[None]:
    """Have these in the environment of this process for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
