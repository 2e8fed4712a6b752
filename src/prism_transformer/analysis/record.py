"""Running a model, ours or any Hugging Face causal LM, and gathering what its layers attend to.

The model is not changed. Ours takes its attention as an argument; layers of others hand queries,
keys and values to a function by name, and ours measures before it passes on what SDPA gives. What
this cannot see rightly, it refuses by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from prism_transformer.analysis.both_ways import observe_both_ways
from prism_transformer.analysis.observe import STATISTICS, observe
from prism_transformer.core.errors import InputError, first_line
from prism_transformer.hf.load import context_of, is_masked
from prism_transformer.model import ATTENTION, PrismLM
from prism_transformer.models.packing import document_positions, isolated_attention
from prism_transformer.training.distributed import WHOLE, Share

Array = np.ndarray
Watch = AbstractContextManager[Callable[[Tensor], None]]
See = Callable[[int, Tensor, Tensor, Tensor, float | None, int | None, bool, Tensor | None], None]
"""Takes a layer's queries, keys and outputs (B, H, T, K), its scale, its window, whether causal,
and positions (B, T) in documents that do not see each other."""

EFFECTIVE_RANK = "effective_rank"
NAME = "prism_measure"  # of our function in transformers' interface
# What layers may hand over that changes the weights beyond a softmax of scaled scores.
FOREIGN = {
    "softcap": "caps its scores",
    "s_aux": "adds sinks to its softmax",
    "position_bias": "adds a bias by position",
}


@dataclass(frozen=True)
class Estimate:
    """Means over sequences and their standard errors: of each head of a layer, and of the layer."""

    heads: Array
    head_errors: Array
    layer: float
    layer_error: float

    def to_json(self) -> dict[str, Any]:
        """JSON has no NaN: an error that one sequence cannot tell is null."""
        errors = [None if np.isnan(e) else float(e) for e in (self.layer_error, *self.head_errors)]
        heads = self.heads.tolist()
        return {"mean": self.layer, "error": errors[0], "heads": heads, "head_errors": errors[1:]}

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Estimate:
        error, *errors = np.array([facts["error"], *facts["head_errors"]], dtype=float)
        return cls(np.array(facts["heads"]), np.array(errors), facts["mean"], float(error))


class Recorder:
    """Takes what layers attended to, pass after pass; keeps sums, so that memory does not grow."""

    def __init__(self, effective_rank: bool = False) -> None:
        self.effective_rank = effective_rank
        self.seq_len = 0
        self.sums: list[dict[str, Tensor]] = []  # (3, H + 1): count, sum, squares; heads, layer
        self.outer: dict[int, Tensor] = {}  # (H, K, K), sums of y y'
        self.widths: list[int] = []

    def __call__(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        y: Tensor,
        scale: float | None = None,
        window: int | None = None,
        causal: bool = True,
        positions: Tensor | None = None,
    ) -> None:
        """One layer's queries, keys and outputs (B, H, T, K) for a batch of sequences."""
        if self.seq_len not in (0, q.shape[-2]):
            raise InputError(
                f"sequences of {self.seq_len} and {q.shape[-2]} tokens cannot be averaged: "
                "distance grows with length"
            )
        self.seq_len = q.shape[-2]
        if layer == len(self.sums):
            self.sums.append({})
            self.widths.append(q.shape[-1])
        found = (
            observe(q, k, scale=scale, window=window, positions=positions)
            if causal
            else observe_both_ways(q, k, scale, positions)
        )
        for name, values in found.items():
            # The layer's mean is a column of its own: its error over sequences is not that of its
            # heads, which see the same text and vary together.
            each = torch.cat((values, values.mean(-1, keepdim=True)), dim=-1)  # (B, H + 1)
            moments = torch.stack((torch.ones_like(each), each, each.square())).sum(1)
            self.sums[layer][name] = self.sums[layer].get(name, 0) + moments
        if self.effective_rank:
            half = y[..., y.shape[-2] // 2 if causal else 0 :, :].double()
            outer = torch.einsum("bhtk,bhtl->hkl", half, half)
            self.outer[layer] = self.outer.get(layer, 0) + outer

    def add_up(self, share: Share) -> None:
        """Make the sums those of all processes that measure together."""
        for sums in self.sums:
            sums.update({name: share.added(moments) for name, moments in sums.items()})
        self.outer = {layer: share.added(outer) for layer, outer in self.outer.items()}

    @property
    def n_sequences(self) -> int:
        return int(self.sums[0]["distance"][0, 0]) if self.sums else 0

    def layers(self) -> tuple[dict[str, Estimate], ...]:
        """Every statistic of every layer."""
        if not self.sums:
            raise InputError("no sequence was measured")
        layers = []
        for index, sums in enumerate(self.sums):
            more = [name for name in sums if name not in STATISTICS]
            layer = {name: _estimate(sums[name]) for name in (*STATISTICS, *more)}
            if self.effective_rank:
                ranks = _effective_ranks(self.outer[index])
                unknown = np.full_like(ranks, np.nan)
                layer[EFFECTIVE_RANK] = Estimate(ranks, unknown, float(ranks.mean()), np.nan)
            layers.append(layer)
        return tuple(layers)


def _estimate(moments: Tensor) -> Estimate:
    n, total, squares = moments.cpu().numpy()
    means = total / n
    with np.errstate(invalid="ignore", divide="ignore"):  # one sequence has no error: NaN
        variance = np.maximum(squares / n - means**2, 0) * n / (n - 1)
        errors = np.sqrt(variance / n)
    return Estimate(means[:-1], errors[:-1], float(means[-1]), float(errors[-1]))


def _effective_ranks(outer: Tensor) -> Array:
    """Exp of the entropy of the eigenvalues' shares: 1 for a line, K where all directions count."""
    values = torch.linalg.eigvalsh(outer).clamp(min=0)
    shares = values / values.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp().cpu().numpy()


def record(
    model: nn.Module,
    batches: Iterable[Tensor],
    effective_rank: bool = False,
    share: Share = WHOLE,
    end_of_text: int | None = None,
) -> Recorder:
    """Run batches of tokens (B, T) through a Prism model or any Hugging Face LM.

    All sequences have one length and no padding. The model's own computation is not changed. Of a
    share of the batches comes back what was recorded of all of them. ``end_of_text``, the token
    before each document, is of a Prism model whose documents do not see each other.
    """
    recorder = Recorder(effective_rank)
    watch(model, batches, recorder, end_of_text)
    recorder.add_up(share)
    return recorder


@torch.no_grad()
def watch(
    model: nn.Module, batches: Iterable[Tensor], see: See, end_of_text: int | None = None
) -> None:
    """Run batches of tokens (B, T) through a model while ``see`` is shown each layer."""
    training = model.training
    model.eval()
    try:
        with _watched(model, see, end_of_text) as run:
            for tokens in batches:
                _check_length(model, tokens.shape[1])
                run(tokens.to(next(model.parameters()).device))
    finally:
        model.train(training)


def _watched(model: nn.Module, see: See, end_of_text: int | None) -> Watch:
    """A function that runs tokens (B, T) through the model while each layer is seen."""
    if isinstance(model, PrismLM):
        return _watched_prism(model, see, end_of_text)
    if end_of_text is not None:
        raise _cannot(model, "only a Prism model's documents are told apart")
    if isinstance(model, PreTrainedModel):
        return _watched_any(model, see)
    raise InputError(f"{type(model).__name__}: is neither a Prism model nor a Hugging Face one")


def _check_length(model: Any, length: int) -> None:
    longest = model.config.seq_len if isinstance(model, PrismLM) else context_of(model)
    if longest is not None and length > longest:
        raise InputError(f"sequences of {length} tokens; this model's context is {longest}")


@contextmanager
def _watched_prism(
    model: PrismLM, see: See, end_of_text: int | None
) -> Iterator[Callable[[Tensor], None]]:
    def run(tokens: Tensor) -> None:
        layers, kind = iter(range(len(model.layers))), model.config.attention
        own = ATTENTION[kind]
        positions: Tensor | None = None
        if end_of_text is not None:
            positions = document_positions(tokens, end_of_text)
            own = isolated_attention(positions, kind)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            y = own(q, k, v)
            see(next(layers), q, k, y, None, None, kind == "causal", positions)
            return y

        model.hidden(model.embedding(tokens), positions=positions, attend=attend)

    # Compiled layers hold ordinary attention; this one runs as it is written.
    with torch.compiler.set_stance("force_eager"):
        yield run


@contextmanager
def _watched_any(model: Any, see: See) -> Iterator[Callable[[Tensor], None]]:
    seen: set[int] = set()
    AttentionInterface.register(NAME, _measuring(see, seen))
    AttentionMaskInterface.register(NAME, sdpa_mask)
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(NAME)
    except (ValueError, ImportError) as error:
        raise _cannot(model, first_line(error)) from None
    n_layers = model.config.get_text_config().num_hidden_layers

    def run(tokens: Tensor) -> None:
        seen.clear()
        # Encoders know no cache, and some would not take the word for it.
        no_cache = {} if is_masked(model.config) else {"use_cache": False}
        model.base_model(input_ids=tokens, **no_cache)
        if seen != set(range(n_layers)):
            missing = sorted(set(range(n_layers)) - seen)
            raise _cannot(model, f"layers {missing} do not attend through transformers' interface")

    try:
        yield run
    finally:
        model.set_attn_implementation(before)


def _measuring(see: See, seen: set[int]) -> Callable[..., tuple[Tensor, None]]:
    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **rest: Any,
    ) -> tuple[Tensor, None]:
        layer, window = module.layer_idx, rest.get("sliding_window")
        for name, what in FOREIGN.items():
            if rest.get(name) is not None:
                raise InputError(f"layer {layer} {what} ({name}); its weights are not measured")
        causal = rest.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        _check_mask(attention_mask, query.shape[-2], window, layer, causal)
        y, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **rest
        )
        if key.shape[-2] != query.shape[-2]:
            raise InputError(f"layer {layer} attends to a cache; measure without one")
        see(layer, query, key, y.transpose(1, 2), scaling, window, causal, None)
        seen.add(layer)
        return y, None

    return attend


def _check_mask(
    mask: Tensor | None, length: int, window: int | None, layer: int, causal: bool
) -> None:
    """Refuse masks that are more than causal order and a sliding window, and in encoders any."""
    if not causal and window is not None:
        raise InputError(f"layer {layer} slides both ways; its weights are not measured")
    if mask is None:
        if window is not None and window < length:
            raise InputError(f"layer {layer} has a window of {window} but no mask for it")
        return
    if mask.dtype != torch.bool:
        raise InputError(f"layer {layer} adds a bias to its scores; its weights are not measured")
    t = torch.arange(length, device=mask.device)
    expected = (t <= t[:, None]) | (not causal)
    if window is not None:
        expected &= t > t[:, None] - window
    if not (mask[..., :length] == expected).all():
        raise InputError(
            f"layer {layer} masks more than the future and a sliding window (padding, chunks)"
            if causal
            else f"layer {layer} masks some of the text (padding)"
        )


def _cannot(model: nn.Module, why: str) -> InputError:
    return InputError(f"{type(model).__name__}: its attention cannot be measured: {why}")
