"""Files and folders that are whole or not there, and written by one process at a time.

Nothing here follows a symbolic link that somebody put in place of a file to be written: folders
come from strangers, too. Folders may be links; people keep their runs on another disk.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from time import sleep
from typing import IO, Any
from uuid import uuid4

from prism_transformer.core.characters import visible
from prism_transformer.core.errors import InputError

LOCK_FILE = ".lock"
WAIT_SECONDS = 0.2
PARTIAL = ".partial"  # in the name of what is not whole yet


class FolderBusy(InputError):
    """Another process is writing to a folder."""


@contextmanager
def writing(place: Path, remedy: str = "") -> Iterator[None]:
    """Turn the system's refusal into an error that names the file, and the remedy."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror or error}" + (f"; {remedy}" if remedy else "")
        raise InputError(f"{_blamed(error, place)}: {reason}") from None


def _blamed(error: OSError, place: Path) -> str:
    """The file that failed: the one in the error, or what it was to become."""
    name = error.filename
    if not isinstance(name, str | bytes | os.PathLike) or not name:
        return f"{place}: cannot be written"
    file = Path(os.fsdecode(name))
    within = file.absolute().is_relative_to(place.absolute())
    if PARTIAL in str(file) or place.absolute().is_relative_to(file.absolute()):
        return f"{place}: cannot be written"
    return f"{file}: cannot be written" if within else str(file)


def opened(file: Path) -> BufferedReader:
    """A file of a folder of ours, to be read; a pipe in its place would be waited for for ever."""
    number = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "is no ordinary file", str(file))
    return os.fdopen(number, "rb")


def read_whole(file: Path) -> bytes:
    """All that a file of a folder of ours holds."""
    with opened(file) as stream:
        return stream.read()


