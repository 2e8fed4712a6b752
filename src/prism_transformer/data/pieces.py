"""A piece of a corpus, encoded: its tokens, and where each document ends.

A piece is on the disk whole or not at all, and the same whoever made it: three files, of which the
last to appear says what the others must be.

pieces/
  000007.tokens   the tokens of every document, the end-of-text token before each
  000007.npy      a row for each document: tokens, bytes of text, source, record
  000007.json     how many, their sums, and which records were skipped
  000007.problem  instead of them: what is wrong with the text
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from prism_transformer.core.disk import file_sha256, write_whole
from prism_transformer.core.errors import InputError
from prism_transformer.core.sealed import SealedPart, read_sealed, typed, write_sealed
from prism_transformer.data.corpora import Document
from prism_transformer.data.shards import Tokens, variant_for
from prism_transformer.data.stream import SAMPLE, Encoded, encode_documents, hold_against_tiktoken
from prism_transformer.data.tokenizer import Tokenizer

LEFT_OUT, DOUBLE = "left out by filters", "duplicates of others"
TOKENS, TEXT, SOURCE, RECORD = range(4)  # columns of a piece's documents


class Skipped(NamedTuple):
    """A record without text, behind so many documents of its piece."""

    behind: int
    cause: str


class PieceFacts(SealedPart):
    """How much a piece holds."""

    tokens: int
    documents: int
    text_bytes: int
    skipped: list[Skipped]
    sha256: dict[str, str]


class PieceFiles:
    """The files of one piece."""

    def __init__(self, folder: Path, number: int) -> None:
        self.tokens, self.rows, self.facts_file, self.problem_file = (
            folder / f"{number:06d}.{ending}" for ending in ("tokens", "npy", "json", "problem")
        )

    def facts(self) -> PieceFacts | None:
        """What the piece holds, if it is there."""
        if not self.facts_file.exists():
            return None
        try:
            return typed(self.facts_file, read_sealed(self.facts_file), PieceFacts)
        except InputError as error:
            raise InputError(f"{error}; remove it to make it again") from None

    def problem(self) -> str | None:
        """What is wrong with the text of the piece, if something is."""
        try:
            return str(json.loads(self.problem_file.read_text("utf-8")))
        except FileNotFoundError:
            return None

    def documents(self) -> Tokens:
        """A row for each document."""
        return np.load(self.rows, mmap_mode="r")

    def open_tokens(self, vocab_size: int) -> Tokens:
        """The tokens, mapped into memory."""
        return np.memmap(self.tokens, variant_for(vocab_size).dtype, "r")

    def check(self, facts: PieceFacts) -> None:
        """Refuse files that are not what was written."""
        for file in (self.tokens, self.rows):
            if not file.exists() or file_sha256(file) != facts.sha256[file.suffix]:
                raise InputError(f"{file}: is damaged; remove {self.facts_file} to make it again")


class PieceWriter:
    """Encodes documents into the files of a piece."""

    def __init__(self, files: PieceFiles, tokenizer: Tokenizer) -> None:
        self.files = files
        self.tokenizer = tokenizer
        self.dtype = variant_for(tokenizer.vocab_size).dtype
        self.rows: list[tuple[int, int, int, int]] = []

    def write(self, documents: Iterable[Document], skipped: list[Skipped]) -> None:
        """Write a piece; ``skipped`` is read at the end, when the documents have been."""
        parts = {file: _partial(file) for file in (self.files.tokens, self.files.rows)}
        with parts[self.files.tokens].open("wb") as stream:
            for number, encoded in enumerate(encode_documents(documents, self.tokenizer)):
                if number < SAMPLE:
                    hold_against_tiktoken(self.tokenizer, encoded)
                stream.write(encoded.tokens.astype(self.dtype, casting="safe", copy=False).data)
                self.rows.append(_row(encoded))
        rows = np.array(self.rows, np.int64).reshape(-1, 4)
        with parts[self.files.rows].open("wb") as stream:
            np.save(stream, rows)
        sums = {file.suffix: file_sha256(part) for file, part in parts.items()}
        for file, part in parts.items():
            part.replace(file)
        tokens, text_bytes = (int(each) for each in rows[:, :2].sum(0))
        facts = PieceFacts(
            tokens=tokens, documents=len(rows), text_bytes=text_bytes, skipped=skipped, sha256=sums
        )
        write_sealed(self.files.facts_file, facts.model_dump(mode="json"))


def _partial(file: Path) -> Path:
    # By name, not by process: a task that is repeated writes over what the dead one left.
    return file.with_name(f"{file.name}.partial")


def _row(encoded: Encoded) -> tuple[int, int, int, int]:
    source, record = encoded.document.position
    return len(encoded.tokens), encoded.text_bytes, source, record


def causes(skipped: Iterable[Skipped]) -> Counter[str]:
    """How many records were skipped, by the cause."""
    return Counter(each.cause for each in skipped)


def write_problem(files: PieceFiles, error: InputError) -> None:
    """Leave word of what is wrong with a piece's text, for whoever waits for it."""
    write_whole(files.problem_file, json.dumps(str(error)))


def facts_of(folder: Path, count: int) -> list[PieceFacts]:
    """The pieces from the first on, as far as there is no gap; a problem in the gap is raised."""
    found: list[PieceFacts] = []
    for number in range(count):
        files = PieceFiles(folder, number)
        facts = files.facts()
        if facts is None:
            break
        found.append(facts)
    return found
