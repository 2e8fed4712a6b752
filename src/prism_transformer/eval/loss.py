"""The loss of a model on text, whole and by position; of sequences longer than trained, too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from prism_transformer.core.disk import write_whole, writing
from prism_transformer.core.errors import InputError
from prism_transformer.core.loss import IGNORED
from prism_transformer.core.progress import Tell, counted, silent
from prism_transformer.core.sealed import sealed_json
from prism_transformer.core.table import Column, Table
from prism_transformer.data.masking import VALIDATION_SEED
from prism_transformer.eval import loss_file
from prism_transformer.eval.text import DEFAULT_SEQUENCES, open_on_text
from prism_transformer.hf.export import to_hf
from prism_transformer.hf.extending import check_context, with_rope_scaling
from prism_transformer.hf.load import Source, context_of
from prism_transformer.model import PrismLM
from prism_transformer.training.distributed import WHOLE, Share, work_together
from prism_transformer.training.objective import NEXT_TOKEN, Objective


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
    n_bytes: int | None
    """of the text that was scored; None of a masked model, which is asked for a part of it"""
    folder: Path
    """where the model's measurements are kept"""
    scaling: str | None = None
    """of rotary positions, as in ``yarn:4``"""
    own_length: bool = True
    """whether that is how long the model's context is"""
    model: Mapping[str, str] = field(default_factory=dict)
    """of a run, what tells its model from others"""

    @property
    def table(self) -> Table:
        """The loss by position in the context."""
        columns = (Column("positions", numeric=False), Column("loss", places=4))
        return Table("loss", columns, tuple(self.loss.doubling()), note=str(self))

    def __str__(self) -> str:
        bits = "".join(f", {bits:.4f} bits per byte" for bits in self._bits().values())
        return (
            f"loss {self.loss.mean:.4f} +- {self.loss.error:.4f} nats, perplexity "
            f"{self.loss.perplexity:.2f}{bits}"
        )

    def _bits(self) -> dict[str, float]:
        """Bits per byte, where every token was asked for."""
        if self.n_bytes is None:
            return {}
        return {"bits_per_byte": self.loss.bits_per_byte(self.n_bytes)}

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "text": self.text,
            "sequences": self.loss.n_sequences,
            "length": self.length,
            "rope_scaling": self.scaling,
            "tokens": self.loss.n_tokens,
            "loss": self.loss.mean,
            "error": None if math.isnan(self.loss.error) else self.loss.error,
            "perplexity": self.loss.perplexity,
            **self._bits(),
            "by_position": [None if math.isnan(x) else x for x in self.loss.by_position.tolist()],
        }

    def write(self, folder: Path | None = None) -> Path:
        """Keep what a study reads of it, beside the model's other measurements when left out.

        Each length and scaling has a file of its own.
        """
        name = loss_file(None if self.own_length else self.length, self.scaling)
        file, found = (folder or self.folder) / name, self.loss
        facts = {
            "text": self.text,
            "length": self.length,
            "scaling": self.scaling,
            "sequences": found.n_sequences,
            "loss": found.mean,
            "by_position": found.doubling(),
            "model": dict(self.model),
        }
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
    windows = DEFAULT_SEQUENCES if sequences is None else sequences
    opened = open_on_text(
        source, checkpoint=checkpoint, text=text, length=length, windows=windows, device=device
    )
    objective = opened.objective
    if objective is None:
        raise InputError(f"{source}: is a masked language model, and its tokenizer has no mask")
    # What is published is what is measured: a native model is scored as its export.
    model: Any = opened.model
    if isinstance(model, PrismLM):
        model = to_hf(model).to(next(model.parameters()).device)
    own = opened.seq_len == context_of(model)
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
        found = measure_loss(model, zip(starts, shown, strict=True), objective, share)
        n_bytes = None
        if objective.masking is None:
            # Read again rather than kept: bytes are counted only where the measurement went well.
            batches = opened.batches(count, batch, share)
            counts = sum(opened.n_bytes(rows[:, 1:].numpy()) for rows in batches)
            n_bytes = int(share.added(torch.tensor(counts)))
    return TextLoss(
        str(opened.named), opened.text, opened.seq_len, found, n_bytes, opened.home,
        rope_scaling, own, opened.named.sums,
    )  # fmt: skip


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
            inputs["position_ids"] = question.positions
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
