"""A model read on text: both opened by name, and the loss, whole and by position.

The text is a run's own validation slice, or any corpus; ``prism analyze`` reads it the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
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
from prism_transformer.core.errors import InputError
from prism_transformer.core.loss import IGNORED
from prism_transformer.core.progress import Tell, counted, silent
from prism_transformer.core.sealed import sealed_json
from prism_transformer.core.table import Column, Table
from prism_transformer.data.corpora import EMBEDDED, open_corpus
from prism_transformer.data.loader import Windows, open_windows
from prism_transformer.data.masking import VALIDATION_SEED, Masking
from prism_transformer.eval import LOSS_FILE
from prism_transformer.hf.export import to_hf
from prism_transformer.hf.extending import check_context, with_rope_scaling
from prism_transformer.hf.load import (
    NamedModel,
    Source,
    is_masked,
    named_model,
    read_any,
    read_config,
    read_tokenizer,
)
from prism_transformer.model import PrismLM
from prism_transformer.models.packing import visible
from prism_transformer.models.weights import load_model
from prism_transformer.recipe import TrainConfig
from prism_transformer.training.device import find_device
from prism_transformer.training.distributed import WHOLE, Share, work_together
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
    objective: Objective = NEXT_TOKEN
    """what the model is asked of them"""

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

    n_scored, asked = None, objective_of(recipe, seq_len)
    rows: Rows
    if text is None:
        rows, what = _slice(recipe.data.folder, seq_len, vocab_size)
        _check_slice(named.run, rows)
        # Over as many windows as training scores, the loss is the one that training reports.
        n_scored = recipe.data.val_tokens // seq_len
    else:
        rows, what = _rows(text, seq_len, vocab_size, encode, words.end_of_text, windows)
    return ModelOnText(named, model, rows, what, seq_len, n_bytes, piece, n_scored, asked)


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
    asked = NEXT_TOKEN
    if is_masked(config):  # a share as is usual, of its own mask
        share = TrainConfig.model_fields["mask_share"].default
        asked = Objective(Masking(max(1, round(share * seq_len)), words.mask_token_id, len(words)))
    return ModelOnText(named, model, rows, what, seq_len, n_bytes, piece, objective=asked)


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
    sums: NDArray[np.float64]
    counts: NDArray[np.float64]
    """at each position: of all losses, and of how many; none where no token was masked"""
    error: float
    """standard error over sequences; NaN of one"""

    @property
    def by_position(self) -> NDArray[np.float64]:
        """The mean at each position; NaN where nothing was asked."""
        with np.errstate(invalid="ignore"):
            return self.sums / self.counts

    @property
    def mean(self) -> float:
        """Nats per token."""
        return float(self.sums.sum() / self.counts.sum())

    @property
    def perplexity(self) -> float:
        return math.exp(self.mean)

    def bits_per_byte(self, n_bytes: int) -> float:
        return self.mean * self.n_tokens / math.log(2) / n_bytes

    def doubling(self) -> list[dict[str, Any]]:
        """Means over positions 1, 2, 3-4, 5-8 and so on: the loss falls with their logarithm."""
        n = len(self.sums)
        stops = [0, *(2**power for power in range(n.bit_length()) if 2**power < n), n]
        return [
            {
                "positions": f"{stop}" if stop == start + 1 else f"{start + 1}-{stop}",
                "loss": float(self.sums[start:stop].sum() / self.counts[start:stop].sum()),
            }
            for start, stop in pairwise(stops)
            if self.counts[start:stop].any()
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
            "by_position": [None if math.isnan(x) else x for x in self.loss.by_position.tolist()],
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
        starts = (piece * batch for piece in share.pieces)
        found = measure_loss(model, zip(starts, shown, strict=True), opened.objective, share)
        # Read again rather than kept: bytes are counted only where the measurement went well.
        batches = opened.batches(count, batch, share)
        n_bytes = sum(opened.n_bytes(rows[:, 1:].numpy()) for rows in batches)
        n_bytes = int(share.added(torch.tensor(n_bytes)))
    return TextLoss(str(opened.named), opened.text, opened.seq_len, found, n_bytes, opened.home)


@torch.no_grad()
def measure_loss(
    model: Any,
    batches: Iterable[tuple[int, Tensor]],
    objective: Objective = NEXT_TOKEN,
    share: Share = WHOLE,
) -> Loss:
    """The loss of a Hugging Face model on windows (B, T + 1), masks as in validation.

    Each batch comes with the number of its first window, which decides its masks. Of a share of the
    batches comes back the loss of all of them.
    """
    model.eval()
    sums: NDArray[np.float64] | float = 0.0
    counts: NDArray[np.float64] | float = 0.0
    means: list[float] = []
    for first, rows in batches:
        question = objective.question(rows.numpy(), first, VALIDATION_SEED).to(model.device)
        inputs: dict[str, Any] = {} if objective.masking else {"use_cache": False}
        if question.positions is not None:  # documents that do not see each other
            seen = visible(question.positions, "bidirectional" if objective.masking else "causal")
            inputs |= {"position_ids": question.positions, "attention_mask": seen}
        logits = model(input_ids=question.tokens, **inputs).logits
        losses = F.cross_entropy(logits.float().mT, question.targets, reduction="none")
        losses, asked = losses.cpu().double(), (question.targets != IGNORED).cpu().double()
        sums, counts = sums + losses.sum(0).numpy(), counts + asked.sum(0).numpy()
        means += (losses.sum(1) / asked.sum(1)).tolist()
    if isinstance(sums, float) or isinstance(counts, float):
        raise InputError("no sequence was measured")
    each = np.array(means)
    n, summed = share.added(torch.tensor([len(each), each.sum()], dtype=torch.float64)).tolist()
    spread = float(share.added(torch.tensor(((each - summed / n) ** 2).sum())))
    error = math.sqrt(spread / (n - 1) / n) if n > 1 else math.nan
    sums, counts = (share.added(torch.from_numpy(each)).numpy() for each in (sums, counts))
    return Loss(int(counts.sum()), int(n), sums, counts, error)
