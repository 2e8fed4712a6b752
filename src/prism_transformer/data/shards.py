"""Token shards in the format of llm.c and modded-nanogpt, and the manifest of a folder of them.

A shard is 256 int32 of header (magic, version, number of tokens, zeros), then the tokens. The magic
says their type, so a file of one type is never read as the other.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from prism_transformer.core.disk import (
    file_sha256,
    open_here,
    opened,
    plain_name,
    reading,
    write_whole,
)
from prism_transformer.core.errors import InputError, plain_reason
from prism_transformer.core.sealed import read_sealed, sealed_json

Tokens = NDArray[Any]
Split = Literal["val", "train"]
SPLITS: tuple[Split, ...] = ("val", "train")

MANIFEST_FILE = "manifest.json"
HEADER_INTS = 256
HEADER_BYTES = 4 * HEADER_INTS
AT_ONCE = 2**22  # bytes to write and tokens to check: bounded memory
BLOCK_BYTES = 2**22  # of a shard that have a sum of their own
BLOCK_DIGITS = 16  # of that sum that are kept
MAX_SHARD_TOKENS = 2**31 - 1  # the header counts in int32


@dataclass(frozen=True)
class Variant:
    """One of the two layouts in use."""

    magic: int
    version: int
    dtype: np.dtype[Any]


UINT16 = Variant(20240520, 1, np.dtype("<u2"))
UINT32 = Variant(20240801, 7, np.dtype("<u4"))  # as llm.c writes Llama 3 tokens
VARIANTS = (UINT16, UINT32)


class ShardError(InputError):
    """A file that is not the shard it should be."""


def variant_for(vocab_size: int) -> Variant:
    """The smallest layout that holds every token of a vocabulary."""
    return UINT16 if vocab_size <= 2**16 else UINT32


def open_shard(file: Path) -> Tokens:
    """The tokens of a shard, memory-mapped; header and length are checked."""
    variant, n_tokens = _read_header(file)
    expected = HEADER_BYTES + n_tokens * variant.dtype.itemsize
    actual = file.stat().st_size
    if actual != expected:
        raise ShardError(
            f"{file}: has {actual} bytes where its header promises {n_tokens} tokens of "
            f"{variant.dtype.itemsize} bytes, {expected} in all; it is truncated or of another type"
        )
    return np.memmap(file, variant.dtype, "r", offset=HEADER_BYTES, shape=(n_tokens,))


def _read_header(file: Path) -> tuple[Variant, int]:
    try:
        with opened(file) as stream:
            raw = stream.read(HEADER_BYTES)
    except OSError as error:
        raise ShardError(f"{file}: cannot be read: {error.strerror}") from None
    if len(raw) < HEADER_BYTES:
        raise ShardError(f"{file}: has {len(raw)} bytes, less than a shard's header")
    magic, version, n_tokens, *rest = np.frombuffer(raw, "<i4").tolist()
    variant = next((each for each in VARIANTS if each.magic == magic), None)
    if variant is None:
        known = " or ".join(str(each.magic) for each in VARIANTS)
        raise ShardError(f"{file}: starts with {magic}, not a shard's magic {known}")
    if version != variant.version:
        raise ShardError(f"{file}: version {version}, expected {variant.version}")
    if n_tokens < 1 or any(rest):
        raise ShardError(f"{file}: damaged header: {n_tokens} tokens")
    return variant, n_tokens


def open_entry(folder: Path, entry: ShardEntry) -> Tokens:
    """The tokens of a shard of a manifest, memory-mapped; their number is checked."""
    file = folder / entry.file
    if entry.token_type is None:
        tokens = open_shard(file)
        if len(tokens) != entry.tokens:
            raise ShardError(f"{file}: is not the shard that was prepared: sha256 differs")
        return tokens
    dtype = np.dtype(entry.token_type).newbyteorder("<")
    stop = entry.start + entry.tokens
    if not file.exists() or file.stat().st_size < stop * dtype.itemsize:
        raise ShardError(f"{file}: is gone, or shorter than when it was taken in")
    return np.memmap(file, dtype, "r", shape=(stop,))[entry.start :]


def check_tokens(file: Path, tokens: Tokens, vocab_size: int) -> None:
    """Refuse a shard with a token that the vocabulary has not."""
    parts = (tokens[start : start + AT_ONCE] for start in range(0, len(tokens), AT_ONCE))
    largest = max((int(part.max()) for part in parts), default=0)
    if largest >= vocab_size:
        raise ShardError(
            f"{file}: has token {largest}, beyond the vocabulary of {vocab_size}; "
            "it was made with another tokenizer"
        )


class ShardWriter:
    """Writes one shard under a temporary name; ``finish`` makes it appear under its own."""

    def __init__(self, file: Path, variant: Variant) -> None:
        self.file = file
        self.variant = variant
        self.n_tokens = 0
        self.partial = file.with_name(file.name + ".partial")
        self.partial.unlink(missing_ok=True)  # of a writer that was killed; the folder is locked
        number = open_here(self.partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self.stream = os.fdopen(number, "wb", buffering=AT_ONCE)
        self.stream.write(bytes(HEADER_BYTES))

    def append(self, tokens: Tokens) -> None:
        """Add tokens; a type that could hold one too large for the layout is refused."""
        self.stream.write(tokens.astype(self.variant.dtype, casting="safe", copy=False).data)
        self.n_tokens += len(tokens)

    def finish(self) -> tuple[str, Blocks]:
        """Write the header, and let the file appear whole; its sums, as ``sums_of`` has them."""
        header = np.zeros(HEADER_INTS, "<i4")
        header[:3] = self.variant.magic, self.variant.version, self.n_tokens
        self.stream.seek(0)
        self.stream.write(header.tobytes())
        self.stream.flush()
        with ThreadPoolExecutor(1) as beside:
            on_disk = beside.submit(os.fsync, self.stream.fileno())
            sums = sums_of(self.partial)
            on_disk.result()
        self.stream.close()
        self.partial.replace(self.file)
        return sums

    def abandon(self) -> None:
        """Drop what was written, also where the disk is too full to write the rest."""
        with suppress(OSError):
            self.stream.close()
        self.partial.unlink(missing_ok=True)


class Blocks(BaseModel):
    """A sum for every so many bytes of a file, from its start: enough to notice that it rots."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int
    sha256: str | tuple[str, ...]
    """the first digits of every sum, one after the other: a corpus of a terabyte has 250,000 of
    them, to be read at every start; older manifests have a list of whole ones"""

    @property
    def count(self) -> int:
        whole = len(self.sha256)
        return whole // BLOCK_DIGITS if isinstance(self.sha256, str) else whole

    def differs(self, file: Path, number: int) -> bool:
        """Whether a block is not what it was."""
        with reading(file), opened(file) as stream:
            stream.seek(number * self.size)
            content = stream.read(self.size)
        known = self.sha256[number]
        if isinstance(self.sha256, str):
            known = self.sha256[number * BLOCK_DIGITS :][:BLOCK_DIGITS]
        return not hashlib.sha256(content).hexdigest().startswith(known)