def read_json(file: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(read_whole(file).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{file}: cannot be read: {reason}") from None


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn whatever a file of another shape leads to into an error that names the file."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"{file}: is damaged, or of another kind: {why}") from None


def read_text(file: Path) -> str:
    """What a text file holds."""
    with reading(file):
        return read_whole(file).decode("utf-8")


def file_sha256(file: Path) -> str:
    """Hash of a whole file."""
    with opened(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def plain_name(name: str) -> str:
    """A name from somebody's file, if it is one: no path, so that it stays in its folder."""
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise InputError(f"{name!r}: is no name of a file; a path out of its folder is refused")
    return name


def open_here(file: Path, flags: int) -> int:
    """A file of its folder, opened to be written; a link is refused, and what is no file."""
    try:
        number = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(
                f"{file}: is a symbolic link, which is not followed to write; remove it"
            ) from None
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):  # a pipe would wait for a reader for ever
        os.close(number)
        raise InputError(f"{file}: is no ordinary file; remove it")
    return number


def appended(file: Path) -> IO[bytes]:
    """A file of its folder, made if need be, to write at its end; a link is refused."""
    return os.fdopen(open_here(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def check_new(target: Path) -> None:
    """Refuse a place that has something already; ask before long work, too."""
    with writing(target):
        taken = target.is_symlink() and not target.exists()
        if taken or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
            raise InputError(
                f"{target}: exists already; give another place, nothing is overwritten"
            )


def partial_of(target: Path, key: str) -> Path:
    """Where a folder is while it is being made."""
    target = target.resolve()  # a name also for "."
    return target.with_name(_partial_name(target, key))


@contextmanager
def new_folder(target: Path, key: str | None = None) -> Iterator[Path]:
    """A temporary folder that becomes ``target`` when the block ends well, and vanishes if not.

    With a ``key`` others can find it, too, while it is temporary: ``partial_of`` says where.
    """
    check_new(target)
    target = target.resolve()
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep_partial(target)
        partial, number = _claimed(target, _new_folder, key)
    try:
        with writing(target):
            yield partial
            for path in partial.rglob("*"):  # on the disk before its name says that it is
                if path.is_file() or path.is_dir():
                    _sync(path)
            _sync(partial)
            if target.exists():
                target.rmdir()
            partial.rename(target)
            _sync(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(number)


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file so that whoever reads it finds all of the old content or all of the new."""
    sweep_partial(file)
    partial, number = _claimed(file, _new_file)
    try:
        with open(number, "wb") as stream:  # which closes the number
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
            partial.replace(file)
        with suppress(OSError):  # not every file system can; those that can keep the new name
            _sync(file.parent)
    finally:
        partial.unlink(missing_ok=True)


# -- what is not whole yet -----------------------------------------------------------------------
#
# Its maker holds a lock on it, which the system lets go of when the process ends, however it ends:
# so the next one knows what nobody will finish. Not the number of the process in its name: two
# machines may have the same, and a container always has.


def _partial_name(target: Path, key: str) -> str:
    return f".{target.name}{PARTIAL}-{key}"


def _new_file(partial: Path) -> int:
    return open_here(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def _new_folder(partial: Path) -> int:
    partial.mkdir()
    return os.open(partial, os.O_RDONLY | os.O_CLOEXEC)


def _claimed(target: Path, make: Callable[[Path], int], key: str | None = None) -> tuple[Path, int]:
    """A partial name for a target, made and locked; the name, and what holds the lock.

    Others may write into a folder of a known ``key``: the lock keeps it from being swept, and a
    second maker away, for whom the name is taken.
    """
    while True:
        name = _partial_name(target, key or uuid4().hex[:8])
        if len(os.fsencode(name)) > 255 >= len(os.fsencode(target.name)) and key is None:
            name = f".{uuid4().hex}{PARTIAL}-{uuid4().hex[:8]}"
        partial = target.with_name(name)  # beside a link, not where it leads
        number = make(partial)
        # Whoever sweeps took it for left behind before this lock was ours: wait, and it is gone.
        with suppress(OSError):  # a file system without locks: then nobody sweeps, either
            fcntl.flock(number, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.fstat(number).st_ino == partial.stat().st_ino:
                return partial, number
        os.close(number)


def sweep_partial(target: Path) -> None:
    """Remove what killed processes left of a target; what somebody still writes stays."""
    prefix = _partial_name(target, "")
    with suppress(OSError):
        for entry in list(os.scandir(target.parent)):
            if entry.name.startswith(prefix) and not entry.is_symlink():
                _remove_unclaimed(Path(entry.path))


def _remove_unclaimed(path: Path) -> None:
    with suppress(OSError):  # locked, or on a file system that knows no locks
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        finally:
            os.close(number)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# -- one process at a time -----------------------------------------------------------------------


# Not filelock: it leaves its file, and so an empty folder, behind; and where a file system has no
# flock it quietly takes a lock that outlives a killed process.
@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes from writing to a folder, which is made if it is not there.

    The system lets go of the lock when this process ends, however it ends. Where somebody has it
    already, that is an error, or a reason to ``wait``.
    """
    while (lock := _lock(folder)) is None:
        if not wait:
            raise FolderBusy(
                f"{folder}: another process is writing there{_holder(folder)}; let it finish first"
            )
        sleep(WAIT_SECONDS)
    try:
        yield
    finally:
        with suppress(OSError):  # a folder in which nothing was written goes with its lock
            file = folder / LOCK_FILE
            if file.lstat().st_ino == os.fstat(lock).st_ino:  # not the lock of a new folder there
                file.unlink()
                folder.rmdir()
        os.close(lock)


def _lock(folder: Path) -> int | None:
    """The folder's lock, an open file; None where another process has it."""
    file = folder / LOCK_FILE
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # Not emptied when it is opened: whoever has the lock has written there who it is.
        lock = open_here(file, os.O_RDWR | os.O_CREAT)
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it before may have removed the file that was just opened.
        if os.fstat(lock).st_ino == file.stat().st_ino:
            with suppress(OSError):  # a full disk: then nobody is told who
                os.ftruncate(lock, 0)
                os.write(lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return lock
    os.close(lock)
    return None


def _holder(folder: Path) -> str:
    """Who has a folder's lock, in its own words; nothing where it did not say."""
    try:
        said = read_whole(folder / LOCK_FILE)[:200].decode("utf-8", "replace")
    except OSError:
        said = ""
    return f" ({visible(said)})" if said else ""
