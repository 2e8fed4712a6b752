"""Documents to shards: bounded memory, all cores, and exact continuation after any interruption.

The tokens form one stream, the end-of-text token before each document. Validation takes whole
documents from its start until it has enough; training gets the rest, cut into shards. A shard
appears only when it is whole, and then the manifest records where the stream goes on, so a killed
preparation loses at most the shard it was writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prism_transformer.data.corpora import Corpus, Document
from prism_transformer.data.manifest import Manifest, ShardEntry, Split
from prism_transformer.data.shards import (
    MAX_SHARD_TOKENS,
    ShardWriter,
    Tokens,
    Variant,
    check_tokens,
    file_sha256,
    open_shard,
    variant_for,
)
from prism_transformer.data.tokenizer import Gpt2Tokenizer, Tokenizer
from prism_transformer.errors import InputError

BATCH_CHARACTERS = 1_000_000
AHEAD = 4  # batches that are encoded while one is written
SAMPLE = 4  # documents of every shard on which gigatoken is held against tiktoken

Report = Callable[[int], None]


@dataclass(frozen=True)
class Encoded:
    """A document's tokens, the end-of-text token first."""

    document: Document
    tokens: Tokens
    text_bytes: int


def prepare(
    corpus: Corpus, tokenizer: Tokenizer, manifest: Manifest, folder: Path, report: Report
) -> Manifest:
    """Write every shard that the folder does not have yet; ``report`` is told of text bytes."""
    if manifest.complete:
        return manifest
    if not 1 <= manifest.shard_tokens <= MAX_SHARD_TOKENS:
        raise InputError(f"{manifest.shard_tokens} tokens a shard; 1 to {MAX_SHARD_TOKENS} fit")
    stream = _Stream(corpus, tokenizer, manifest, report)
    variant = variant_for(tokenizer.vocab_size)
    while not manifest.complete:
        split: Split = "train" if manifest.of("val") or not manifest.val_tokens else "val"
        index = len(manifest.of(split))
        _write_shard(stream, manifest, folder / f"{split}_{index:06d}.bin", split, variant)
        manifest.save(folder)
    return manifest


def _write_shard(
    stream: _Stream, manifest: Manifest, file: Path, split: Split, variant: Variant
) -> None:
    """Write the next shard and note it in the manifest; at the stream's end note that instead."""
    try:
        writer = ShardWriter(file, variant)
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror}") from None
    try:
        count = stream.fill(writer, split)
        if split == "val" and writer.n_tokens <= manifest.val_tokens:
            raise InputError(
                f"{manifest.corpus}: has {writer.n_tokens} tokens, too few for a validation slice "
                f"of {manifest.val_tokens}; ask for less"
            )
        if split == "val" and stream.at_end():
            raise InputError(f"{manifest.corpus}: has no document left to train on")
        manifest.complete = stream.ended
        if writer.n_tokens == 0:
            writer.abandon()
            if split == "train" and not manifest.of("train"):
                raise InputError(f"{manifest.corpus}: has no document to train on")
            return
        writer.finish()
    except OSError as error:
        writer.abandon()
        raise InputError(
            f"{file}: cannot be written: {error.strerror}; the shards before it are whole, run "
            "again to go on"
        ) from None
    except BaseException:
        writer.abandon()
        raise
    manifest.shards.append(
        ShardEntry(
            file=file.name,
            split=split,
            tokens=writer.n_tokens,
            documents=count.documents,
            text_bytes=count.text_bytes,
            sha256=file_sha256(file),
        )
    )
    manifest.next_document, manifest.next_token = stream.position, stream.written


@dataclass
class _Count:
    documents: int = 0
    text_bytes: int = 0


class _Stream:
    """The corpus as one stream of tokens, from where the manifest says it goes on."""

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, manifest: Manifest, report: Report
    ) -> None:
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.report = report
        self.position = manifest.next_document
        self.written = manifest.next_token
        self.documents = encode_documents(corpus.documents(self.position), tokenizer)
        self.current: Encoded | None = None
        self.ended = False

    def fill(self, writer: ShardWriter, split: Split) -> _Count:
        """Write until the shard is full, or validation has enough, or the corpus ends."""
        count = _Count()
        checked = 0
        while not self._enough(writer, split) and not self.at_end():
            assert self.current is not None
            if checked < SAMPLE:
                hold_against_tiktoken(self.tokenizer, self.current)
                checked += 1
            self._write(writer, split, count)
        return count

    def at_end(self) -> bool:
        """Whether there is no document any more; takes the next one in hand if there is."""
        if self.current is None:
            self.current = next(self.documents, None)
            if self.current is not None:
                self.position = self.current.document.position
        self.ended = self.current is None
        return self.ended

    def _enough(self, writer: ShardWriter, split: Split) -> bool:
        if split == "val":  # whole documents: training begins with the next one
            return self.current is None and writer.n_tokens > self.manifest.val_tokens
        wanted = self.manifest.train_tokens_wanted
        if wanted is not None and self.current is None:
            self.ended = self.manifest.tokens("train") + writer.n_tokens >= wanted
        return self.ended or writer.n_tokens == self.manifest.shard_tokens

    def _write(self, writer: ShardWriter, split: Split, count: _Count) -> None:
        """Write what fits of the current document."""
        assert self.current is not None
        if self.written == 0:
            count.documents += 1
            count.text_bytes += self.current.text_bytes
        room = self.manifest.shard_tokens - writer.n_tokens if split == "train" else None
        piece = self.current.tokens[self.written :][:room]
        writer.append(piece)
        self.written += len(piece)
        if self.written == len(self.current.tokens):
            self.report(self.current.text_bytes)
            source, record = self.current.document.position
            self.position, self.written, self.current = (source, record + 1), 0, None


def encode_documents(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[Encoded]:
    """Encode in batches, some of them ahead of the one in use."""
    with ThreadPoolExecutor(AHEAD) as worker:
        waiting = []
        for batch in _batches(documents):
            waiting.append(worker.submit(_encode, batch, tokenizer))
            if len(waiting) > AHEAD:
                yield from waiting.pop(0).result()
        for future in waiting:
            yield from future.result()


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch, size = [], 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encode(batch: Sequence[Document], tokenizer: Tokenizer) -> list[Encoded]:
    end = np.asarray([tokenizer.end_of_text])
    rows = tokenizer.encode_batch([document.text for document in batch])
    return [
        Encoded(document, np.concatenate((end.astype(row.dtype), row)), len(document.text.encode()))
        for document, row in zip(batch, rows, strict=True)
    ]


def hold_against_tiktoken(tokenizer: Tokenizer, encoded: Encoded) -> None:
    """Where gigatoken encodes, its tokens must be tiktoken's."""
    if isinstance(tokenizer, Gpt2Tokenizer) and tokenizer.fast is not None:
        expected = tokenizer.encode_slowly(encoded.document.text)
        if not np.array_equal(encoded.tokens[1:], expected):
            raise InputError(
                f"document {encoded.document.position}: gigatoken and tiktoken disagree; "
                "go on with --no-gigatoken"
            )


def verify(manifest: Manifest, folder: Path) -> Iterator[str]:
    """Check every shard in full: header, length, sha256, token ids; yields the name of each."""
    for shard in manifest.shards:
        file = folder / shard.file
        tokens = open_shard(file)
        if len(tokens) != shard.tokens or file_sha256(file) != shard.sha256:
            raise InputError(f"{file}: is not the shard that was prepared: sha256 differs")
        check_tokens(file, tokens, manifest.vocab_size)
        yield shard.file
