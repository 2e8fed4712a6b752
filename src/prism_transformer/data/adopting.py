"""Token files of other tools taken in as they are: a manifest that names them, nothing copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from prism_transformer.core.disk import locked
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Tell, counted
from prism_transformer.data import tokenizer as tokenizers
from prism_transformer.data.corpora import Name
from prism_transformer.data.foreign import TYPES, Foreign, find_foreign, open_foreign
from prism_transformer.data.shards import (
    Manifest,
    ShardEntry,
    Split,
    check_tokens,
    read_manifest,
    sums_of,
)

FEWEST = 131_072  # tokens to validate on where nobody says how many


class Order(Protocol):
    """What of a preparation matters here."""

    @property
    def corpus(self) -> Name: ...
    @property
    def tokenizer(self) -> str: ...
    @property
    def place(self) -> Path: ...
    @property
    def ranks(self) -> Path | None: ...
    @property
    def val_tokens(self) -> int | None: ...
    @property
    def token_type(self) -> str | None: ...


def token_files(name: Name) -> list[Path] | None:
    """Another tool's token files, where a name is one of them or a folder with nothing else."""
    names = [Path(name)] if isinstance(name, str) else [Path(str(each)) for each in name]
    found: list[Path] = []
    for each in names:
        inside = sorted(each.iterdir()) if each.is_dir() else [each]
        found += [file for file in inside if file.is_file() and find_foreign(file) is not None]
    return found or None


def adopt(files: list[Path], order: Order, window: int, tell: Tell) -> Manifest:
    """Check every file in full and write a manifest of them; validation is their start.

    Where documents are known to end, validation ends with one.
    """
    homes = {file.resolve().parent for file in files}
    if len(homes) > 1:
        raise InputError(f"{files[0]}: token files of one corpus are in one folder, not in several")
    tokenizer = _tokenizer(order)
    opened = [(file, open_foreign(file, order.token_type)) for file in files]
    val = order.val_tokens if order.val_tokens is not None else _share(opened)
    manifest = Manifest(
        corpus=str(order.corpus if isinstance(order.corpus, str) else files[0].parent),
        corpus_fingerprint=" ".join(file.name for file in files),
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        end_of_text=tokenizer.end_of_text,
        shard_tokens=max(len(each.tokens) for _, each in opened),
        val_tokens=-(-val // window) * window,
        train_tokens_wanted=None,
        complete=True,
        source=str(homes.pop()),
    )
    with locked(order.place):
        if (old := read_manifest(order.place)) is not None and old.source != manifest.source:
            raise InputError(f"{order.place}: has other shards; give another --out")
        for file, found in counted(tell, "checking", opened, len(opened), "files"):
            _check_ends(file, found, tokenizer.end_of_text)
            check_tokens(file, found.tokens, tokenizer.vocab_size)
            manifest.shards += _entries(file, found, manifest)
        if manifest.tokens("val") <= manifest.val_tokens and manifest.val_tokens:
            raise InputError(
                f"{files[0]}: all files have {manifest.tokens('val'):,} tokens, too few for a "
                f"validation slice of {manifest.val_tokens:,}"
            )
        manifest.save(order.place)
    return manifest


def _tokenizer(order: Order) -> tokenizers.Tokenizer:
    if order.tokenizer not in ("gpt2", "bytes"):
        raise InputError(f"--tokenizer {order.tokenizer}: token files are of gpt2 or bytes")
    return tokenizers.open_tokenizer(order.tokenizer, order.place, order.ranks, accelerate=False)


def _share(opened: list[tuple[Path, Foreign]]) -> int:
    return min(FEWEST, sum(len(each.tokens) for _, each in opened) // 20)


def _check_ends(file: Path, found: Foreign, end_of_text: int) -> None:
    """The end-of-text token stands behind every document, or before every one."""
    starts = np.concatenate(([0], found.ends[:-1]))
    filled = found.ends > starts
    behind, before = found.tokens[found.ends[filled] - 1], found.tokens[starts[filled]]
    if not (np.all(behind == end_of_text) or np.all(before == end_of_text)):
        raise InputError(
            f"{file}: its documents are not parted by token {end_of_text}, the end of text; the "
            f"first ends with {behind[0]}. Is --tokenizer right? Else write them with their ends"
        )


def _entries(file: Path, found: Foreign, manifest: Manifest) -> Iterator[ShardEntry]:
    """A file as one shard, or as two where validation ends in it."""
    have, wanted = manifest.tokens("val"), manifest.val_tokens + bool(manifest.val_tokens)
    count, cut = len(found.tokens), 0
    if have < wanted:
        ends = found.ends
        cut = int(ends[min(int(np.searchsorted(ends, wanted - have)), len(ends) - 1)])
    sha256, blocks = sums_of(file)
    kind = next(name for name, dtype in TYPES.items() if dtype == found.tokens.dtype)
    places: list[tuple[Split, int, int]] = [("val", 0, cut), ("train", cut, count)]
    for split, start, stop in places:
        if start < stop:
            documents = int(np.searchsorted(found.ends, stop, "right"))
            documents -= int(np.searchsorted(found.ends, start, "right")) if start else 0
            yield ShardEntry(
                file=file.name, split=split, tokens=stop - start, documents=documents,
                text_bytes=0, start=found.header + start, token_type=kind, sha256=sha256,
                blocks=blocks,
            )  # fmt: skip
