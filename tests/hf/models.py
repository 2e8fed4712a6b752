"""Small Hugging Face models for the tests: ragged, grouped, and a Llama with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from prism_transformer.hf import PrismConfig, PrismForCausalLM
from prism_transformer.hf.names import SCHEDULE

RAGGED: dict[str, Any] = {"head_schedule": "1x1 2x1 3x1 4x1 6x1 12x1"}
GROUPED: dict[str, Any] = {"head_schedule": "2x2 4x1 8x1 12x2", "queries_per_kv": 2}
UNIFORM: dict[str, Any] = {"head_schedule": "12x3"}
UNIFORM_GROUPED: dict[str, Any] = {"head_schedule": "12x3", "queries_per_kv": 3}

EACH = pytest.mark.parametrize("fields", [RAGGED, GROUPED], ids=["ragged", "gqa"])
EACH_UNIFORM = pytest.mark.parametrize(
    "fields", [UNIFORM, UNIFORM_GROUPED], ids=["uniform", "uniform-gqa"]
)


def prism_config(**fields: Any) -> PrismConfig:
    values: dict[str, Any] = {
        "hidden_size": 96,
        "intermediate_size": 160,
        "vocab_size": 300,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return PrismConfig(**(values | fields))


def prism(seed: int = 0, **fields: Any) -> Any:
    """A model with weights large enough that every layer matters."""
    torch.manual_seed(seed)
    model = PrismForCausalLM(prism_config(**fields))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(4.0)
    return model.eval()


def llama_twin(model: Any) -> Any:
    """transformers' Llama with the weights of a uniform Prism model."""
    config = model.config
    llama: Any = LlamaForCausalLM(
        LlamaConfig(
            **{
                name: getattr(config, name)
                for name in (
                    "vocab_size",
                    "hidden_size",
                    "intermediate_size",
                    "num_hidden_layers",
                    "num_attention_heads",
                    "num_key_value_heads",
                    "head_dim",
                    "max_position_embeddings",
                    "rms_norm_eps",
                    "rope_parameters",
                    "tie_word_embeddings",
                    "bos_token_id",
                    "eos_token_id",
                    "pad_token_id",
                )
            }
        )
    )
    weights = {name: weight for name, weight in model.state_dict().items() if name != SCHEDULE}
    llama.load_state_dict(weights)
    return llama.eval()


def tokens(length: int = 12, batch: int = 2, seed: int = 0) -> Tensor:
    """Random tokens, none of them special."""
    return torch.randint(3, 300, (batch, length), generator=torch.Generator().manual_seed(seed))


def byte_level_tokenizer(text: str) -> Any:
    """A real byte-level BPE, trained on the spot."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end, bos_token=end)
