"""Import from Hugging Face: a Prism model becomes native, a Llama becomes Prism."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedConfig

from prism_transformer.core.disk import check_new
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Tell, counted, silent
from prism_transformer.hf.as_llama import SHARED_FIELDS, refuse
from prism_transformer.hf.configuration_prism import ROPE_TYPES, PrismConfig
from prism_transformer.hf.export import Opened, with_weights, write_hf
from prism_transformer.hf.load import (
    Source,
    named_model,
    read_config,
    read_model,
    read_tokenizer,
)
from prism_transformer.hf.modeling_masked import model_class
from prism_transformer.hf.modeling_prism import PrismForCausalLM
from prism_transformer.hf.names import to_native_names
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import save_model
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.paper import resolve
from prism_transformer.training.run import is_run

MAX_WINDOWS = 64  # a loss before and after needs no more text
MAX_SEQ_LEN = 1024
MAX_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class Imported:
    """What became of a model."""

    folder: Path
    schedule: HeadSchedule
    llama_heads: int | None = None
    """in every layer of the Llama that it was; None of a Prism model"""
    loss_before: float | None = None
    """nats per token on the text, where one was given"""
    loss_after: float | None = None

    @property
    def n_changed(self) -> int:
        """Layers that have another head count than before, and so another function."""
        return sum(n != (self.llama_heads or n) for n in self.schedule.heads)


def import_model(
    source: Source,
    out: Path | str,
    *,
    schedule: str | None = None,
    text: Path | str | None = None,
    tell: Tell = silent,
) -> Imported:
    """Write a Prism model as a native folder, or a Llama as a Prism model under a schedule.

    ``text``, a file, is what the loss of a Llama is measured on, before and after.
    """
    name, out = fspath(source), Path(out)
    check_new(out)
    if is_run(Path(name)):
        raise InputError(f"{name}: is a run, and native already; `prism export` is the other way")
    name = named_model(name).source
    config = read_config(name)
    kind = config.model_type
    if kind == "prism":
        if schedule or text:
            raise InputError(f"{name}: is a Prism model; --schedule and --text are for Llamas")
        model = to_native(read_model(model_class(config), name))
        save_model(model, out)
        return Imported(out, model.config.schedule)
    if schedule is None:
        raise InputError(
            f"{name}: is a {kind} model; choose its heads per layer with --schedule "
            "(prism schedule design proposes some)"
        )
    return _import_llama(name, out, resolve(schedule), None if text is None else Path(text), tell)


def _import_llama(
    source: str, out: Path, schedule: HeadSchedule, text: Path | None, tell: Tell
) -> Imported:
    tokenizer = read_tokenizer(source, required=text is not None)
    llama = read_llama(source)
    n_tokens, n_rows = None if tokenizer is None else len(tokenizer), llama.config.vocab_size
    if n_tokens is not None and n_tokens > n_rows:
        raise InputError(f"{source}: has {n_tokens} tokens for {n_rows} rows")
    tokens = None if text is None else _tokens(text, tokenizer)
    before = None if tokens is None else _loss("loss before", llama, tokens, tell)
    model = from_llama(llama, schedule, n_tokens)
    after = None if tokens is None else _loss("loss after", model, tokens, tell)
    heads = llama.config.num_attention_heads
    done = Imported(out, schedule, heads, before, after)
    note = f"Converted from a Llama, {heads} heads in every layer, not trained since."
    write_hf(Opened(model, tokenizer, note if done.n_changed else ""), out)
    return done


def _tokens(text: Path, tokenizer: Any) -> Tensor:
    try:
        with text.open(encoding="utf-8") as stream:
            content = stream.read(MAX_CHARACTERS)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{text}: cannot be read as text: {error}") from None
    tokens = tokenizer(content, add_special_tokens=False, verbose=False)["input_ids"]
    if len(tokens) < 2:
        raise InputError(f"{text}: has {len(tokens)} tokens; a loss needs at least 2")
    return torch.tensor(tokens)


def _loss(what: str, model: Any, tokens: Tensor, tell: Tell) -> float:
    """Mean loss over the first windows of a text."""
    seq_len = min(model.config.max_position_embeddings, MAX_SEQ_LEN, len(tokens))
    count = min(len(tokens) // seq_len, MAX_WINDOWS)
    losses = window_losses(model, tokens[: count * seq_len], seq_len)
    return fmean(counted(tell, what, losses, count, "windows"))


@torch.no_grad()
def window_losses(model: Any, tokens: Tensor, seq_len: int) -> Iterator[float]:
    """Mean loss in nats per token of each whole window of ``seq_len`` of a text's tokens (N,)."""
    for window in tokens[: len(tokens) // seq_len * seq_len].view(-1, 1, seq_len):
        yield model(window, labels=window).loss.item()


def to_native(model: Any) -> PrismLM:
    """The native model with the weights of a Hugging Face one."""
    config = model.config
    native = config.native
    rope_type = (config.rope_parameters or {})["rope_type"]
    rows = (
        f"vocab_size = {config.vocab_size}, where native models have {native.vocab_rows} rows "
        "(resize_token_embeddings with pad_to_multiple_of=128)"
    )
    problems = {
        f"rope_type = {rope_type!r}": rope_type != "default",
        rows: config.vocab_size != native.vocab_rows,
    }
    refuse(problems, "a native model does not support {}")
    with torch.device("meta"):
        bare = PrismLM(native)
    weights = to_native_names(model.state_dict())
    bare.load_state_dict({name: weights[name] for name in bare.state_dict()}, assign=True)
    return bare


def read_llama(source: str) -> LlamaForCausalLM:
    """A Llama that can become a Prism model."""
    check_llama(read_config(source))
    return read_model(LlamaForCausalLM, source)


def check_llama(config: PreTrainedConfig) -> None:
    """Refuse, by name, what a Prism model cannot take over."""
    if config.model_type != "llama":
        raise InputError(
            f"model_type {config.model_type!r} cannot become a Prism model; 'llama' can"
        )
    rope_type = (config.rope_parameters or {}).get("rope_type", "default")
    width = config.hidden_size // config.num_attention_heads
    problems = {
        "attention_bias = true": bool(config.attention_bias),
        "mlp_bias = true": bool(config.mlp_bias),
        f"attention_dropout = {config.attention_dropout}": bool(config.attention_dropout),
        f"hidden_act = {config.hidden_act!r}": config.hidden_act not in ("silu", "swish"),
        f"head_dim = {config.head_dim}, where hidden_size / num_attention_heads is {width}": (
            config.head_dim is not None and config.head_dim != width
        ),
        f"rope_type = {rope_type!r}": rope_type not in ROPE_TYPES,
        "partial_rotary_factor": "partial_rotary_factor" in (config.rope_parameters or {}),
        "quantization_config": getattr(config, "quantization_config", None) is not None,
    }
    refuse(problems, "a Prism model does not support {}")


def from_llama(
    llama: LlamaForCausalLM, schedule: HeadSchedule, num_tokens: int | None = None
) -> PrismForCausalLM:
    """A Prism model with the weights of a Llama, whose tokenizer has ``num_tokens``.

    The function changes wherever a layer's head count does: this is a start for further training.
    """
    theirs = llama.config
    check_llama(theirs)
    schedule.expect_layers(theirs.num_hidden_layers)
    config = PrismConfig(
        head_schedule=str(schedule),
        h_base=theirs.num_attention_heads,
        queries_per_kv=theirs.num_attention_heads // theirs.num_key_value_heads,
        num_tokens=num_tokens,
        vocab_size=theirs.vocab_size,
        **{name: getattr(theirs, name) for name in SHARED_FIELDS},
    )
    with torch.device("meta"):
        model = PrismForCausalLM(config)
    weights = {name: weight.detach().clone() for name, weight in llama.state_dict().items()}
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]
    model = with_weights(model, weights)
    model.generation_config = deepcopy(llama.generation_config)
    return model
