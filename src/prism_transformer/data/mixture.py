"""Several corpora with weights, drawn as a pure function of seed and index.

Of every 1,000 windows each corpus has its share exactly, in an order that a keyed permutation
gives. The place within its share is also how far the corpus has got in its own endless shuffled
sequence: nothing is stored, and each of its windows comes once an epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prism_transformer.core.errors import InputError
from prism_transformer.data.loader import Windows, open_windows, permuted
from prism_transformer.data.shards import Manifest, read_manifest
from prism_transformer.recipe import DataConfig, Part, Recipe

ROUND = 1000  # windows in which every corpus has its share exactly
DRAWING = 0x4D49585455524553  # sets the seed of the drawing apart from that of the corpora


class Draw(NamedTuple):
    """A corpus by its number, and which of its own draws this is."""

    part: int
    number: int


def quotas(parts: Sequence[Part]) -> list[int]:
    """Windows of each corpus in a round: its share, the largest remainders rounded up."""
    total = sum(part.weight for part in parts)
    exact = [part.weight * ROUND / total for part in parts]
    whole = [int(each) for each in exact]
    by_remainder = sorted(range(len(parts)), key=lambda n: whole[n] - exact[n])
    for number in by_remainder[: ROUND - sum(whole)]:
        whole[number] += 1
    for part, quota in zip(parts, whole, strict=True):
        if not quota:
            raise InputError(
                f"data.mixture: {part.folder}: weight {part.weight:g} of {total:g} is less than "
                f"one window of {ROUND:,}; raise it, or leave the corpus out"
            )
    return whole


def draw(shares: Sequence[int], seed: int, index: int) -> Draw:
    """Which corpus a window of the mixture comes from, and how many it had given before."""
    turn, place = divmod(index, ROUND)
    slot = permuted(place, ROUND, seed ^ DRAWING, turn)
    ends = list(accumulate(shares))
    part = bisect_right(ends, slot)
    return Draw(part, turn * shares[part] + slot - (ends[part] - shares[part]))


def drawn(shares: Sequence[int], seed: int, count: int) -> list[int]:
    """How many of the first so many windows each corpus gives."""
    turns, rest = divmod(count, ROUND)
    last = Counter(draw(shares, seed, turns * ROUND + place).part for place in range(rest))
    return [turns * share + last[part] for part, share in enumerate(shares)]


class Given(NamedTuple):
    """What a corpus gives to a run."""

    folder: str
    weight: float
    windows: int
    """until the end of training"""
    share: float
    """of all windows"""


def given(recipe: Recipe) -> list[Given]:
    """What each corpus of a recipe's mixture gives to the whole run."""
    parts = recipe.data.mixture
    if not parts:
        return []
    total = recipe.n_steps * recipe.train.batch_tokens // recipe.model.seq_len
    counts = drawn(quotas(parts), recipe.train.seed, total)
    return [
        Given(part.folder, part.weight, count, count / total)
        for part, count in zip(parts, counts, strict=True)
    ]


class Mixture:
    """Windows of several corpora, drawn by weight; for training what ``Windows`` is of one."""

    def __init__(self, parts: Sequence[Windows], shares: Sequence[int]) -> None:
        self.parts = list(parts)
        self.shares = list(shares)
        self.seq_len = parts[0].seq_len

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def names(self) -> list[str]:
        """Shards, by the number of their corpus: two may have shards of one name."""
        return [f"{n}:{name}" for n, part in enumerate(self.parts) for name in part.names]

    @property
    def lengths(self) -> list[int]:
        return [length for part in self.parts for length in part.lengths]

    @property
    def sha256(self) -> list[str | None]:
        """Of every shard; None where its corpus has no manifest."""
        found: list[str | None] = []
        for part in self.parts:
            found += part.sha256 or [None] * len(part.files)
        return found

    def batch(self, seed: int, first: int, count: int) -> NDArray[np.int64]:
        """Windows ``first`` to ``first + count`` of the mixture: the same for everybody."""
        rows = np.empty((count, self.seq_len + 1), np.int64)
        draws = [draw(self.shares, seed, index) for index in range(first, first + count)]
        for number, part in enumerate(self.parts):
            own = [row for row, each in enumerate(draws) if each.part == number]
            rows[own] = part.read(part.place(seed, draws[row].number) for row in own)
        return rows

    def order(self, seed: int, count: int) -> Iterator[str]:
        """All that the order is a function of, and its beginning."""
        yield from (f"{n}/{len(part)}" for n, part in zip(self.shares, self.parts, strict=True))
        for index in range(count):
            part, number = draw(self.shares, seed, index)
            yield f"{part}:{self.parts[part].place(seed, number)}"

    def check(self) -> None:
        """Check every shard of every corpus in full."""
        for part in self.parts:
            part.check()

    def trust(self) -> None:
        for part in self.parts:
            part.trust()


def open_splits(recipe: Recipe) -> tuple[Windows | Mixture, Windows]:
    """What a recipe trains on, and what it validates on.

    Validation is the slice of its folder, whatever is mixed for training.
    """
    data, config = recipe.data, recipe.model
    folder, shape = Path(data.folder), (config.seq_len, config.vocab_size)
    if not folder.is_dir():
        raise InputError(f"{folder}: no shards there; `prism prepare --recipe ...` makes them")
    manifest = read_manifest(folder)  # once: that of a terabyte takes a moment
    _check_tokenizer(folder, manifest, data)
    val = open_windows(folder, "val", *shape, manifest)
    if len(val) * config.seq_len < data.val_tokens:
        raise InputError(
            f"{folder}: its validation slice has {len(val) * config.seq_len} tokens, the recipe "
            f"scores {data.val_tokens}"
        )
    if not data.mixture:
        return open_windows(folder, "train", *shape, manifest), val
    shares, parts = quotas(data.mixture), []
    for part in data.mixture:
        place = Path(part.folder)
        own = manifest if place.resolve() == folder.resolve() else _part_manifest(place, data)
        if own is not manifest:
            _check_part(place, own, folder, manifest)
        parts.append(open_windows(place, "train", *shape, own))
    return Mixture(parts, shares), val


def _check_tokenizer(folder: Path, manifest: Manifest | None, data: DataConfig) -> None:
    if manifest is not None and manifest.tokenizer != data.tokenizer:
        raise InputError(
            f"{folder}: its shards were made with tokenizer {manifest.tokenizer}, the recipe says "
            f"{data.tokenizer}"
        )


def _part_manifest(folder: Path, data: DataConfig) -> Manifest | None:
    if not folder.is_dir():
        raise InputError(
            f"data.mixture: {folder}: no shards there; `prism prepare CORPUS --out {folder}` "
            "makes them"
        )
    manifest = read_manifest(folder)
    _check_tokenizer(folder, manifest, data)
    return manifest


def _check_part(folder: Path, own: Manifest | None, home: Path, other: Manifest | None) -> None:
    """Refuse a corpus whose tokens mean something else, or that has what is validated on."""
    if own is None or other is None:
        return
    if own.tokenizer_fingerprint != other.tokenizer_fingerprint:
        raise InputError(
            f"data.mixture: {folder}: its {own.tokenizer} is another than that of {home}: a BPE is "
            "trained on its corpus; prepare all of them with gpt2 or bytes"
        )
    # Files of other tools are known by their names, which are alike everywhere, and their folder.
    if (own.corpus_fingerprint, own.source) == (other.corpus_fingerprint, other.source):
        raise InputError(
            f"data.mixture: {folder}: was made of the same corpus as {home}, which is validated "
            f"on, and may have its text; name {home} itself in the mixture"
        )
