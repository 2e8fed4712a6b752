"""The corpus as one stream of tokens, written into shards: bounded memory, all cores.

The end-of-text token stands before each document. Validation takes whole documents from the
stream's start until it has enough, or ends within one where whole ones would take most of the
corpus, as when it is a single text; training gets the rest, cut into shards. A shard appears only
when it is whole, and then the manifest records where the stream goes on, so a killed preparation
loses at most the shard it was writing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from prism_transformer.core.disk import writing
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Advance, Note, Tell, silent
from prism_transformer.data.corpora import Corpus, Document
from prism_transformer.data.records import Unusable
from prism_transformer.data.shards import (
    MAX_SHARD_TOKENS,
    Manifest,
    ShardEntry,
    ShardWriter,
    Split,
    Tokens,
    variant_for,
)
from prism_transformer.data.tokenizer import Gpt2Tokenizer, Tokenizer

BATCH_CHARACTERS = 1_000_000
AHEAD = 2  # batches that are encoded while one is written; with more, threads wait for each other
TOLD_BYTES = 1_000_000  # of text between two words of progress, at most
SKIPPED_TOLD = 5  # records that get a line; the others are only counted
SAMPLE = 4  # documents of every shard on which gigatoken is held against tiktoken
WHAT = "preparing"
REMEDY = "the shards before it are whole, run again to go on"


class Encoded(NamedTuple):
    """A document's tokens, the end-of-text token first."""

    document: Document
    tokens: Tokens
    text_bytes: int


def write_shards(
    corpus: Corpus, tokenizer: Tokenizer, manifest: Manifest, folder: Path, tell: Tell = silent
) -> None:
    """Write every shard that the folder does not have yet, and note each in the manifest."""
    if manifest.complete:
        return
    if not 1 <= manifest.shard_tokens <= MAX_SHARD_TOKENS:
        raise InputError(f"{manifest.shard_tokens} tokens a shard; 1 to {MAX_SHARD_TOKENS} fit")
    stream = _Stream(corpus, tokenizer, manifest, tell)
    kept: Future[None] | None = None
    with ThreadPoolExecutor(1) as thread:  # a shard goes to the disk while the next one fills
        while not manifest.complete:
            split: Split = "train" if manifest.of("val") or not manifest.val_tokens else "val"
            file = folder / f"{split}_{len(manifest.of(split)):06d}.bin"
            try:
                with writing(file, REMEDY):
                    writer = _write_shard(stream, file, split, kept)
            except _TooMuchHeldOut:  # before anything was kept: begin again, and cut
                manifest.val_cut = True
                stream = _Stream(corpus, tokenizer, manifest, tell)
                continue
            kept = thread.submit(_keep, writer, manifest, folder)
        if kept is not None:
            kept.result()
    stream.tell_done()


class _TooMuchHeldOut(Exception):
    """Whole documents would leave validation more of the corpus than training."""


def _keep(writer: ShardWriter | None, manifest: Manifest, folder: Path) -> None:
    """Bring the last shard to the disk, then its sums and the manifest."""
    if writer is not None:
        with writing(writer.file, REMEDY):
            try:
                sha256, blocks = writer.finish()
            except BaseException:
                writer.abandon()
                raise
        update = {"sha256": sha256, "blocks": blocks}
        manifest.shards[-1] = manifest.shards[-1].model_copy(update=update)
    with writing(folder, REMEDY):
        manifest.save(folder)


def _write_shard(
    stream: _Stream, file: Path, split: Split, before: Future[None] | None
) -> ShardWriter | None:
    """Write the next shard and note it in the manifest; at the stream's end note that instead.

    Its sums are not known yet. The manifest may change when the shard ``before`` has been kept.
    """
    manifest = stream.manifest
    writer = ShardWriter(file, variant_for(manifest.vocab_size))
    try:
        documents, text_bytes = stream.fill(writer, split)
        _check_enough(stream, writer.n_tokens, split)
        if before is not None:
            before.result()
    except BaseException:  # also Ctrl-C: half a shard is of no use to anybody
        writer.abandon()
        raise
    manifest.complete = stream.ended
    manifest.skipped = dict(stream.skipped)
    if writer.n_tokens == 0:  # the shard before took the last token
        writer.abandon()
        return None
    entry = ShardEntry(
        file=file.name,
        split=split,
        tokens=writer.n_tokens,
        documents=documents,
        text_bytes=text_bytes,
        sha256="",
    )
    manifest.shards.append(entry)
    manifest.next_document, manifest.next_token = stream.position, stream.written
    return writer


def _check_enough(stream: _Stream, n_tokens: int, split: Split) -> None:
    """Refuse a corpus that is too small to validate on, or has nothing left to train on."""
    manifest = stream.manifest
    if split == "val" and n_tokens <= manifest.val_tokens:
        raise InputError(
            f"{manifest.corpus}: has {n_tokens:,} tokens, too few for a validation slice "
            f"of {manifest.val_tokens:,}; ask for less, or give more text{_without(stream)}"
        )
    if split == "val":
        left = not stream.at_end()
        most = stream.n_bytes is not None and stream.text_bytes > stream.n_bytes / 2
        if not manifest.val_cut and (most or not left):
            raise _TooMuchHeldOut
        if not left:
            raise InputError(f"{manifest.corpus}: has no token left to train on")
    if n_tokens == 0 and not manifest.of("train"):
        raise InputError(f"{manifest.corpus}: has no document to train on{_without(stream)}")


