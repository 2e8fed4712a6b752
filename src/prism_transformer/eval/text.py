"""A model and text to read it on, both opened by name, for the loss and for the analysis.

The text is a run's own validation slice, or any corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prism_transformer.core.errors import InputError, at_least_one
from prism_transformer.data.corpora import EMBEDDED, open_corpus
from prism_transformer.data.loader import Windows, open_windows
from prism_transformer.data.masking import Masking
from prism_transformer.eval import SLICE
from prism_transformer.hf.load import (
    NamedModel,
    Source,
    context_of,
    is_masked,
    named_model,
    read_any,
    read_config,
    read_tokenizer,
)
from prism_transformer.models.weights import load_model
from prism_transformer.recipe import TrainConfig
from prism_transformer.training.device import find_device
from prism_transformer.training.distributed import Share
from prism_transformer.training.objective import NEXT_TOKEN, Objective, objective_of
from prism_transformer.training.run import read_environment, read_run, run_tokenizer

MAX_SEQ_LEN = 1024  # of other models, where no length is given: theirs may not fit into memory
DEFAULT_SEQUENCES = 64

Tokens = NDArray[np.int64]
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class TokenRows:
    """An array of tokens as windows: each ``seq_len`` of them and the one after."""

    tokens: Tokens
    seq_len: int

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - 1) // self.seq_len)

    def read(self, indices: Iterable[int]) -> Tokens:
        """Windows by their number: (count, seq_len + 1)."""
        starts = np.fromiter(indices, np.int64) * self.seq_len
        return self.tokens[starts[:, None] + np.arange(self.seq_len + 1)]


Rows = Windows | TokenRows


@dataclass(frozen=True)
class ModelOnText:
    """A model in float32, windows of text for it, and where both come from."""

    named: NamedModel
    model: nn.Module
    rows: Rows
    text: str
    seq_len: int
    n_bytes: Callable[[Tokens], int]
    """of the text that tokens stand for"""
    piece: Callable[[int], str]
    """the text of one token; what is no whole character is marked"""
    n_scored: int | None = None
    """windows that training scores, of a run on its own slice"""
    objective: Objective | None = NEXT_TOKEN
    """what the model is asked of them; None of a masked one whose tokenizer has no mask"""

    @property
    def home(self) -> Path:
        """Where what is measured of the model is kept."""
        return self.named.home("analysis")

    @property
    def end_of_text(self) -> int | None:
        """The token before each document, where documents do not see each other."""
        return None if self.objective is None else self.objective.end_of_text

    def batches(self, n_sequences: int, batch: int, share: Share | None = None) -> Iterator[Tensor]:
        """The first windows, from the first on: (B, seq_len + 1); of a share, its batches."""
        if n_sequences > len(self.rows):
            raise InputError(f"{self.text}: has {len(self.rows)} windows, {n_sequences} were asked")
        starts = range(0, n_sequences, batch)
        for start in starts if share is None else (starts[piece] for piece in share.pieces):
            yield torch.from_numpy(self.rows.read(range(start, min(start + batch, n_sequences))))


def open_on_text(
    source: Source,
    *,
    checkpoint: str | None = None,
    text: str | None = None,
    length: int | None = None,
    windows: int = DEFAULT_SEQUENCES,
    device: str = "auto",
) -> ModelOnText:
    """Open a run, a Hugging Face folder or a hub name.

    ``text`` is a corpus as `prism prepare` takes them, or a folder with shards; left out, a run is
    measured on its validation slice and any other model on the embedded corpus. Of a corpus no
    more is read than ``windows`` need.
    """
    at_least_one(length=length, sequences=windows)
    named, where = named_model(source, checkpoint), find_device(device)
    if named.run is None or named.checkpoint is None:
        return _open_hf(named, text or EMBEDDED, length, windows, where)
    recipe = read_run(named.run)
    model = load_model(named.checkpoint).float().eval().to(where)
    tokenizer = run_tokenizer(named.run, recipe)
    seq_len, vocab_size = length or recipe.model.seq_len, recipe.model.vocab_size

    def encode(document: str) -> list[int]:
        return tokenizer.encode_batch([document])[0].tolist()

    @cache
    def size(token: int) -> int:  # the end of text stands for none
        return 0 if token == tokenizer.end_of_text else len(tokenizer.piece(token))

    def n_bytes(tokens: Tokens) -> int:
        return sum(map(size, tokens.ravel().tolist()))

    def piece(token: int) -> str:
        return tokenizer.piece(token).decode("utf-8", "replace")

    n_scored, asked = None, objective_of(recipe, seq_len)
    rows: Rows
    if text is None:
        rows, what = _slice(recipe.data.folder, seq_len, vocab_size)
        _check_slice(named.run, rows)
        # Over as many windows as training scores, the loss is the one that training reports.
        n_scored = recipe.data.val_tokens // seq_len
    else:
        rows, what = _rows(text, seq_len, vocab_size, encode, tokenizer.end_of_text, windows)
    return ModelOnText(named, model, rows, what, seq_len, n_bytes, piece, n_scored, asked)


def _open_hf(
    named: NamedModel, text: str, length: int | None, windows: int, device: torch.device
) -> ModelOnText:
    config = read_config(named.source).get_text_config()
    tokenizer: Any = read_tokenizer(named.source, required=True)
    model = read_any(named.source, torch.float32).to(device)
    seq_len = length or min(context_of(config) or MAX_SEQ_LEN, MAX_SEQ_LEN)
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.bos_token_id

    def encode(document: str) -> list[int]:
        return tokenizer.encode(document, add_special_tokens=False, verbose=False)

    def n_bytes(tokens: Tokens) -> int:
        rows = tokenizer.batch_decode(tokens.tolist(), skip_special_tokens=True)
        return sum(len(row.encode()) for row in rows)

    def piece(token: int) -> str:
        return str(tokenizer.decode([token]))

    rows, what = _rows(text, seq_len, config.vocab_size, encode, end, windows)
    asked: Objective | None = NEXT_TOKEN
    if is_masked(config):
        mask = tokenizer.mask_token_id
        asked = None if mask is None else _masked(config, seq_len, mask, len(tokenizer))
    return ModelOnText(named, model, rows, what, seq_len, n_bytes, piece, objective=asked)


def _masked(config: Any, seq_len: int, mask_token: int, n_tokens: int) -> Objective:
    """Masks as a model was trained with, where its folder says so; else those of our default."""
    known = getattr(config, "masking", None) or {}
    share, *shares = (
        known.get(name, TrainConfig.model_fields[f"mask_{name}"].default)
        for name in ("share", "replaced", "random")
    )
    return Objective(Masking(max(1, round(share * seq_len)), mask_token, n_tokens - 1, *shares))


def _rows(
    text: str, seq_len: int, vocab_size: int, encode: Encode, end: int | None, windows: int
) -> tuple[Rows, str]:
    """Windows of a folder with shards or of a corpus, and what they are called.

    Of a corpus the first documents, which `prism prepare` holds out as well, each behind an
    end-of-text token, if there is one.
    """
    if Path(text).is_dir():
        return _slice(text, seq_len, vocab_size)
    found: list[int] = []
    with closing(open_corpus(text).documents()) as documents:
        for document in documents:
            found += [] if end is None else [end]
            found += encode(document.text)
            if len(found) > windows * seq_len:
                break
    return TokenRows(np.array(found, np.int64), seq_len), f"corpus {text}"


def _slice(folder: str, seq_len: int, vocab_size: int) -> tuple[Windows, str]:
    rows = open_windows(Path(folder), "val", seq_len, vocab_size)
    return rows, f"{SLICE} of {folder}"


def _check_slice(run: Path, rows: Windows) -> None:
    """Refuse another slice than the one that the run was validated on."""
    known = read_environment(run)["hashes"]["shards"]
    for file, digest in zip(rows.files, rows.sha256 or (), strict=False):
        if known.get(file.name, {}).get("sha256") not in (None, digest):
            raise InputError(f"{file}: is not the shard that {run} began with")
