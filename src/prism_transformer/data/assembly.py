"""Encoded pieces cut into shards: which tokens go where follows from how many there are.

The rules are those of ``stream.py``, told from counts alone, so that any shard can be written by
anybody: validation takes whole documents until it has enough, or ends within one where whole ones
would be most of the corpus; training gets the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from prism_transformer.core.errors import InputError
from prism_transformer.data.pieces import (
    RECORD,
    SOURCE,
    TEXT,
    TOKENS,
    PieceFacts,
    PieceFiles,
    causes,
)
from prism_transformer.data.shards import (
    Manifest,
    ShardEntry,
    ShardWriter,
    Split,
    variant_for,
)

COPIED = 2**22  # tokens at once


class Cut(NamedTuple):
    """One shard as a stretch of the stream of all pieces' tokens."""

    file: str
    split: Split
    start: int
    stop: int
    documents: int
    """that begin in it"""
    text_bytes: int


class Plan(NamedTuple):
    """Every shard, and what is left to say in the manifest."""

    cuts: list[Cut]
    val_cut: bool
    last: tuple[int, int, int]
    """piece, source and record of the last document; the record is counted in its piece"""
    skipped: dict[str, int]


class Pieces:
    """All encoded pieces as one stream of tokens."""

    def __init__(self, folder: Path, facts: Sequence[PieceFacts]) -> None:
        self.folder = folder
        self.facts = facts
        self.token_ends = list(accumulate(each.tokens for each in facts))
        self.documents_before = list(accumulate((each.documents for each in facts), initial=0))
        self.text_before = list(accumulate((each.text_bytes for each in facts), initial=0))

    @property
    def n_tokens(self) -> int:
        return self.token_ends[-1] if self.token_ends else 0

    def start_of(self, piece: int) -> int:
        return self.token_ends[piece - 1] if piece else 0

    def begun_before(self, token: int) -> tuple[int, int]:
        """Documents that begin before a token of the stream, and the bytes of their text."""
        piece = bisect_right(self.token_ends, token)
        if piece == len(self.facts):
            return self.documents_before[-1], self.text_before[-1]
        rows = PieceFiles(self.folder, piece).documents()
        ends = self.start_of(piece) + np.cumsum(rows[:, TOKENS])
        count = int(np.searchsorted(ends - rows[:, TOKENS], token, "left"))
        text = int(rows[:count, TEXT].sum())
        return self.documents_before[piece] + count, self.text_before[piece] + text

    def document_end(self, tokens: int) -> int | None:
        """Where the document ends that completes so many tokens; None where they are too few."""
        if tokens > self.n_tokens:
            return None
        piece = bisect_right(self.token_ends, tokens - 1)
        rows = PieceFiles(self.folder, piece).documents()
        ends = self.start_of(piece) + np.cumsum(rows[:, TOKENS])
        return int(ends[np.searchsorted(ends, tokens, "left")])

    def last_before(self, token: int) -> tuple[int, int, int]:
        """Piece, source and record of the document that ends at a token."""
        piece = bisect_right(self.token_ends, token - 1)
        rows = PieceFiles(self.folder, piece).documents()
        ends = self.start_of(piece) + np.cumsum(rows[:, TOKENS])
        row = rows[int(np.searchsorted(ends, token, "left"))]
        return piece, int(row[SOURCE]), int(row[RECORD])

    def skipped_before(self, token: int, *, at_end: bool) -> dict[str, int]:
        """Records that were passed over on the way to a token, or to the very end."""
        piece, _, _ = self.last_before(token)
        found: Counter[str] = Counter()
        for facts in self.facts if at_end else self.facts[:piece]:
            found.update(causes(facts.skipped))
        if not at_end:
            count = self.begun_before(token)[0] - self.documents_before[piece]
            found.update(causes(e for e in self.facts[piece].skipped if e.behind < count))
        return dict(found)


def enough(pieces: Pieces, manifest: Manifest) -> bool:
    """Whether these pieces hold all that is wanted, and none after them is needed."""
    if manifest.train_tokens_wanted is None:
        return False
    val = pieces.document_end(manifest.val_tokens + 1) if manifest.val_tokens else 0
    if val is None:
        return False
    # As for the stream: validation must leave something behind it to train on.
    return pieces.document_end(val + max(manifest.train_tokens_wanted, 1)) is not None


def plan_shards(pieces: Pieces, manifest: Manifest, n_bytes: int | None) -> Plan:
    """Cut the stream; ``n_bytes`` is the size of the corpus, where it is known."""
    val, cut = _validation(pieces, manifest, n_bytes)
    wanted = manifest.train_tokens_wanted
    end = pieces.n_tokens if wanted is None else pieces.document_end(val + max(wanted, 1))
    at_end = end is None or (end == pieces.n_tokens and wanted is None)
    end = pieces.n_tokens if end is None else end
    if end == val:
        raise InputError(f"{manifest.corpus}: has no document to train on{_without(pieces)}")
    size = manifest.shard_tokens
    starts = [*range(val, end, size), end]
    places: list[tuple[Split, int, int]] = [("val", 0, val)] if val else []
    places += [("train", a, b) for a, b in pairwise(starts)]
    cuts, begun = [], (0, 0)
    for number, (split, start, stop) in enumerate(places):
        until = pieces.begun_before(stop)
        file = f"{split}_{number - bool(val) if split == 'train' else 0:06d}.bin"
        counts = until[0] - begun[0], until[1] - begun[1]
        cuts.append(Cut(file, split, start, stop, *counts))
        begun = until
    return Plan(cuts, cut, pieces.last_before(end), pieces.skipped_before(end, at_end=at_end))


def _validation(pieces: Pieces, manifest: Manifest, n_bytes: int | None) -> tuple[int, bool]:
    """Where validation ends, and whether that is within a document."""
    if not manifest.val_tokens:
        return 0, False
    least = manifest.val_tokens + 1  # the last token that is scored has one after it
    whole = pieces.document_end(least)
    if whole is None:
        raise InputError(
            f"{manifest.corpus}: has {pieces.n_tokens:,} tokens, too few for a validation slice of "
            f"{manifest.val_tokens:,}; ask for less, or give more text{_without(pieces)}"
        )
    most = n_bytes is not None and pieces.begun_before(whole)[1] > n_bytes / 2
    if not most and whole < pieces.n_tokens:
        return whole, False
    if least == pieces.n_tokens:
        raise InputError(f"{manifest.corpus}: has no token left to train on")
    return least, True


def _without(pieces: Pieces) -> str:
    skipped = sum(len(each.skipped) for each in pieces.facts)
    return f"; {skipped:,} records were skipped" if skipped else ""


def write_cut(pieces: Pieces, cut: Cut, folder: Path, vocab_size: int) -> ShardEntry:
    """Write one shard, and say what it is."""
    writer = ShardWriter(folder / cut.file, variant_for(vocab_size))
    try:
        token = cut.start
        while token < cut.stop:
            piece = bisect_right(pieces.token_ends, token)
            tokens = PieceFiles(pieces.folder, piece).open_tokens(vocab_size)
            offset = token - pieces.start_of(piece)
            stop = min(len(tokens), offset + cut.stop - token)
            for start in range(offset, stop, COPIED):
                writer.append(tokens[start : min(start + COPIED, stop)])
            token += stop - offset
        sha256, blocks = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return ShardEntry(
        file=cut.file,
        split=cut.split,
        tokens=cut.stop - cut.start,
        documents=cut.documents,
        text_bytes=cut.text_bytes,
        sha256=sha256,
        blocks=blocks,
    )
