"""Token files of other tools, used as they are: of datatrove, Megatron, dolma and litdata.

Each is a plain array of tokens, litdata's behind a header. What its tool writes beside it says
where documents end and, mostly, of what type the tokens are; what no file says is asked for by
name.
"""

from __future__ import annotations

import csv
import gzip
import json
import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prism_transformer.data.shards import ShardError, Tokens

TYPES: dict[str, np.dtype[Any]] = {
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
    "int32": np.dtype("<i4"),
}
MEGATRON_MAGIC = b"MMIDIDX\0\0"
MEGATRON_TYPES = {
    8: "uint16",
    4: "int32",
}  # the two that its tools choose for tokens
LITDATA_INDEX = "index.json"
LITDATA_TYPES = {
    "no_header_tensor:15": "int32",
    "no_header_tensor:16": "int32",
    "no_header_tensor:20": "uint16",
    "no_header_numpy:2": "int32",
    "no_header_numpy:5": "uint16",
    "no_header_numpy:6": "uint32",
}
HEAD = struct.Struct("<QBQQ")  # version, type, sequences, documents + 1


class Foreign(NamedTuple):
    """Tokens of a file, and where its documents end."""

    tokens: Tokens
    ends: Tokens
    header: int = 0
    """what stands before the first token, in tokens"""


def open_foreign(file: Path, token_type: str | None = None) -> Foreign:
    """A token file of another tool; length, type and the ends of documents are checked."""
    reader = find_foreign(file)
    if reader is None:
        raise ShardError(f"{file}: is no token file that is known: {', '.join(ENDINGS)}")
    if token_type is not None and token_type not in TYPES:
        raise ShardError(f"--token-type {token_type}: unknown; one of {', '.join(TYPES)}")
    found = reader(file, token_type)
    ends = found.ends
    if not len(ends):
        raise ShardError(f"{file}: its index names no document")
    if (np.diff(ends) < 0).any() or ends[0] < 0 or ends[-1] != len(found.tokens):
        raise ShardError(
            f"{file}: has {len(found.tokens)} tokens where its index ends at {ends[-1]}; it is "
            "truncated, or of another token type"
        )
    return found


def find_foreign(file: Path) -> Callable[[Path, str | None], Foreign] | None:
    """What reads a file, by its name; a .bin is Megatron's with an .idx, litdata's in its index."""
    if file.suffix == ".bin" and not file.with_suffix(".idx").exists():
        return _litdata if file.name in _chunks(file.parent) else None
    return ENDINGS.get(file.suffix)


def _mapped(file: Path, token_type: str) -> Tokens:
    dtype, n_bytes = TYPES[token_type], _size(file)
    if n_bytes == 0 or n_bytes % dtype.itemsize:
        raise ShardError(f"{file}: has {n_bytes} bytes, which are no {token_type} tokens")
    return np.memmap(file, dtype, "r")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise ShardError(f"{file}: cannot be read: {error.strerror}") from None


