"""Conversions: native models to Hugging Face and back, and Llama checkpoints to Prism."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedConfig

from prism_transformer.errors import InputError
from prism_transformer.hf.configuration_prism import ROPE_TYPES, PrismConfig
from prism_transformer.hf.modeling_prism import PrismForCausalLM
from prism_transformer.model import PrismLM
from prism_transformer.schedule import HeadSchedule

# Fields that mean the same in Llama's configuration and in ours.
SHARED_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "initializer_range",
    "rope_parameters",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)


def to_hf(model: PrismLM, **fields: Any) -> PrismForCausalLM:
    """The Hugging Face model with the weights of a native one."""
    config = PrismConfig.from_native(model.config, **fields)
    with torch.device("meta"):
        wrapped = PrismForCausalLM(config)
    weights = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    schedule = torch.tensor(config.schedule.heads)
    return _with_weights(wrapped, weights | {"head_schedule": schedule})


def to_native(model: PrismForCausalLM) -> PrismLM:
    """The native model with the weights of a Hugging Face one."""
    config = model.config
    native = config.native
    rope_type = (config.rope_parameters or {})["rope_type"]
    problems = {
        "tie_word_embeddings = false": not config.tie_word_embeddings,
        f"rope_type = {rope_type!r}": rope_type != "default",
        f"vocab_size = {config.vocab_size}, where native models have {native.vocab_rows} rows "
        "(resize_token_embeddings with pad_to_multiple_of=128)": (
            config.vocab_size != native.vocab_rows
        ),
    }
    _refuse(problems, "a native model")
    with torch.device("meta"):
        bare = PrismLM(native)
    weights = {name: model.state_dict()[name].detach().clone() for name in bare.state_dict()}
    bare.load_state_dict(weights, assign=True)
    return bare


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
    _refuse(problems, "a Prism model")


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
        **{name: getattr(theirs, name) for name in SHARED_FIELDS},
    )
    with torch.device("meta"):
        model = PrismForCausalLM(config)
    weights = dict(_renamed(llama.state_dict(), theirs.num_hidden_layers))
    if not config.tie_word_embeddings:
        weights["lm_head.weight"] = llama.lm_head.weight.detach().clone()
    model = _with_weights(model, weights | {"head_schedule": torch.tensor(schedule.heads)})
    model.generation_config = deepcopy(llama.generation_config)
    return model


@torch.no_grad()
def window_losses(model: Any, tokens: Tensor, seq_len: int) -> Iterator[float]:
    """Mean loss in nats per token of each whole window of ``seq_len`` of a text's tokens (N,)."""
    for window in tokens[: len(tokens) // seq_len * seq_len].view(-1, 1, seq_len):
        yield model(window, labels=window).loss.item()


def _renamed(weights: dict[str, Tensor], n_layers: int) -> Iterator[tuple[str, Tensor]]:
    """Llama's weights under our names: query, key and value fused, and gate and up."""
    yield "embedding.weight", weights["model.embed_tokens.weight"].clone()
    yield "norm.weight", weights["model.norm.weight"].clone()
    for index in range(n_layers):
        ours, theirs = f"layers.{index}", f"model.layers.{index}"

        def fused(*names: str, layer: str = theirs) -> Tensor:
            return torch.cat([weights[f"{layer}.{name}.weight"] for name in names])

        attention = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        yield f"{ours}.attention.qkv.weight", fused(*attention)
        yield f"{ours}.attention.out.weight", fused("self_attn.o_proj")
        yield f"{ours}.mlp.gate_up.weight", fused("mlp.gate_proj", "mlp.up_proj")
        yield f"{ours}.mlp.down.weight", fused("mlp.down_proj")
        yield f"{ours}.attention_norm.weight", fused("input_layernorm")
        yield f"{ours}.mlp_norm.weight", fused("post_attention_layernorm")


def _with_weights(model: PrismForCausalLM, weights: dict[str, Tensor]) -> PrismForCausalLM:
    """Give a model built on the meta device its weights."""
    missing = model.load_state_dict(weights, strict=False, assign=True).missing_keys
    tied = ["lm_head.weight"] if model.config.tie_word_embeddings else []
    assert missing == tied, missing
    model.tie_weights()
    return model.eval()


def _refuse(problems: dict[str, bool], wanted: str) -> None:
    found = [name for name, present in problems.items() if present]
    if found:
        raise InputError(f"{wanted} does not support {'; '.join(found)}")
