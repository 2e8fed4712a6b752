"""Writing folders: whole or not at all, and by one process at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import sleep
from uuid import uuid4

from prism_transformer.errors import InputError

LOCK_FILE = ".lock"
WAIT_SECONDS = 0.2


class FolderBusy(InputError):
    """Another process is writing to a folder."""


def check_new(target: Path) -> None:
    """Refuse a place that has something already; ask before long work, too."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: exists already; give another place, nothing is overwritten")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``target`` when the block ends well, and vanishes if not."""
    check_new(target)
    target = target.resolve()  # a name also for "."
    # Not the process number: two machines may have the same, and a container always has.
    partial = target.with_name(f".{target.name}.partial-{uuid4().hex[:8]}")
    try:
        partial.mkdir(parents=True)
        yield partial
        _to_disk(partial)
        if target.exists():
            target.rmdir()
        partial.rename(target)
        _sync(target.parent)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _to_disk(folder: Path) -> None:
    """Make sure that everything is on the disk before its name says that it is."""
    for path in folder.rglob("*"):
        if path.is_file():
            _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file so that whoever reads it finds all of the old content or all of the new."""
    partial = file.with_name(f".{file.name}.partial-{uuid4().hex[:8]}")  # others may write it, too
    try:
        with partial.open("wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes from writing to a folder, which is made if it is not there.

    The system lets go of the lock when this process ends, however it ends. Where somebody has it
    already, that is an error, or a reason to ``wait``.
    """
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(_locked(folder))
                break
            except FolderBusy:
                if not wait:
                    raise
                sleep(WAIT_SECONDS)
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    file = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = file.open("w")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it before may have removed the file that was just opened.
            mine = os.fstat(lock.fileno()).st_ino == file.stat().st_ino
        except (BlockingIOError, FileNotFoundError):
            mine = False
        if not mine:
            raise FolderBusy(f"{folder}: another process is writing there; let it finish first")
        try:
            yield
        finally:
            with suppress(OSError):  # a folder in which nothing was written goes with its lock
                file.unlink()
                folder.rmdir()