def sums_of(file: Path, size: int = BLOCK_BYTES) -> tuple[str, Blocks]:
    """The sha256 of a file, and that of every part of it, side by side."""
    with ThreadPoolExecutor(1) as beside, opened(file) as stream:
        whole = beside.submit(file_sha256, file)
        parts = ""
        while content := stream.read(size):
            parts += hashlib.sha256(content).hexdigest()[:BLOCK_DIGITS]
        return whole.result(), Blocks(size=size, sha256=parts)


class ShardEntry(BaseModel):
    """One shard, as it was written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    split: Split
    tokens: int
    documents: int  # that begin in it
    text_bytes: int  # UTF-8 bytes of those documents
    sha256: str
    blocks: Blocks | None = None  # older manifests have none
    start: int = 0  # token of the file that it begins at
    token_type: str | None = None  # of another tool's file, which has no header

    @field_validator("file")
    @classmethod
    def _in_its_folder(cls, name: str) -> str:
        return plain_name(name)


class Manifest(BaseModel):
    """What was prepared, from what, and how far it got: also the journal of a preparation."""

    model_config = ConfigDict(extra="forbid")

    corpus: str
    corpus_fingerprint: str
    tokenizer: str
    tokenizer_fingerprint: str
    vocab_size: int
    end_of_text: int
    shard_tokens: int
    val_tokens: int  # scored; the validation shard has at least one more
    train_tokens_wanted: int | None
    revision: str | None = None  # commit of the hub that the corpus was read at
    where: list[str] = []  # conditions on fields
    filters: list[str] = []  # of datatrove
    dedup: list[str] = []  # kinds of deduplication
    source: str | None = None  # folder of another tool's files, which are used as they are
    complete: bool = False
    # Where to go on: the document that the next token comes from, and how many of its tokens are
    # written already.
    next_document: tuple[int, int] = (0, 0)
    next_token: int = 0
    val_cut: bool = False  # validation ends within a document, which goes on in training
    skipped: dict[str, int] = {}  # records that could not be used, by the cause
    shards: list[ShardEntry] = []

    def of(self, split: Split) -> list[ShardEntry]:
        return [shard for shard in self.shards if shard.split == split]

    def tokens(self, split: Split) -> int:
        return sum(shard.tokens for shard in self.of(split))

    def home(self, folder: Path) -> Path:
        """Where the files of the shards are."""
        return folder if self.source is None else Path(self.source)

    def save(self, folder: Path) -> None:
        write_whole(folder / MANIFEST_FILE, sealed_json(self.model_dump(mode="json")))


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder, if it has one."""
    file = folder / MANIFEST_FILE
    if not file.exists():
        return None
    facts = read_sealed(file)
    try:
        return Manifest.model_validate(facts)
    except ValidationError as error:
        raise InputError(f"{file}: is damaged: {plain_reason(error.errors()[0])}") from None
