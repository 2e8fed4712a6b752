"""Token shards: the file format of llm.c and modded-nanogpt, read and written.

A shard is 256 int32 of header (magic, version, number of tokens, zeros), then the tokens. The magic
says their type, so a file of one type is never read as the other.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism_transformer.errors import InputError

Tokens = NDArray[Any]

HEADER_INTS = 256
HEADER_BYTES = 4 * HEADER_INTS
WRITE_BYTES = 2**22
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
        with file.open("rb") as stream:
            raw = stream.read(HEADER_BYTES)
    except OSError as error:
        raise ShardError(f"{file}: cannot be read: {error.strerror}") from None
    if len(raw) < HEADER_BYTES:
        raise ShardError(f"{file}: has {len(raw)} bytes, less than a shard's header")
    header = np.frombuffer(raw, "<i4")
    for variant in VARIANTS:
        if header[0] == variant.magic:
            if header[1] != variant.version:
                raise ShardError(f"{file}: version {header[1]}, expected {variant.version}")
            if header[2] < 1 or header[3:].any():
                raise ShardError(f"{file}: damaged header: {header[2]} tokens")
            return variant, int(header[2])
    known = " or ".join(str(variant.magic) for variant in VARIANTS)
    raise ShardError(f"{file}: starts with {header[0]}, not a shard's magic {known}")


def check_tokens(file: Path, tokens: Tokens, vocab_size: int) -> None:
    """Refuse a shard with a token that the vocabulary has not."""
    largest = max((int(part.max()) for part in _parts(tokens)), default=0)
    if largest >= vocab_size:
        raise ShardError(
            f"{file}: has token {largest}, beyond the vocabulary of {vocab_size}; "
            "it was made with another tokenizer"
        )


def file_sha256(file: Path) -> str:
    """Hash of a whole file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _parts(tokens: Tokens, size: int = 2**22) -> list[Tokens]:
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]


class ShardWriter:
    """Writes one shard under a temporary name; ``finish`` makes it appear under its own."""

    def __init__(self, file: Path, variant: Variant) -> None:
        self.file = file
        self.variant = variant
        self.n_tokens = 0
        self.partial = file.with_name(file.name + ".partial")
        self.stream = self.partial.open("wb", buffering=WRITE_BYTES)
        self.stream.write(bytes(HEADER_BYTES))

    def append(self, tokens: Tokens) -> None:
        """Add tokens; a type that could hold one too large for the layout is refused."""
        self.stream.write(tokens.astype(self.variant.dtype, casting="safe", copy=False).data)
        self.n_tokens += len(tokens)

    def finish(self) -> None:
        """Write the header, and let the file appear whole."""
        header = np.zeros(HEADER_INTS, "<i4")
        header[:3] = self.variant.magic, self.variant.version, self.n_tokens
        self.stream.seek(0)
        self.stream.write(header.tobytes())
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()
        self.partial.replace(self.file)

    def abandon(self) -> None:
        """Drop what was written, also where the disk is too full to write the rest."""
        with suppress(OSError):
            self.stream.close()
        self.partial.unlink(missing_ok=True)
