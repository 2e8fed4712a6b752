"""Windows of tokens in an order that is a pure function of (seed, epoch, index).

Nothing is stored of the order: a keyed permutation maps each index to its window, so state is one
integer and start-up takes no longer for billions of windows than for ten.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from random import SystemRandom
from time import perf_counter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from prism_transformer.core.disk import file_sha256, read_whole, write_whole
from prism_transformer.core.errors import InputError
from prism_transformer.data.shards import (
    HEADER_BYTES,
    Manifest,
    ShardEntry,
    ShardError,
    Split,
    Tokens,
    check_tokens,
    open_entry,
    open_shard,
    read_manifest,
)

VERIFIED_FILE = "verified.json"
CHECKERS = 8  # shards that are read at once
MOST_OPEN = 64  # shards
SAMPLED = 4  # parts that are looked at when shards are opened: some megabytes each
ROUNDS = 6
MASK = 2**64 - 1

T = TypeVar("T")


def permuted(index: int, size: int, seed: int, epoch: int) -> int:
    """Where ``index`` goes in the epoch's permutation of ``range(size)``, in constant memory.

    A Feistel network on the smallest even number of bits that holds ``size``; what falls outside
    is mapped again, which happens three times on average at the most.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    low_mask = (1 << half) - 1
    keys = [_mixed(_mixed(seed) ^ _mixed(epoch + 0x9E37) ^ (turn << 32)) for turn in range(ROUNDS)]
    value = index
    while True:
        left, right = value >> half, value & low_mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & low_mask)
        value = left << half | right
        if value < size:
            return value