def _without(stream: _Stream) -> str:
    skipped = sum(stream.skipped.values())
    return f"; {skipped:,} records were skipped" if skipped else ""


class _Stream:
    """The corpus as one stream of tokens, from where the manifest says it goes on."""

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, manifest: Manifest, tell: Tell
    ) -> None:
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.tell = tell
        self.n_bytes = corpus.n_bytes
        # Of all documents begun: one that a shard's end cuts counts in the shard it begins in.
        self.text_bytes = sum(shard.text_bytes for shard in manifest.shards)
        self.begun = 0
        self.position = manifest.next_document
        self.written = manifest.next_token
        self.skipped = Counter(manifest.skipped)
        self.told = sum(self.skipped.values())
        # Listeners may take longer for an event than a document takes.
        self.step = TOLD_BYTES if self.n_bytes is None else min(TOLD_BYTES, self.n_bytes // 1000)
        self.told_bytes = 0
        self.documents = encode_documents(corpus.documents(self.position), tokenizer)
        self.current: Encoded | None = None
        self.ended = False

    def fill(self, writer: ShardWriter, split: Split) -> tuple[int, int]:
        """Write until the shard is full, or validation has enough, or the corpus ends.

        Returns how many documents begin in the shard, and the bytes of their text.
        """
        begun, text_bytes, to_check = self.begun, self.text_bytes, SAMPLE
        self.trained = self.manifest.tokens("train")
        while not self._enough(writer, split) and not self.at_end():
            assert self.current is not None
            if to_check:
                hold_against_tiktoken(self.tokenizer, self.current)
                to_check -= 1
            self._write(self.current, writer, self._room(writer, split))
        return self.begun - begun, self.text_bytes - text_bytes

    def tell_done(self) -> None:
        """Nothing is left; the bytes on disk, JSON and compression included, were an estimate."""
        if self.text_bytes != self.n_bytes:
            self.tell(Advance(WHAT, self.text_bytes, self.text_bytes, "bytes"))

    def at_end(self) -> bool:
        """Whether there is no document any more; takes the next one in hand if there is."""
        while self.current is None and (taken := next(self.documents, None)) is not None:
            self.position = taken.document.position
            if taken.document.problem is None:
                self.current = taken
            else:
                self._skip(taken.document.problem)
        self.ended = self.current is None
        return self.ended

    def _skip(self, problem: Unusable) -> None:
        """Count a record that cannot be used, and go on behind it."""
        source, record = self.position
        self.position = source, record + 1
        self.skipped[problem.cause] += 1
        if self.told < SKIPPED_TOLD:
            self.told += 1
            self.tell(Note(f"skipped {problem}"))

    def _room(self, writer: ShardWriter, split: Split) -> int | None:
        """Tokens that the shard still takes; None where documents stay whole."""
        if split == "val":
            return self._val_end - writer.n_tokens if self.manifest.val_cut else None
        return self.manifest.shard_tokens - writer.n_tokens

    @property
    def _val_end(self) -> int:
        return self.manifest.val_tokens + 1  # the last token that is scored has one after it

    def _enough(self, writer: ShardWriter, split: Split) -> bool:
        if split == "val":  # whole documents: training begins with the next one
            whole = self.current is None or self.manifest.val_cut
            return whole and writer.n_tokens >= self._val_end
        wanted = self.manifest.train_tokens_wanted
        if wanted is not None and self.current is None:
            self.ended = self.trained + writer.n_tokens >= wanted
        return self.ended or writer.n_tokens == self.manifest.shard_tokens

    def _write(self, current: Encoded, writer: ShardWriter, room: int | None) -> None:
        """Write what fits of the current document."""
        if self.written == 0:
            self.begun += 1
            self.text_bytes += current.text_bytes
        piece = current.tokens[self.written :][:room]
        writer.append(piece)
        self.written += len(piece)
        if self.written == len(current.tokens):
            if self.text_bytes >= self.told_bytes + self.step:
                self.told_bytes = self.text_bytes
                self.tell(Advance(WHAT, self.text_bytes, self.n_bytes, "bytes"))
            source, record = current.document.position
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
    rows = tokenizer.encode_batch([document.text for document in batch])
    end = np.array([tokenizer.end_of_text], rows[0].dtype)
    # One array for all of them, of which each document has a part.
    flat = np.concatenate([part for row in rows for part in (end, row)])
    ends = accumulate(len(row) + 1 for row in rows)
    return [
        Encoded(document, flat[stop - len(row) - 1 : stop], _utf8_bytes(document.text))
        for document, row, stop in zip(batch, rows, ends, strict=True)
    ]


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def hold_against_tiktoken(tokenizer: Tokenizer, encoded: Encoded) -> None:
    """Where gigatoken encodes, its tokens must be tiktoken's."""
    if isinstance(tokenizer, Gpt2Tokenizer) and tokenizer.fast is not None:
        text, found = encoded.document.text, encoded.tokens[1:]
        if len(text) > BATCH_CHARACTERS:  # of a huge one its beginning, by both
            text = text[:BATCH_CHARACTERS]
            found = tokenizer.encode_batch([text])[0]
        if not np.array_equal(found, tokenizer.encode_slowly(text)):
            raise InputError(
                f"document {encoded.document.position}: gigatoken and tiktoken disagree; "
                "go on with --no-gigatoken"
            )
