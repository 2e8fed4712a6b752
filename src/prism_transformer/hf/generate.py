"""Text from any model by name: a run as ``training/generate.py`` has it, else any causal LM."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import TextStreamer

from prism_transformer.core.errors import InputError, first_line
from prism_transformer.hf.load import (
    NamedModel,
    Source,
    context_of,
    is_masked,
    named_model,
    quiet,
    read_any,
    read_config,
    read_tokenizer,
)
from prism_transformer.models.sampling import check_sampling
from prism_transformer.training.device import find_device
from prism_transformer.training.generate import Generated, check_prompt
from prism_transformer.training.generate import generate as generate_from_run


class _Pieces(TextStreamer):
    """Hands on each piece of text as soon as it is certain, and keeps all of it."""

    def __init__(self, tokenizer: Any, stream: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.stream, self.pieces = stream, [""]

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Take in what transformers has decoded."""
        self.pieces.append(text)
        self.stream(text)


def generate(
    source: Source,
    prompt: str = "",
    *,
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    device: str = "auto",
    stream: Callable[[str], None] | None = None,
) -> Generated:
    """Let a trained model go on from a prompt.

    ``source`` is a run (its newest checkpoint), a model that ships (``nano``,
    ``nano-uniform``), a Hugging Face folder or a hub name. Without a prompt the model begins a
    document of its own; it may end before ``tokens``. What ``stream`` is handed, piece by piece as
    it is known, makes up the text.
    """
    named = named_model(source)
    if named.run is not None:
        return generate_from_run(
            named.run, prompt, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p,
            seed=seed, device=device, stream=stream,
        )  # fmt: skip
    check_sampling(tokens, temperature, top_k, top_p, seed)
    check_prompt(prompt)
    config = read_config(named.source).get_text_config()
    if is_masked(config):
        raise InputError(f"{named}: a masked language model fills gaps, it does not generate")
    tokenizer: Any = read_tokenizer(named.source, required=True)
    where = find_device(device)
    begin = _begin(named, tokenizer, prompt).to(where)
    longest = context_of(config) or begin.shape[1] + tokens
    room = longest - begin.shape[1]
    if room < 1:
        raise InputError(f"the prompt has {begin.shape[1]} tokens, the model sees {longest}")
    model = read_any(named.source).to(where)
    tell = stream or (lambda _piece: None)
    tell(prompt)
    pieces, started = _Pieces(tokenizer, tell), perf_counter()
    drawn: dict[str, Any] = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    if temperature:
        drawn = {"do_sample": True, "temperature": temperature}
        drawn |= {"top_k": top_k or 0, "top_p": 1.0 if top_p is None else top_p}
    if not tokens:  # which transformers refuses
        return Generated(prompt, 0, perf_counter() - started)
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(seed)
        most = {"max_new_tokens": min(tokens, room), "pad_token_id": tokenizer.eos_token_id}
        written = _written(named, model, begin, pieces, drawn | most)
    text = prompt + "".join(pieces.pieces)
    return Generated(text, written.shape[1] - begin.shape[1], perf_counter() - started)


def _written(
    named: NamedModel, model: Any, begin: Tensor, pieces: _Pieces, options: dict[str, Any]
) -> Tensor:
    """The tokens (1, T) of a text that a model went on with, its beginning included."""
    seen = torch.ones_like(begin)
    try:
        written: Tensor = model.generate(begin, attention_mask=seen, streamer=pieces, **options)
    except (TypeError, ValueError) as error:  # generation_config.json may hold anything
        raise InputError(f"{named}: cannot generate as configured: {first_line(error)}") from None
    return written


def _begin(named: NamedModel, tokenizer: Any, prompt: str) -> Tensor:
    """The tokens (1, T) that a text begins with."""
    begin = tokenizer(prompt, return_tensors="pt")["input_ids"] if prompt else torch.empty(1, 0)
    if begin.numel():
        return begin
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if first is None:
        raise InputError(f"{named}: has no token that begins a text; give a --prompt")
    return torch.tensor([[first]])
