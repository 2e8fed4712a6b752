"""Text in, text out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prism_transformer.core.errors import InputError
from prism_transformer.models.sampling import sample
from prism_transformer.models.weights import load_model
from prism_transformer.training.checkpoint import newest_model
from prism_transformer.training.generate import generate
from prism_transformer.training.run import Run


def test_what_is_streamed_is_the_text_and_what_sampling_draws(trained: Path) -> None:
    pieces: list[str] = []
    made = generate(trained, "The ", tokens=12, seed=3, stream=pieces.append)
    assert pieces[0] == "The "
    assert made.text == str(made) == "".join(pieces)
    assert len(pieces) == 1 + made.n_tokens
    # Bytes are this run's tokens; 256 ends a text.
    begin = torch.tensor([[256, *b"The "]])
    model = load_model(newest_model(trained))
    drawn = sample(model, begin, 12, temperature=0.8, seed=3)[0, 1:].tolist()
    if 256 in drawn:
        drawn = drawn[: drawn.index(256)]
    assert made.text == bytes(drawn).decode(errors="replace")


def test_a_prompt_is_not_needed_and_the_model_has_an_end(trained: Path) -> None:
    made = generate(Run.open(trained), tokens=500, temperature=0.0)
    assert 0 < made.n_tokens <= 31  # it sees 32 tokens, one of them the beginning
    assert made.seconds > 0


def test_nothing_to_write_is_the_prompt(trained: Path) -> None:
    assert generate(trained, "abc", tokens=0).text == "abc"


def test_a_run_without_a_checkpoint_says_so(trained: Path, tmp_path: Path) -> None:
    for name in ("recipe.toml", "metrics.jsonl"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    with pytest.raises(InputError, match="has no sound checkpoint: none yet"):
        generate(tmp_path)
