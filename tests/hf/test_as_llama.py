"""Uniform models as plain Llamas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from prism_transformer.core.errors import InputError
from prism_transformer.hf.as_llama import to_llama
from prism_transformer.hf.export import Opened, write_hf
from tests.hf.models import EACH_UNIFORM, RAGGED, prism, tokens


@EACH_UNIFORM
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "control",
    [{}, {"attention_scale": "base", "h_base": 6}, {"rope_frequencies": "tiled", "h_base": 12}],
    ids=["plain", "scale", "tiled"],
)
@torch.no_grad()
def test_a_uniform_model_is_a_llama_that_needs_no_code_of_ours(
    fields: dict[str, Any], tied: bool, control: dict[str, Any], tmp_path: Path
) -> None:
    model = prism(**fields, **control, tie_word_embeddings=tied, vocab_size=384, num_tokens=300)
    write_hf(Opened(model), tmp_path / "llama", "llama")
    loaded, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "llama", output_loading_info=True
    )
    assert type(loaded) is LlamaForCausalLM
    assert not any(info.values())
    assert loaded.config.vocab_size == 300  # no row that only pads
    expected = model(tokens()).logits[..., :300]
    torch.testing.assert_close(loaded(tokens()).logits, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (RAGGED, "head_schedule 1x1 2x1 3x1 4x1 6x1 12x1, which is not uniform"),
        ({"head_schedule": "12x3", "norm": "layernorm"}, "norm = 'layernorm'"),
        ({"head_schedule": "12x3", "rope_frequencies": "split"}, "rope_frequencies = 'split'"),
        (
            {"head_schedule": "6x3", "h_base": 12, "rope_frequencies": "tiled"},
            "rope_frequencies = 'tiled'",
        ),
    ],
    ids=["ragged", "layernorm", "split", "tiled"],
)
def test_what_llama_has_not_is_refused_by_name(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=f"a Llama cannot have {problem}"):
        to_llama(prism(**fields))
