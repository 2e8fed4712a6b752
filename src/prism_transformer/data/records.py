"""Records of one file: its texts in order, each by its number, and why one cannot be used.

A reader takes a file, here or on the hub, the key of the text, how many records to pass over, which
part of the file to read and which records to leave out. What is broken as a whole, such as a
truncated archive, is an error; a single bad record comes as ``Unusable``, and ``corpora.py``
decides whether to go on without it.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

from prism_transformer.core.errors import InputError
from prism_transformer.data.conditions import Condition

if TYPE_CHECKING:
    import pyarrow

PARQUET_ROWS = 1024
AT_ONCE = 2**20  # bytes of lines: in small pieces, calls of the system would be half the reading
FIELDS_NAMED = 12  # of a record that has not the one that is asked for
VALUE_SHOWN = 40  # characters


class Unusable(NamedTuple):
    """A record without a text to train on."""

    place: str
    """in its file: ``line 3``, ``row 7``"""
    cause: str
    """the same words for the same trouble: a manifest counts by them"""
    detail: str = ""
    left_out: bool = False
    """sound, but not wanted: it fails a condition"""

    def __str__(self) -> str:
        return f"{self.place}: {self.cause}{self.detail}".removeprefix(": ")


Records = Iterator[tuple[int, str | Unusable]]


class Source(Protocol):
    """A file, as a path is one; also one that is elsewhere."""

    @property
    def name(self) -> str: ...

    def open(self, mode: Any = ..., /) -> IO[Any]: ...

    def stat(self) -> Any: ...


class Part(NamedTuple):
    """Which part of a file: bytes where it is made of lines, rows of Parquet."""

    start: int = 0
    stop: int | None = None
    """None: to its end"""


WHOLE = Part()
Where = tuple[Condition, ...]


class Reader(Protocol):
    """Records of a file from a number on; in a part of lines they are counted from its start."""

    def __call__(
        self, file: Source, key: str, skip: int, part: Part = ..., where: Where = ..., /
    ) -> Records: ...


def text_at(row: Any, key: str, place: str, where: Where = ()) -> str | Unusable:
    """The text of a record, by the name of its field or by a path as in ``data.text``."""
    if not isinstance(row, dict):
        return Unusable(place, "is no JSON object", f": {_short(row)}")
    for condition in where:
        value = _value(row, condition.field, place, "--where")
        if isinstance(value, Unusable):
            return value
        if not condition.holds(value):
            return Unusable(place, f"not {condition}", left_out=True)
    value = _value(row, key, place, "--text-key")
    if not isinstance(value, str | Unusable):
        return Unusable(place, f"its {key!r} is not text", f" but {_short(value)}")
    return value


def _plain_text(row: Any, key: str, where: Where) -> str | None:
    """What ``text_at`` would find, in one step, where nothing is out of the ordinary."""
    text = row.get(key) if not where and isinstance(row, dict) else None
    return text if isinstance(text, str) else None


def _value(row: dict[str, Any], key: str, place: str, option: str) -> Any:
    value: Any = row
    for part in [key] if key in row else key.split("."):
        if not isinstance(value, dict) or part not in value:
            there = ", ".join(list(_fields(row))[:FIELDS_NAMED]) or "none"
            return Unusable(place, f"has no field {key!r}", f"; {option} names one of: {there}")
        value = value[part]
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


def _read_txt(
    file: Source, _key: str, skip: int, _part: Part = WHOLE, where: Where = ()
) -> Records:
    if where:
        raise InputError(f"{file}: is plain text and has no field {where[0].field!r} for --where")
    if skip:
        return
    with file.open("rb") as stream:
        content = stream.read()
    try:
        yield 0, content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield 0, _not_utf8("", content, error)


def _not_utf8(place: str, content: bytes, error: UnicodeDecodeError) -> Unusable:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return Unusable(place, "begins with a byte-order mark of UTF-16", "; save it as UTF-8")
    return Unusable(place, "not UTF-8 text", f" at byte {error.start}")


def _read_jsonl(
    file: Source, key: str, skip: int, part: Part = WHOLE, where: Where = ()
) -> Records:
    with file.open("rb") as raw:
        stream = io.BufferedReader(raw, AT_ONCE)  # type: ignore[type-var]
        if part.start:  # a line belongs to the part that it begins in
            stream.seek(part.start - 1)
            stream.readline()
        lines = stream if part.stop is None else _lines_until(stream, part.stop)
        yield from _json_lines(lines, key, skip, where, begins=not part.start)


def _lines_until(stream: IO[bytes], stop: int) -> Iterator[bytes]:
    position = stream.tell()
    while position < stop and (line := stream.readline()):
        position += len(line)
        yield line


def _read_gzip(
    file: Source, key: str, skip: int, _part: Part = WHOLE, where: Where = ()
) -> Records:
    try:
        with file.open("rb") as raw, gzip.open(raw, "rb") as packed:
            yield from _json_lines(io.BufferedReader(packed, AT_ONCE), key, skip, where)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{file}: broken gzip: {error}") from None


def _read_zstd(
    file: Source, key: str, skip: int, _part: Part = WHOLE, where: Where = ()
) -> Records:
    import zstandard

    try:
        with file.open("rb") as raw:
            packed = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
            yield from _json_lines(io.BufferedReader(packed, AT_ONCE), key, skip, where)
    except zstandard.ZstdError as error:
        raise InputError(f"{file}: broken zstd: {error}") from None


def _json_lines(
    stream: Iterable[bytes], key: str, skip: int, where: Where = (), *, begins: bool = True
) -> Records:
    import orjson  # not at the top: training from shards imports this module, and needs none of it

    for record, raw in enumerate(stream):
        # Many editors begin a file with a mark, which says nothing of its text.
        line = raw.removeprefix(codecs.BOM_UTF8) if begins and not record else raw
        if record < skip or not line or line.isspace():
            continue
        try:
            row = orjson.loads(line)
        except ValueError as error:
            yield record, _not_json(line, f"line {record + 1}", error)
            continue
        yield record, _plain_text(row, key, where) or text_at(row, key, f"line {record + 1}", where)


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


def _read_parquet(
    file: Source, key: str, skip: int, part: Part = WHOLE, where: Where = ()
) -> Records:
    import pyarrow
    from pyarrow import parquet

    skip = max(skip, part.start)
    try:
        with file.open("rb") as stream, parquet.ParquetFile(stream) as table:
            fields = {name: _column(table.schema_arrow, name, file) for name in _keys(key, where)}
            groups, first = _groups(table.metadata, skip, part.stop)
            wanted = list(fields)
            for batch in table.iter_batches(PARQUET_ROWS, row_groups=groups, columns=wanted):
                before = max(skip - first, 0)
                columns = {name: _inner(batch, way)[before:] for name, way in fields.items()}
                for record, cells in enumerate(zip(*columns.values(), strict=True), first + before):
                    yield record, _cells(dict(zip(columns, cells, strict=True)), key, record, where)
                first += len(batch)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise InputError(f"{file}: broken parquet: {error}") from None


def _keys(key: str, where: Where) -> list[str]:
    return list(dict.fromkeys([key, *(condition.field for condition in where)]))


def _groups(metadata: Any, skip: int, stop: int | None) -> tuple[list[int], int]:
    """Row groups from the one with row ``skip`` up to row ``stop``, and their first row."""
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    starts = list(accumulate(rows, initial=0))
    groups = [
        number
        for number in range(len(rows))
        if starts[number + 1] > skip and (stop is None or starts[number] < stop)
    ]
    return groups, starts[groups[0]] if groups else 0


def _inner(batch: pyarrow.RecordBatch, way: list[str]) -> Any:
    """A column of a batch, also inside of another."""
    from pyarrow import compute

    column = batch.column(way[0])
    return compute.struct_field(column, way[1:]) if way[1:] else column


def parts_of(file: Source, size: int) -> list[Part]:
    """A file cut into parts of about so many bytes, which together are the file; or as one."""
    name, n_bytes = file.name.lower(), file.stat().st_size
    if n_bytes <= size:
        return [WHOLE]
    if name.endswith(".jsonl"):
        return [Part(start, min(start + size, n_bytes)) for start in range(0, n_bytes, size)]
    if name.endswith(".parquet") and isinstance(file, Path):  # elsewhere a footer is a request
        return _row_parts(file, size)
    return [WHOLE]


def lines_before(file: Source, part: Part) -> int:
    """Lines of a file that begin before a part of it; none where records count otherwise."""
    if not part.start or not file.name.lower().endswith(".jsonl"):
        return 0
    with file.open("rb") as stream:
        left, lines = part.start - 1, 0
        while content := stream.read(min(left, 2**20)):
            left -= len(content)
            lines += content.count(b"\n")
        return lines + bool(stream.readline())


def _row_parts(file: Path, size: int) -> list[Part]:
    import pyarrow
    from pyarrow import parquet

    try:
        metadata = parquet.read_metadata(file)
    except (pyarrow.ArrowInvalid, OSError):  # whoever reads it will say so
        return [WHOLE]
    parts, start, row, n_bytes = [], 0, 0, 0
    share = file.stat().st_size / max(metadata.num_rows, 1)
    for number in range(metadata.num_row_groups):
        rows = metadata.row_group(number).num_rows
        row, n_bytes = row + rows, n_bytes + int(rows * share)
        if n_bytes >= size or number == metadata.num_row_groups - 1:
            parts.append(Part(start, row))
            start, n_bytes = row, 0
    return parts or [WHOLE]


def _column(schema: pyarrow.Schema, key: str, file: Source) -> list[str]:
    """The column of a key, and the way from there to the text where it is nested."""
    if key in schema.names:
        return [key]
    there = list(_columns(schema))
    if key not in there:
        raise InputError(
            f"{file}: has no column {key!r}; --text-key names one of: {', '.join(there)}"
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


def _cells(cells: dict[str, Any], key: str, record: int, where: Where) -> str | Unusable:
    place = f"row {record}"
    try:
        row = {name: cell.as_py() for name, cell in cells.items()}
    except UnicodeDecodeError as error:
        return Unusable(place, "not UTF-8 text", f" at byte {error.start}")
    return text_at(row, key, place, where)


# By the end of a file's name, in small letters.
READERS: dict[str, Reader] = {
    ".jsonl.gz": _read_gzip,
    ".jsonl.zst": _read_zstd,
    ".jsonl": _read_jsonl,
    ".txt": _read_txt,
    ".parquet": _read_parquet,
}


def find_reader(file: Source) -> Reader | None:
    """What reads a file, by its name; None where nothing does."""
    name = file.name.lower()
    return next((reader for ending, reader in READERS.items() if name.endswith(ending)), None)
