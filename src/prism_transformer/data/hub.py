"""Datasets of the Hugging Face hub, pinned: a commit, its files, and reads that are tried again.

A name is ``owner/name[:config][@revision]``. Whatever the revision is called, the commit that it
stood for when a preparation began is what is read until it is done.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple, TypeVar

from prism_transformer.core.errors import InputError, first_line

SCHEME = "hf://"
COMMIT = re.compile(r"[0-9a-f]{40}")
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # seconds between tries: two minutes in all
BLOCK = 2**23  # bytes that are asked for at once: what a broken connection can lose

T = TypeVar("T")


class HubName(NamedTuple):
    """What a name says."""

    path: str
    config: str
    revision: str

    @property
    def is_folder(self) -> bool:
        """Of this machine, in the shape of a dataset of the hub."""
        return Path(self.path).is_dir()


def read_name(name: str) -> HubName:
    """The parts of ``owner/name[:config][@revision]``."""
    rest, _, revision = name.partition("@")
    path, _, config = rest.partition(":")
    return HubName(path, config, revision)


def commit_of(name: HubName) -> str | None:
    """The commit that a revision, or the newest one, stands for; None of a folder, which has none.

    A whole commit is taken at its word: nobody is asked.
    """
    if name.is_folder:
        return None
    if COMMIT.fullmatch(name.revision):
        return name.revision
    from huggingface_hub import HfApi

    try:
        found = HfApi().dataset_info(name.path, revision=name.revision or None).sha
    except Exception as error:  # the hub's and the network's are of many kinds
        raise cannot_stream(name.path, error) from None
    if found is None:
        raise InputError(f"hf:{name.path}: the hub names no commit of it")
    return str(found)


def cannot_stream(path: str, error: BaseException) -> InputError:
    """What to say of a dataset that cannot be had."""
    return InputError(f"hf:{path}: cannot be streamed: {first_line(error)}")


def data_files(name: HubName, commit: str | None) -> list[Path | HubFile]:
    """The files of the train split, in their order."""
    import datasets

    try:
        builder = datasets.load_dataset_builder(name.path, name.config or None, revision=commit)
        files = (builder.config.data_files or {}).get("train", [])
    except Exception as error:
        raise cannot_stream(name.path, error) from None
    if not files:
        raise InputError(f"hf:{name.path}: has no split named train")
    return [HubFile(str(file)) if str(file).startswith(SCHEME) else Path(file) for file in files]


class Size(NamedTuple):
    """What of a file's status is known from afar."""

    st_size: int


class HubFile:
    """A file of the hub at a commit, opened like a path."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._size: int | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def __str__(self) -> str:
        return self.url

    def open(self, _mode: str = "rb", /) -> io.BufferedReader:
        return io.BufferedReader(_Ranges(self), BLOCK)

    def stat(self) -> Size:
        if self._size is None:
            self._size = patiently(self.url, lambda: int(_filesystem().info(self.url)["size"]))
        return Size(self._size)

    def fetch(self, start: int, stop: int) -> bytes:
        """Some bytes of it, all that were asked for."""

        def once() -> bytes:
            content: bytes = _filesystem().cat_file(self.url, start=start, end=stop)
            if len(content) != stop - start:
                raise ConnectionError(f"{len(content)} of {stop - start} bytes came")
            return content

        return patiently(self.url, once)


def _filesystem() -> Any:
    from huggingface_hub import HfFileSystem

    return HfFileSystem()  # one for all, says its class


class _Ranges(io.RawIOBase):
    """A file as requests for its parts: no connection is held, so none can be lost."""

    def __init__(self, file: HubFile) -> None:
        super().__init__()
        self.file, self.place = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.place}
        self.place = offset + (base[whence] if whence in base else self.file.stat().st_size)
        return self.place

    def readinto(self, buffer: Any) -> int:
        stop = min(self.place + min(len(buffer), BLOCK), self.file.stat().st_size)
        if stop <= self.place:
            return 0
        content = self.file.fetch(self.place, stop)
        buffer[: len(content)] = content
        self.place = stop
        return len(content)


def patiently(what: str, work: Callable[[], T]) -> T:
    """Do work over a network; where it fails, again after growing pauses."""
    for pause in PAUSES:
        try:
            return work()
        except Exception as error:
            if not is_passing(error):
                raise
            sleep(pause)
    try:
        return work()
    except Exception as error:
        if not is_passing(error):
            raise
        raise InputError(
            f"{what}: cannot be read: {first_line(error)}; tried {len(PAUSES) + 1} times. What is "
            "whole stays: run again to go on"
        ) from None


def is_passing(error: Exception) -> bool:
    """Whether a fault is the network's or the hub's, and may be over soon."""
    import httpx

    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:  # that something is not there, or not for everybody, will not pass
        return status == 429 or status >= 500
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
        return False
    return isinstance(error, OSError | httpx.HTTPError)
