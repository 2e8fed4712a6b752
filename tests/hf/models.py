"""Small Hugging Face models for the tests: ragged, grouped, and a Llama with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from prism_transformer.hf import PrismConfig, PrismForCausalLM

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
    llama.load_state_dict(llama_weights(model), strict=False)
    llama.tie_weights()
    return llama.eval()


def llama_weights(model: Any) -> dict[str, Tensor]:
    config = model.config
    kv = config.hidden_size // config.queries_per_kv
    weights = {
        "model.embed_tokens.weight": model.embedding.weight,
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.lm_head.weight,
    }
    for index, layer in enumerate(model.layers):
        prefix = f"model.layers.{index}"
        q, k, v = layer.attention.qkv.weight.split((config.hidden_size, kv, kv))
        gate, up = layer.mlp.gate_up.weight.chunk(2)
        weights |= {
            f"{prefix}.self_attn.q_proj.weight": q,
            f"{prefix}.self_attn.k_proj.weight": k,
            f"{prefix}.self_attn.v_proj.weight": v,
            f"{prefix}.self_attn.o_proj.weight": layer.attention.out.weight,
            f"{prefix}.mlp.gate_proj.weight": gate,
            f"{prefix}.mlp.up_proj.weight": up,
            f"{prefix}.mlp.down_proj.weight": layer.mlp.down.weight,
            f"{prefix}.input_layernorm.weight": layer.attention_norm.weight,
            f"{prefix}.post_attention_layernorm.weight": layer.mlp_norm.weight,
        }
    return {name: weight.detach().clone() for name, weight in weights.items()}


def tokens(length: int = 12, batch: int = 2, seed: int = 0) -> Tensor:
    """Random tokens, none of them special."""
    return torch.randint(3, 300, (batch, length), generator=torch.Generator().manual_seed(seed))


def byte_level_tokenizer(text: str) -> Any:
    """A real byte-level BPE, trained on the spot."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    end = "<|endoftext|>"
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end, bos_token=end)