def _content(file: Path, of: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ShardError(f"{of}: needs {file.name} beside it: {error.strerror}") from None


def _datatrove(file: Path, token_type: str | None) -> Foreign:
    raw = _content(file.with_name(f"{file.name}.index"), file)
    if len(raw) % 8:
        raise ShardError(f"{file}.index: has {len(raw)} bytes, which are no 8 a document")
    said = _said_by_datatrove(file)
    if token_type and said and token_type != said:
        raise ShardError(f"{file}: its metadata says {said}, --token-type {token_type}")
    return Foreign(
        _mapped(file, _known(file, token_type or said)), np.frombuffer(raw, "<u8").astype(np.int64)
    )


def _said_by_datatrove(file: Path) -> str | None:
    """The type that the metadata names by its bytes, as in ``gpt2|2``; there may be none."""
    metadata = file.with_name(f"{file.name}.metadata")
    if not metadata.exists():
        return None
    size = metadata.read_text("utf-8").partition("\n")[0].rpartition("|")[2]
    return {"2": "uint16", "4": "uint32"}.get(size)


def _known(file: Path, token_type: str | None) -> str:
    if token_type is None:
        raise ShardError(
            f"{file}: does not say of what type its tokens are; --token-type uint16 or uint32"
        )
    return token_type


def _megatron(file: Path, token_type: str | None) -> Foreign:
    index = file.with_suffix(".idx")
    raw = _content(index, file)
    start = len(MEGATRON_MAGIC)
    if not raw.startswith(MEGATRON_MAGIC) or len(raw) < start + HEAD.size:
        raise ShardError(f"{index}: is no index of Megatron's")
    version, code, sequences, documents = HEAD.unpack_from(raw, start)
    if version != 1 or code not in MEGATRON_TYPES:
        raise ShardError(f"{index}: version {version}, token type {code}: only 1, and 4 or 8")
    start += HEAD.size
    if len(raw) < start + sequences * 12 + documents * 8:
        raise ShardError(f"{index}: has {len(raw)} bytes, too few for {sequences} sequences")
    said = MEGATRON_TYPES[code]
    if token_type not in (None, said):
        raise ShardError(f"{index}: says {said}, --token-type {token_type}")
    lengths = np.frombuffer(raw, "<i4", sequences, start)
    marks = np.frombuffer(raw, "<i8", documents, start + sequences * 12)
    ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    if len(marks) and (marks.min() < 0 or marks.max() > sequences):
        raise ShardError(f"{index}: names sequences that it has not")
    return Foreign(_mapped(file, said), ends[marks[1:]])


def _dolma(file: Path, token_type: str | None) -> Foreign:
    index = file.with_suffix(".csv.gz")
    if file.exists() and file.open("rb").read(6) == b"\x93NUMPY":
        raise ShardError(f"{file}: is an array of numpy's, not tokens of dolma's")
    raw = _content(index, file)
    try:
        rows = list(csv.reader(gzip.decompress(raw).decode().splitlines()))
        ends = np.array([int(row[1]) for row in rows], np.int64)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise ShardError(f"{index}: is damaged: {error}") from None
    return Foreign(_mapped(file, _known(file, token_type)), ends)


class _Chunk(NamedTuple):
    """What litdata's index says of a file."""

    items: int
    tokens: int
    config: dict[str, Any]


def _chunks(folder: Path) -> dict[str, _Chunk]:
    """Every file that an index of litdata's in a folder names; none where it is no such index."""
    index = folder / LITDATA_INDEX
    try:
        return _read_chunks(index, index.stat().st_mtime_ns)
    except OSError:
        return {}


@lru_cache(maxsize=4)
def _read_chunks(index: Path, _: int) -> dict[str, _Chunk]:
    try:
        found = json.loads(index.read_bytes())
        config = dict(found["config"])
        return {
            str(each["filename"]): _Chunk(int(each["chunk_size"]), int(each["dim"] or 0), config)
            for each in found["chunks"]
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}  # somebody else's


def _litdata(file: Path, token_type: str | None) -> Foreign:
    chunk = _chunks(file.parent)[file.name]
    said = _said_by_litdata(file, chunk.config)
    if token_type not in (None, said):
        raise ShardError(f"{file}: its index says {said}, --token-type {token_type}")
    size, width = 4 * (chunk.items + 2), TYPES[said].itemsize  # of the header, of a token
    n_bytes = _size(file)
    head = np.fromfile(file, "<u4", chunk.items + 2)
    if n_bytes != size + width * chunk.tokens or tuple(head[:2]) != (chunk.items, size):
        raise ShardError(
            f"{file}: has {n_bytes} bytes where its index promises {chunk.items} documents of "
            f"{chunk.tokens} {said} tokens in all; it is truncated or of another type"
        )
    ends = (head[2:].astype(np.int64) - size) // width
    header = size // width
    return Foreign(_mapped(file, said)[header:], ends, header)


def _said_by_litdata(file: Path, config: dict[str, Any]) -> str:
    """The type of the tokens; what is no plain array of them is refused."""
    for key in ("compression", "encryption"):
        if config.get(key):
            raise ShardError(f"{file}: has {key} {config[key]}; write it without, or unpack it")
    formats = config.get("data_format")
    kind = LITDATA_TYPES.get(str(formats[0])) if formats and len(formats) == 1 else None
    if config.get("item_loader") != "TokensLoader" or kind is None:
        raise ShardError(
            f"{file}: its items are {formats}; only tokens are read that were written with "
            "TokensLoader as int32, uint16 or uint32"
        )
    return kind


ENDINGS = {".ds": _datatrove, ".bin": _megatron, ".npy": _dolma}
