"""Records of one file: its texts in order, each by its number, and why one cannot be used.

A reader takes a path, the key of the text and how many records to pass over. What is broken as a
whole, such as a truncated archive, is an error; a single bad record comes as ``Unusable``, and
``corpora.py`` decides whether to go on without it.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prism_transformer.core.errors import InputError

if TYPE_CHECKING:
    import pyarrow

PARQUET_ROWS = 1024
FIELDS_NAMED = 12  # of a record that has not the one that is asked for
VALUE_SHOWN = 40  # characters


class Unusable(NamedTuple):
    """A record without a text to train on."""

    place: str
    """in its file: ``line 3``, ``row 7``"""
    cause: str
    """the same words for the same trouble: a manifest counts by them"""
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.cause}{self.detail}".removeprefix(": ")


Records = Iterator[tuple[int, str | Unusable]]
Reader = Callable[[Path, str, int], Records]


def text_at(row: Any, key: str, place: str) -> str | Unusable:
    """The text of a record, by the name of its field or by a path as in ``data.text``."""
    if not isinstance(row, dict):
        return Unusable(place, "is no JSON object", f": {_short(row)}")
    value: Any = row
    for part in [key] if key in row else key.split("."):
        if not isinstance(value, dict) or part not in value:
            there = ", ".join(list(_fields(row))[:FIELDS_NAMED]) or "none"
            return Unusable(place, f"has no field {key!r}", f"; --text-key names one of: {there}")
        value = value[part]
    if not isinstance(value, str):
        return Unusable(place, f"its {key!r} is not text", f" but {_short(value)}")
    return value


def _fields(row: dict[str, Any], above: str = "") -> Iterator[str]:
    """Names of fields as ``--text-key`` takes them."""
    for name, value in row.items():
        if isinstance(value, dict) and value:
            yield from _fields(value, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def _short(value: Any) -> str:
    shown = "null" if value is None else str(value)
    return shown if len(shown) <= VALUE_SHOWN else f"{shown[:VALUE_SHOWN]}..."


def _read_txt(path: Path, _key: str, skip: int) -> Records:
    if skip:
        return
    content = path.read_bytes()
    try:
        yield 0, content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield 0, _not_utf8("", content, error)


def _not_utf8(place: str, content: bytes, error: UnicodeDecodeError) -> Unusable:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return Unusable(place, "begins with a byte-order mark of UTF-16", "; save it as UTF-8")
    return Unusable(place, "not UTF-8 text", f" at byte {error.start}")


def _read_jsonl(path: Path, key: str, skip: int) -> Records:
    with path.open("rb") as stream:
        yield from _json_lines(stream, key, skip)


def _read_gzip(path: Path, key: str, skip: int) -> Records:
    try:
        with gzip.open(path, "rb") as stream:
            yield from _json_lines(stream, key, skip)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: broken gzip: {error}") from None


def _read_zstd(path: Path, key: str, skip: int) -> Records:
    import zstandard

    try:
        with path.open("rb") as raw:
            packed = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
            yield from _json_lines(io.BufferedReader(packed), key, skip)
    except zstandard.ZstdError as error:
        raise InputError(f"{path}: broken zstd: {error}") from None


def _json_lines(stream: Iterable[bytes], key: str, skip: int) -> Records:
    import orjson  # not at the top: training from shards imports this module, and needs none of it

    for record, raw in enumerate(stream):
        # Many editors begin a file with a mark, which says nothing of its text.
        line = raw if record else raw.removeprefix(codecs.BOM_UTF8)
        if record < skip or not line.strip():
            continue
        place = f"line {record + 1}"
        try:
            row = orjson.loads(line)
        except ValueError as error:
            yield record, _not_json(line, place, error)
            continue
        yield record, text_at(row, key, place)


def _not_json(line: bytes, place: str, error: ValueError) -> Unusable:
    """Why a strict reader refused a line, by the help of Python's own, which is not strict."""
    if line.startswith(codecs.BOM_UTF8):
        return Unusable(place, "begins with a byte-order mark", ", which only a file may")
    try:
        text = line.decode()
    except UnicodeDecodeError as undecoded:
        return _not_utf8(place, line, undecoded)
    constants: list[str] = []
    try:
        json.loads(text, parse_constant=constants.append)
    except (ValueError, RecursionError):
        reason = str(error).partition(": line ")[0]
        column = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        return Unusable(place, "is not JSON", f": {reason}{column}")
    if constants:
        return Unusable(place, f"has {constants[0]}", ", which is not JSON; write null")
    return Unusable(place, "has a lone surrogate", r", as in \ud800, which is no character")


def _read_parquet(path: Path, key: str, skip: int) -> Records:
    import pyarrow
    from pyarrow import compute, parquet

    try:
        with parquet.ParquetFile(path) as file:
            top, *inner = _column(file.schema_arrow, key, path)
            first = 0  # record of the batch
            for batch in file.iter_batches(PARQUET_ROWS, columns=[key]):
                column = batch.column(top)[max(skip - first, 0) :]
                texts = compute.struct_field(column, inner) if inner else column
                for record, cell in enumerate(texts, start=max(skip, first)):
                    yield record, _cell(cell, key, f"row {record}")
                first += len(batch)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: broken parquet: {error}") from None


def _column(schema: pyarrow.Schema, key: str, path: Path) -> list[str]:
    """The column of a key, and the way from there to the text where it is nested."""
    if key in schema.names:
        return [key]
    there = list(_columns(schema))
    if key not in there:
        raise InputError(
            f"{path}: has no column {key!r}; --text-key names one of: {', '.join(there)}"
        )
    return key.split(".")


def _columns(fields: Iterable[pyarrow.Field], above: str = "") -> Iterator[str]:
    """Every column, also inside of others, by the name that ``--text-key`` takes."""
    from pyarrow import types

    for field in fields:
        if types.is_struct(field.type):
            yield from _columns(field.type, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}"


def _cell(cell: Any, key: str, place: str) -> str | Unusable:
    try:
        return text_at({key: cell.as_py()}, key, place)
    except UnicodeDecodeError as error:
        return Unusable(place, "not UTF-8 text", f" at byte {error.start}")


# By the end of a file's name, in small letters.
READERS: dict[str, Reader] = {
    ".jsonl.gz": _read_gzip,
    ".jsonl.zst": _read_zstd,
    ".jsonl": _read_jsonl,
    ".txt": _read_txt,
    ".parquet": _read_parquet,
}


def find_reader(path: Path) -> Reader | None:
    """What reads a file, by its name; None where nothing does."""
    name = path.name.lower()
    return next((reader for ending, reader in READERS.items() if name.endswith(ending)), None)
