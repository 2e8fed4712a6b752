"""Weights there and back, against transformers' own names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from prism_transformer.hf.names import is_native, to_llama_names, to_native_names
from prism_transformer.model import PrismLM
from tests.conftest import small_config
from tests.hf.models import llama_twin, prism


@pytest.mark.parametrize("fields", [{}, {"queries_per_kv": 3}, {"tied_embeddings": False}], ids=str)
def test_there_and_back_is_the_same(fields: dict[str, Any]) -> None:
    weights = PrismLM(small_config("12x3", **fields), seed=1).state_dict()
    theirs = to_llama_names(weights, fields.get("queries_per_kv", 1))
    again = to_native_names(theirs)
    assert is_native(weights)
    assert not is_native(theirs)
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[name], weight) for name, weight in weights.items())


def test_names_and_shapes_are_llamas() -> None:
    fields: dict[str, Any] = {"queries_per_kv": 3, "vocab_size": 384}
    native = PrismLM(small_config("12x3", queries_per_kv=3)).state_dict()
    llama = llama_twin(prism(head_schedule="12x3", **fields)).state_dict()
    del llama["lm_head.weight"]  # tied
    found = {name: w.shape for name, w in to_llama_names(native, 3).items()}
    assert found == {name: w.shape for name, w in llama.items()}
