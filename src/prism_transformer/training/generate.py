"""Text from a trained model."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from prism_transformer.core.errors import InputError
from prism_transformer.models import sampling
from prism_transformer.models.weights import load_model
from prism_transformer.training.checkpoint import newest_model
from prism_transformer.training.device import find_device
from prism_transformer.training.run import Run, run_tokenizer


@dataclass(frozen=True)
class Generated:
    """What a model wrote, its prompt included."""

    text: str
    n_tokens: int
    """drawn, an end of text included"""
    seconds: float

    def __str__(self) -> str:
        return self.text


def check_prompt(prompt: str) -> None:
    """Refuse what no tokenizer takes: a shell hands on bytes that are no text."""
    if prompt.encode(errors="ignore").decode() != prompt:
        raise InputError("--prompt: is not UTF-8 text")


def generate(
    source: Run | Path | str,
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
    """Let the newest checkpoint of a run go on from a prompt.

    Without a prompt the model begins a document of its own; it may end before ``tokens``. What
    ``stream`` is handed, piece by piece as it is known, makes up the text.
    """
    sampling.check_sampling(tokens, temperature, top_k, top_p, seed)
    check_prompt(prompt)
    run = Run.open(source)
    if run.recipe.model.attention != "causal":
        raise InputError(f"{run.folder}: a masked language model fills gaps, it does not generate")
    where = find_device(device)
    model = load_model(newest_model(run.folder)).eval().to(where)
    words = run_tokenizer(run.folder, run.recipe)
    begin = [words.end_of_text, *words.encode_batch([prompt])[0].tolist()]
    room = model.config.seq_len - len(begin)
    if room < 1:
        raise InputError(f"the prompt has {len(begin)} tokens, the model sees {room + len(begin)}")
    tell = stream or (lambda _piece: None)
    tell(prompt)
    n_new, pieces, started = min(tokens, room), [prompt], perf_counter()
    decode = getincrementaldecoder("utf-8")("replace").decode  # a character may take two tokens
    for drawn in sampling.stream(
        model, torch.tensor([begin], device=where), n_new,
        temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
    ):  # fmt: skip
        ends = int(drawn) == words.end_of_text
        piece = b"" if ends else words.piece(int(drawn))
        pieces.append(decode(piece, final=ends or len(pieces) == n_new))
        tell(pieces[-1])
        if ends:
            break
    return Generated("".join(pieces), len(pieces) - 1, perf_counter() - started)
