"""Export of a uniform Prism model as a plain Llama, for tools that know nothing of ours."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from prism_transformer.core.errors import InputError
from prism_transformer.hf.configuration_prism import LAYER_FIELDS
from prism_transformer.hf.modeling_prism import PrismForCausalLM
from prism_transformer.hf.names import SCHEDULE

# Fields that mean the same in Llama's configuration and in ours.
SHARED_FIELDS = (
    "hidden_size", "intermediate_size", "max_position_embeddings", "rms_norm_eps",
    "initializer_range", "rope_parameters", "tie_word_embeddings", "bos_token_id", "eos_token_id",
    "pad_token_id",
)  # fmt: skip


def to_llama(model: PrismForCausalLM) -> LlamaForCausalLM:
    """The same function as a Llama; refuses, by name, what Llama has not."""
    config = model.config
    check_llama_form(model)
    fields = {name: getattr(config, name) for name in (*SHARED_FIELDS, *LAYER_FIELDS)}
    llama_config = LlamaConfig(
        vocab_size=config.num_tokens or config.vocab_size,
        num_hidden_layers=config.num_hidden_layers,
        **deepcopy(fields),
    )
    with torch.device("meta"):
        llama = LlamaForCausalLM(llama_config)
    # The rotary frequencies are no weights: they are made anew, off the meta device.
    llama.model.rotary_emb = type(llama.model.rotary_emb)(llama_config)
    llama.load_state_dict(llama_weights(model), strict=True, assign=True)
    llama.tie_weights()
    llama.generation_config = deepcopy(model.generation_config)
    return llama.eval()


def llama_weights(model: PrismForCausalLM) -> dict[str, Tensor]:
    """Weights of a model that give its function under Llama's rules.

    Rows that only pad the vocabulary are cut, for nobody else would know not to generate them; a
    scale of attention other than Llama's goes into the queries.
    """
    native, n_tokens = model.config.native, model.config.num_tokens
    weights = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    del weights[SCHEDULE]
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][:n_tokens].clone()
    if native.attention_scale == "base":
        for layer, width in enumerate(native.head_dims):
            name = f"model.layers.{layer}.self_attn.q_proj.weight"
            weights[name] *= (native.base_width / width) ** 0.5
    return weights


def check_llama_form(model: PrismForCausalLM) -> None:
    """Refuse, by name, what a Llama cannot say."""
    config = model.config
    native = config.native
    rope = config.rope_frequencies
    same_width = set(native.head_dims) == {native.base_width}
    problems = {
        f"head_schedule {config.head_schedule}, which is not uniform": len(config.schedule.phases)
        > 1,
        f"attention = {config.attention!r}": config.attention != "causal",
        f"norm = {config.norm!r}": config.norm != "rmsnorm",
        f"rope_frequencies = {rope!r}": rope == "split" or (rope == "tiled" and not same_width),
    }
    refuse(problems, "a Llama cannot have {}; export without --as llama")


def refuse(problems: dict[str, bool], sentence: str) -> None:
    """Raise the sentence with all problems that are present in its place for them."""
    if found := [problem for problem, present in problems.items() if present]:
        raise InputError(sentence.format("; ".join(found)))
