"""Writing folders that are either whole or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prism_transformer.errors import InputError


def check_new(target: Path) -> None:
    """Refuse a place that has something already; ask before long work, too."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: exists already; give another place, nothing is overwritten")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``target`` when the block ends well, and vanishes if not."""
    check_new(target)
    target = target.resolve()  # a name also for "."
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        yield partial
        if target.exists():
            target.rmdir()
        partial.rename(target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
