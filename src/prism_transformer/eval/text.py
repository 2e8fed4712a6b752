"""A model read on text: both opened by name, and the loss, whole and by position.

The text is a run's own validation slice, or any corpus; ``prism analyze`` reads it the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from prism_transformer.core.disk import write_whole, writing
from prism_transformer.core.errors import InputError, first_line
from prism_transformer.core.progress import Tell, counted, silent
from prism_transformer.core.sealed import sealed_json
from prism_transformer.core.table import Column, Table
from prism_transformer.data.corpora import EMBEDDED, open_corpus
from prism_transformer.data.loader import Windows, open_windows
from prism_transformer.eval import LOSS_FILE
from prism_transformer.hf.export import to_hf
from prism_transformer.hf.load import (
    NamedModel,
    Source,
    named_model,
    read_any,
    read_config,
    read_tokenizer,
)
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import load_model
from prism_transformer.training.device import find_device
from prism_transformer.training.distributed import WHOLE, Share, work_together
from prism_transformer.training.run import read_environment, read_run, run_tokenizer

MAX_SEQ_LEN = 1024  # of other models, where no length is given: theirs may not fit into memory
DEFAULT_SEQUENCES = 64
ROPE_SCALINGS = ("linear", "dynamic", "yarn")

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

    @property
    def home(self) -> Path:
        """Where what is measured of the model is kept."""
        return self.named.home("analysis")

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
    named, where = named_model(source, checkpoint), find_device(device)
    if named.run is None or named.checkpoint is None:
        return _open_hf(named, text or EMBEDDED, length, windows, where)
    recipe = read_run(named.run)
    model = load_model(named.checkpoint).float().eval().to(where)
    words = run_tokenizer(named.run, recipe)
    seq_len, vocab_size = length or recipe.model.seq_len, recipe.model.vocab_size

    def encode(document: str) -> list[int]:
        return words.encode_batch([document])[0].tolist()

    @cache
    def size(token: int) -> int:  # the end of text stands for none
        return 0 if token == words.end_of_text else len(words.piece(token))

    def n_bytes(tokens: Tokens) -> int:
        return sum(map(size, tokens.ravel().tolist()))

    def piece(token: int) -> str:
        return words.piece(token).decode("utf-8", "replace")

    n_scored = None
    rows: Rows
    if text is None:
        rows, what = _slice(recipe.data.folder, seq_len, vocab_size)
        _check_slice(named.run, rows)
        # Over as many windows as training scores, the loss is the one that training reports.
        n_scored = recipe.data.val_tokens // seq_len
    else:
        rows, what = _rows(text, seq_len, vocab_size, encode, words.end_of_text, windows)
    return ModelOnText(named, model, rows, what, seq_len, n_bytes, piece, n_scored)


def _open_hf(
    named: NamedModel, text: str, length: int | None, windows: int, device: torch.device
) -> ModelOnText:
    config = read_config(named.source).get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or MAX_SEQ_LEN
    words: Any = read_tokenizer(named.source, required=True)
    model = read_any(named.source, torch.float32).to(device)
    seq_len = length or min(longest, MAX_SEQ_LEN)
    end = words.eos_token_id if words.eos_token_id is not None else words.bos_token_id

    def encode(document: str) -> list[int]:
        return words.encode(document, add_special_tokens=False, verbose=False)

    def n_bytes(tokens: Tokens) -> int:
        rows = words.batch_decode(tokens.tolist(), skip_special_tokens=True)
        return sum(len(row.encode()) for row in rows)

    def piece(token: int) -> str:
        return str(words.decode([token]))

    rows, what = _rows(text, seq_len, config.vocab_size, encode, end, windows)
    return ModelOnText(named, model, rows, what, seq_len, n_bytes, piece)


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
    return rows, f"validation slice of {folder}"


def _check_slice(run: Path, rows: Windows) -> None:
    """Refuse another slice than the one that the run was validated on."""
    known = read_environment(run)["hashes"]["shards"]
    for file, digest in zip(rows.files, rows.sha256 or (), strict=False):
        if known.get(file.name, {}).get("sha256") not in (None, digest):
            raise InputError(f"{file}: is not the shard that {run} began with")


@dataclass(frozen=True)
class Loss:
    """Mean cross entropy in nats over every token once, and at each position."""

    n_tokens: int
    n_sequences: int
    by_position: NDArray[np.float64]
    error: float
    """standard error over sequences; NaN of one"""

    @property
    def mean(self) -> float:
        """Nats per token."""
        return float(self.by_position.mean())

    @property
    def perplexity(self) -> float:
        return math.exp(self.mean)

    def bits_per_byte(self, n_bytes: int) -> float:
        return self.mean * self.n_tokens / math.log(2) / n_bytes

    def doubling(self) -> list[dict[str, Any]]:
        """Means over positions 1, 2, 3-4, 5-8 and so on: the loss falls with their logarithm."""
        n = len(self.by_position)
        stops = [0, *(2**power for power in range(n.bit_length()) if 2**power < n), n]
        return [
            {
                "positions": f"{stop}" if stop == start + 1 else f"{start + 1}-{stop}",
                "loss": float(self.by_position[start:stop].mean()),
            }
            for start, stop in pairwise(stops)
        ]


@dataclass(frozen=True)
class TextLoss:
    """The loss of a model by name, on a text by name."""

    source: str
    text: str
    length: int
    """tokens of a sequence"""
    loss: Loss
    n_bytes: int
    """of the text that was scored"""
    folder: Path
    """where the model's measurements are kept"""

    @property
    def table(self) -> Table:
        """The loss by position in the context."""
        columns = (Column("positions", numeric=False), Column("loss", places=4))
        return Table("loss", columns, tuple(self.loss.doubling()), note=str(self))

    def __str__(self) -> str:
        bits = self.loss.bits_per_byte(self.n_bytes)
        return (
            f"loss {self.loss.mean:.4f} +- {self.loss.error:.4f} nats, perplexity "
            f"{self.loss.perplexity:.2f}, {bits:.4f} bits per byte"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "text": self.text,
            "sequences": self.loss.n_sequences,
            "length": self.length,
            "tokens": self.loss.n_tokens,
            "loss": self.loss.mean,
            "error": None if math.isnan(self.loss.error) else self.loss.error,
            "perplexity": self.loss.perplexity,
            "bits_per_byte": self.loss.bits_per_byte(self.n_bytes),
            "by_position": self.loss.by_position.tolist(),
        }

    def write(self, folder: Path | None = None) -> Path:
        """Keep what a study reads of it, beside the model's other measurements when left out."""
        file, found = (folder or self.folder) / LOSS_FILE, self.loss
        by_position = found.doubling()
        facts = {"sequences": found.n_sequences, "loss": found.mean, "by_position": by_position}
        with writing(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, sealed_json(facts))
        return file


