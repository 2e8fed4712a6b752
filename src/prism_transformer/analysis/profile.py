"""The attention profile of a model: every head's statistics, streamed over sequences."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from prism_transformer.analysis import PROFILE_FILE
from prism_transformer.analysis.observe import STATISTICS, observe
from prism_transformer.errors import InputError
from prism_transformer.folders import write_whole
from prism_transformer.model import PrismLM, causal_attention

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from matplotlib.figure import Figure

Array = np.ndarray

EFFECTIVE_RANK = "effective_rank"


@dataclass(frozen=True)
class Estimate:
    """Means over sequences and their standard errors: of each head of a layer, and of the layer."""

    heads: Array
    head_errors: Array
    layer: float
    layer_error: float


@dataclass(frozen=True)
class Profile:
    """Statistics of every layer's heads; as many heads in each as it has."""

    seq_len: int
    n_sequences: int
    widths: tuple[int, ...]
    layers: tuple[dict[str, Estimate], ...]

    @property
    def statistics(self) -> tuple[str, ...]:
        """What was measured."""
        return tuple(self.layers[0])

    @property
    def schedule(self) -> tuple[int, ...]:
        """Heads of each layer."""
        return tuple(len(layer["distance"].heads) for layer in self.layers)

    @property
    def n_layers(self) -> int:
        """How many."""
        return len(self.layers)

    @property
    def n_progressive(self) -> int:
        """Layers, from the first on, that have fewer heads than the most."""
        most = max(self.schedule)
        return next(layer for layer, n_heads in enumerate(self.schedule) if n_heads == most)

    def means(self, statistic: str = "distance") -> Array:
        """One number for each layer: the mean over its heads."""
        return np.array([layer[statistic].layer for layer in self.layers])

    def to_frame(self) -> pd.DataFrame:
        """A row for each head: layer, head, width and every statistic with its standard error."""
        import pandas as pd

        rows = []
        for index, layer in enumerate(self.layers):
            for head in range(self.schedule[index]):
                row: dict[str, Any] = {"layer": index, "head": head, "width": self.widths[index]}
                for name, estimate in layer.items():
                    row[name] = estimate.heads[head]
                    row[f"{name}_error"] = estimate.head_errors[head]
                rows.append(row)
        return pd.DataFrame(rows)

    def plot(self, statistic: str = "distance") -> Figure:
        """Each head as a dot, each layer's mean as a line."""
        from prism_transformer.plots.profiles import plot_profile

        heads = [layer[statistic].heads for layer in self.layers]
        return plot_profile(heads, self.means(statistic), statistic, self.seq_len)

    def to_json(self) -> dict[str, Any]:
        """Everything, as ``from_json`` reads it."""
        return {
            "seq_len": self.seq_len,
            "n_sequences": self.n_sequences,
            "layers": [
                {
                    "layer": index,
                    "heads": self.schedule[index],
                    "width": self.widths[index],
                    "statistics": {
                        name: {
                            "mean": each.layer,
                            "error": _number(each.layer_error),
                            "heads": each.heads.tolist(),
                            "head_errors": [_number(error) for error in each.head_errors],
                        }
                        for name, each in layer.items()
                    },
                }
                for index, layer in enumerate(self.layers)
            ],
        }

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Profile:
        """What ``to_json`` gave."""
        layers = []
        for layer in facts["layers"]:
            layers.append(
                {
                    name: Estimate(
                        np.array(each["heads"]),
                        np.array(each["head_errors"], dtype=float),
                        each["mean"],
                        np.nan if each["error"] is None else each["error"],
                    )
                    for name, each in layer["statistics"].items()
                }
            )
        widths = tuple(layer["width"] for layer in facts["layers"])
        return cls(facts["seq_len"], facts["n_sequences"], widths, tuple(layers))

    def write(self, folder: Path, facts: dict[str, str]) -> None:
        """Keep it in a folder, with what it was measured on."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**facts, "profile": self.to_json()}, indent=1) + "\n"
        write_whole(folder / PROFILE_FILE, text)

    @classmethod
    def read(cls, file: Path) -> Profile:
        """A profile that ``prism analyze`` wrote."""
        try:
            return cls.from_json(json.loads(file.read_text("utf-8"))["profile"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file}: is no attention profile: {error}") from None


def _number(value: float) -> float | None:
    """JSON has no NaN: an error that one sequence cannot tell is null."""
    return None if np.isnan(value) else float(value)


class Recorder:
    """Takes what layers attended to, pass after pass."""

    def __init__(self, effective_rank: bool = False) -> None:
        self.effective_rank = effective_rank
        self.seq_len: int | None = None
        self.sums: list[dict[str, Tensor]] = []  # (3, H + 1): count, sum, squares; heads, layer
        self.outer: list[Tensor] = []  # (H, K, K), sums of y y'
        self.widths: list[int] = []

    def __call__(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        y: Tensor,
        scale: float | None = None,
        window: int | None = None,
    ) -> None:
        """One layer's queries, keys and outputs (B, H, T, K) for a batch of sequences."""
        if self.seq_len not in (None, q.shape[-2]):
            raise InputError(
                f"sequences of {self.seq_len} and {q.shape[-2]} tokens cannot be averaged: "
                "distance grows with length"
            )
        self.seq_len = q.shape[-2]
        if layer == len(self.sums):
            self.sums.append({})
            self.widths.append(q.shape[-1])
        for name, values in observe(q, k, scale=scale, window=window).items():
            each = torch.cat((values, values.mean(-1, keepdim=True)), dim=-1)  # (B, H + 1)
            moments = torch.stack((torch.ones_like(each), each, each.square())).sum(1)
            self.sums[layer][name] = self.sums[layer].get(name, 0) + moments
        if self.effective_rank:
            half = y[..., y.shape[-2] // 2 :, :].double()
            outer = torch.einsum("bhtk,bhtl->hkl", half, half)
            if layer == len(self.outer):
                self.outer.append(outer)
            else:
                self.outer[layer] += outer

    def profile(self) -> Profile:
        """What came of it."""
        if not self.sums or self.seq_len is None:
            raise InputError("no sequence was measured")
        layers = []
        for index, sums in enumerate(self.sums):
            layer = {name: _estimate(sums[name]) for name in STATISTICS}
            if self.effective_rank:
                ranks = _effective_ranks(self.outer[index])
                unknown = np.full_like(ranks, np.nan)
                layer[EFFECTIVE_RANK] = Estimate(ranks, unknown, float(ranks.mean()), np.nan)
            layers.append(layer)
        n_sequences = int(self.sums[0]["distance"][0, 0])
        return Profile(self.seq_len, n_sequences, tuple(self.widths), tuple(layers))


def _estimate(moments: Tensor) -> Estimate:
    n, total, squares = moments.cpu().numpy()
    means = total / n
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.maximum(squares / n - means**2, 0) * n / (n - 1)
        errors = np.sqrt(variance / n)
    return Estimate(means[:-1], errors[:-1], float(means[-1]), float(errors[-1]))


def _effective_ranks(outer: Tensor) -> Array:
    """Exp of the entropy of the eigenvalues' shares: 1 for a line, K where all directions count."""
    values = torch.linalg.eigvalsh(outer).clamp(min=0)
    shares = values / values.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp().cpu().numpy()


@torch.no_grad()
def attention_profile(
    model: nn.Module, batches: Iterable[Tensor], *, effective_rank: bool = False
) -> Profile:
    """The profile of a Prism model or any Hugging Face causal LM over batches of tokens (B, T).

    All sequences have one length and no padding. The model's own computation is not changed.
    """
    recorder = Recorder(effective_rank)
    training = model.training
    model.eval()
    try:
        with _watched(model, recorder) as run:
            for tokens in batches:
                run(tokens.to(next(model.parameters()).device))
    finally:
        model.train(training)
    return recorder.profile()


def _watched(model: nn.Module, recorder: Recorder) -> AbstractContextManager[Any]:
    if isinstance(model, PrismLM):
        return _watched_prism(model, recorder)
    from prism_transformer.analysis.any_model import watched

    return watched(model, recorder)


@contextmanager
def _watched_prism(model: PrismLM, recorder: Recorder) -> Iterator[Any]:
    def run(tokens: Tensor) -> None:
        if tokens.shape[1] > model.config.seq_len:
            raise InputError(
                f"sequences of {tokens.shape[1]} tokens; this model's context is "
                f"{model.config.seq_len}"
            )
        layers = iter(range(len(model.layers)))

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            y = causal_attention(q, k, v)
            recorder(next(layers), q, k, y)
            return y

        model.hidden(model.embedding(tokens), attend=attend)

    # Compiled layers hold ordinary attention; this one runs as it is written.
    with torch.compiler.set_stance("force_eager"):
        yield run