def _mixed(value: int) -> int:
    """A 64-bit mix in which every bit of the input reaches every bit of the output."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


class Windows:
    """Shards seen as windows of ``seq_len`` tokens, each with the token after it."""

    def __init__(
        self,
        files: Sequence[Path],
        seq_len: int,
        vocab_size: int,
        entries: Sequence[ShardEntry] | None = None,
    ) -> None:
        if not files:
            raise InputError("no shards to load")
        self.files = list(files)
        self.entries = entries
        self.opened: OrderedDict[int, Tokens] = OrderedDict()  # the last ones that were read
        if entries is None:
            self.lengths = [len(open_shard(file)) for file in files]
        else:
            self.lengths = [entry.tokens for entry in entries]
            for file, entry in zip(files, entries, strict=True):
                _check_size(file, entry, vocab_size)
        self.ends = list(accumulate(self.lengths))
        self.seq_len = seq_len
        self.vocab_size = vocab_size
        self.sha256 = None if entries is None else [entry.sha256 for entry in entries]
        self.sound: set[int] = set()  # shards that were checked in full
        self._known: dict[str, object] | None = None
        if len(self) < 1:
            raise InputError(f"{files[0]}: {self.ends[-1]} tokens hold no window of {seq_len} + 1")

    def __len__(self) -> int:
        return (self.ends[-1] - 1) // self.seq_len

    @property
    def names(self) -> list[str]:
        """What each shard is called; a part of a file by where it begins."""
        starts = [entry.start for entry in self.entries or ()] or [0] * len(self.files)
        return [
            f"{file.name}[{start}:]" if start else file.name
            for file, start in zip(self.files, starts, strict=True)
        ]

    def shard(self, number: int) -> Tokens:
        """The tokens of a shard; only those that were read last stay open."""
        if number in self.opened:
            self.opened.move_to_end(number)
            return self.opened[number]
        file = self.files[number]
        entry = None if self.entries is None else self.entries[number]
        tokens = open_shard(file) if entry is None else open_entry(file.parent, entry)
        self.opened[number] = tokens
        if len(self.opened) > MOST_OPEN:
            self.opened.popitem(last=False)
        return tokens

    def read(self, indices: Iterable[int]) -> NDArray[np.int64]:
        """Windows by their number: (count, seq_len + 1), the only copy that is made."""
        wanted = list(indices)
        self._check_shards_of(wanted)
        rows = np.empty((len(wanted), self.seq_len + 1), np.int64)
        for row, index in zip(rows, wanted, strict=True):
            self._copy(index * self.seq_len, row)
        return rows

    def batch(self, seed: int, first: int, count: int) -> NDArray[np.int64]:
        """Windows ``first`` to ``first + count`` of the endless shuffled sequence.

        The sequence is the same for everybody; ranks and micro-batches take their parts of it.
        """
        return self.read(self.place(seed, index) for index in range(first, first + count))

    def place(self, seed: int, index: int) -> int:
        """Number of the window at an index of that sequence."""
        epoch, index = divmod(index, len(self))
        return permuted(index, len(self), seed, epoch)

    def order(self, seed: int, count: int) -> Iterator[str]:
        """The beginning of that sequence in writing: what proves two orders alike."""
        return (str(self.place(seed, index)) for index in range(count))

    def _copy(self, start: int, row: Tokens) -> None:
        """Fill a row from the concatenated shards."""
        filled = 0
        while filled < len(row):
            number = bisect_right(self.ends, start + filled)
            shard = self.shard(number)
            offset = start + filled - (self.ends[number] - len(shard))
            piece = shard[offset : offset + len(row) - filled]
            row[filled : filled + len(piece)] = piece
            filled += len(piece)

    def _check_shards_of(self, indices: Sequence[int]) -> None:
        """Check shards in full when they are first used, those of a batch side by side."""
        used: set[int] = set()
        for start in (index * self.seq_len for index in indices):
            first, last = (bisect_right(self.ends, at) for at in (start, start + self.seq_len))
            used.update(range(first, last + 1))
        if new := sorted(used - self.sound):
            self.check(new)

    def check(self, numbers: Iterable[int] | None = None) -> None:
        """Check shards in full, all of them unless some are named: their sums and token ids.

        A file that has not changed since it was checked is not read again, by nobody.
        """
        wanted = range(len(self.files)) if numbers is None else numbers
        memory = self.files[0].parent / VERIFIED_FILE
        stamps = {number: self._stamp(number) for number in wanted}
        if self._known is None:  # read once
            self._known = _remembered(memory)
        known = self._known
        new = {n: stamp for n, stamp in stamps.items() if known.get(self.files[n].name) != stamp}
        with ThreadPoolExecutor(min(CHECKERS, len(new) or 1)) as threads:
            list(threads.map(self._check_shard, new))  # raises what one of them found
        self.sound.update(stamps)
        if new:
            more = {self.files[number].name: stamp for number, stamp in new.items()}
            known.update(more)
            with suppress(OSError):  # a folder that cannot be written is verified every time
                write_whole(memory, json.dumps(_remembered(memory) | more, indent=2))

    def trust(self) -> None:
        """Take every shard for sound: another process of this machine has checked it."""
        self.sound.update(range(len(self.files)))

    def _stamp(self, number: int) -> list[object]:
        """What a check was of: contents, file and vocabulary."""
        status = self.files[number].stat()
        expected = self.sha256[number] if self.sha256 else None
        return [expected, status.st_size, status.st_mtime_ns, self.vocab_size]

    def _check_shard(self, number: int) -> None:
        file = self.files[number]
        if self.sha256 is not None and file_sha256(file) != self.sha256[number]:
            raise ShardError(f"{file}: is not the shard that was prepared: sha256 differs")
        tokens = open_shard(file) if self.entries is None else None
        if tokens is None and self.entries is not None:
            tokens = open_entry(file.parent, self.entries[number])
        assert tokens is not None
        check_tokens(file, tokens, self.vocab_size)


def open_windows(
    folder: Path, split: Split, seq_len: int, vocab_size: int, manifest: Manifest | None = None
) -> Windows:
    """The windows of a prepared folder, or of one with shards of other software.

    ``manifest`` is the folder's, where it was read already.
    """
    manifest = manifest or read_manifest(folder)
    if manifest is None:  # told apart by name alone: fineweb_val_000000.bin
        files = sorted(folder.glob(f"*{split}*.bin"))
        if not files:
            raise InputError(
                f"{folder}: has neither a manifest nor shards named *{split}*.bin; "
                "`prism prepare` makes them"
            )
        return Windows(files, seq_len, vocab_size)
    if not manifest.complete:
        raise InputError(f"{folder}: is not complete; run `prism prepare` again to go on")
    if manifest.vocab_size > vocab_size:
        raise InputError(
            f"{folder}: was made with {manifest.vocab_size} tokens, the model has {vocab_size}"
        )
    shards = manifest.of(split)
    home = manifest.home(folder)
    check_sample(home, shards)
    return Windows([home / shard.file for shard in shards], seq_len, manifest.vocab_size, shards)


def _check_size(file: Path, entry: ShardEntry, vocab_size: int) -> None:
    """Look at the size of a file alone; where it is wrong, say what is."""
    try:
        n_bytes = file.stat().st_size
    except OSError as error:
        raise ShardError(f"{file}: cannot be read: {error.strerror}") from None
    if entry.token_type is not None:
        open_entry(file.parent, entry)
    elif n_bytes not in (HEADER_BYTES + entry.tokens * size for size in (2, 4)):
        open_entry(file.parent, entry)
        raise ShardError(f"{file}: is not the shard that was prepared: sha256 differs")


def _remembered(memory: Path) -> dict[str, object]:
    """Stamps of the files of a folder that were checked before."""
    try:
        return dict(json.loads(read_whole(memory)))
    except (OSError, ValueError, TypeError, RecursionError):  # a lost memory is made anew
        return {}


def check_sample(folder: Path, shards: Sequence[ShardEntry], count: int = SAMPLED) -> None:
    """Hold a few random parts of shards against their sums, other ones every time.

    A whole shard is hashed when it is new; a disk that rots it later leaves size and time as they
    were. Manifests of before parts had sums have nothing to hold them against.
    """
    summed = [(shard, shard.blocks) for shard in shards if shard.blocks is not None]
    ends = list(accumulate(blocks.count for _, blocks in summed))
    n_parts = ends[-1] if ends else 0
    for part in SystemRandom().sample(range(n_parts), min(count, n_parts)):
        place = bisect_right(ends, part)
        shard, blocks = summed[place]
        number = part - (ends[place] - blocks.count)
        if blocks.differs(folder / shard.file, number):
            raise ShardError(
                f"{folder / shard.file}: is not the shard that was prepared: it differs from byte "
                f"{number * blocks.size} on; `prism prepare --verify` looks at all of it"
            )


def prefetched(items: Iterable[T]) -> Iterator[T]:
    """The same items, the next one made while the last is in use."""
    iterator = iter(items)
    nothing = object()
    with ThreadPoolExecutor(1) as worker:
        waiting = worker.submit(next, iterator, nothing)
        while (item := waiting.result()) is not nothing:
            waiting = worker.submit(next, iterator, nothing)
            yield item  # type: ignore[misc]


def timed(items: Iterable[T]) -> Iterator[tuple[T, float]]:
    """Items, each with the seconds its coming took."""
    started = perf_counter()
    for item in items:
        yield item, perf_counter() - started
        started = perf_counter()  # whoever took the item has used it