def text_loss(
    source: Source,
    *,
    sequences: int | None = None,
    batch: int = 1,
    length: int | None = None,
    text: str | None = None,
    checkpoint: str | None = None,
    rope_scaling: str | None = None,
    extrapolate: bool = False,
    device: str = "auto",
    tell: Tell = silent,
) -> TextLoss:
    """Measure the loss of a run, a Hugging Face folder or a hub name on text.

    ``sequences``: all of a run's validation slice when left out, else 64. Launched by torchrun,
    every process calls this, scores its share and gets the whole.
    """
    windows = sequences or DEFAULT_SEQUENCES
    opened = open_on_text(
        source, checkpoint=checkpoint, text=text, length=length, windows=windows, device=device
    )
    # What is published is what is measured: a native model is scored as its export.
    model: Any = opened.model
    if isinstance(model, PrismLM):
        model = to_hf(model).to(next(model.parameters()).device)
    if rope_scaling is not None:
        model = with_rope_scaling(model, rope_scaling)
    check_context(model, opened.seq_len, extrapolate)
    count = sequences or opened.n_scored or min(DEFAULT_SEQUENCES, len(opened.rows))
    with work_together(model.device) as world:
        share = Share(world, -(-count // batch))
        batches = opened.batches(count, batch, share)
        shown = counted(
            tell if world.is_first else silent, "scoring", batches, len(share.pieces), "batches"
        )
        found = measure_loss(model, shown, share)
        # Read again rather than kept: bytes are counted only where the measurement went well.
        batches = opened.batches(count, batch, share)
        n_bytes = sum(opened.n_bytes(rows[:, 1:].numpy()) for rows in batches)
        n_bytes = int(share.added(torch.tensor(n_bytes)))
    return TextLoss(str(opened.named), opened.text, opened.seq_len, found, n_bytes, opened.home)


@torch.no_grad()
def measure_loss(model: Any, batches: Iterable[Tensor], share: Share = WHOLE) -> Loss:
    """The loss of a Hugging Face causal LM on windows (B, T + 1); of a share, that of the whole."""
    model.eval()
    total: NDArray[np.float64] | float = 0.0
    means: list[float] = []
    for rows in batches:
        tokens = rows.to(model.device)
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        losses = F.cross_entropy(logits.float().mT, tokens[:, 1:], reduction="none").cpu().double()
        total = total + losses.sum(0).numpy()
        means += losses.mean(1).tolist()
    if isinstance(total, float):
        raise InputError("no sequence was measured")
    each = np.array(means)
    n, summed = share.added(torch.tensor([len(each), each.sum()], dtype=torch.float64)).tolist()
    spread = float(share.added(torch.tensor(((each - summed / n) ** 2).sum())))
    error = math.sqrt(spread / (n - 1) / n) if n > 1 else math.nan
    total = share.added(torch.from_numpy(total)).numpy()
    return Loss(total.size * int(n), int(n), total / n, error)


def check_context(model: Any, length: int, extrapolate: bool) -> None:
    """Refuse sequences beyond a model's context unless that is the question."""
    config = model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    if longest is None or length <= longest:
        return
    if getattr(config, "rope_parameters", None) is None:
        raise InputError(f"--length {length}: this model has {longest} learned positions, no more")
    if not extrapolate:
        raise InputError(
            f"--length {length}: this model's context is {longest}; to go beyond, --extrapolate "
            "its positions as they are, or --rope-scaling linear:2"
        )


def with_rope_scaling(model: Any, scaling: str) -> Any:
    """The same weights with positions rescaled: ``linear:2``, ``dynamic:2`` or ``yarn:4``."""
    kind, _, factor = scaling.partition(":")
    try:
        times = float(factor)
    except ValueError:
        times = math.nan
    if kind not in ROPE_SCALINGS or not 1 <= times < math.inf:
        raise InputError(
            f"--rope-scaling {scaling!r}: write one of {', '.join(ROPE_SCALINGS)} and a factor of "
            "at least 1, as in linear:2"
        )
    config = deepcopy(model.config)
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict) or "rope_theta" not in rope:
        raise InputError(f"--rope-scaling: {type(model).__name__} has no rotary positions to scale")
    context = config.max_position_embeddings
    try:
        config.rope_parameters = {
            "rope_type": kind,
            "rope_theta": rope["rope_theta"],
            "factor": times,
            "original_max_position_embeddings": context,
        }
        config.max_position_embeddings = int(context * times)
        scaled = type(model)(config)
    except (ValueError, KeyError) as error:
        why = first_line(error)
        raise InputError(f"--rope-scaling {scaling}: {type(model).__name__}: {why}") from None
    scaled.load_state_dict(model.state_dict())
    return scaled.eval()
