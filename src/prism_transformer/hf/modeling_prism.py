"""PrismModel, and heads for it: the layers of ``model.py`` behind the Hugging Face interface.

Modules have Llama's names and one matrix each, so that tools find them; the maths is inherited.

Shapes: B batch, T positions, S positions attended to, D model width, H heads of one layer,
G key-value heads of one layer, K width of one head, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LlamaForCausalLM,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import LogitsProcessor
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_causal_mask,
    find_packed_sequence_indices,
    packed_sequence_mask_function,
)
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import cached_file, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from prism_transformer.hf.configuration_prism import PrismConfig
from prism_transformer.hf.extending import rotary_shape, scaled_frequencies
from prism_transformer.hf.layers import AttentionInterface, PrismDecoderLayer
from prism_transformer.hf.names import SCHEDULE, is_native, to_llama_names
from prism_transformer.model import dealt, make_norm, rotary_tables, rotary_width
from prism_transformer.schedule import HeadSchedule, ScheduleError

logger = logging.getLogger(__name__)

HUB_OPTIONS = ("cache_dir", "revision", "subfolder", "token", "local_files_only", "force_download")
# A model without this file, or a hub that does not answer, is for ``from_pretrained`` to judge.
QUIETLY: dict[str, Any] = {
    "_raise_exceptions_for_missing_entries": False,
    "_raise_exceptions_for_connection_errors": False,
    "_raise_exceptions_for_gated_repo": False,
}


class WithoutPadding(LogitsProcessor):
    """Rules out the rows that only pad the vocabulary.

    A type of its own: transformers drops its default processors for a caller's of the same type.
    """

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) with minus infinity for every padding row."""
        rows = torch.arange(scores.shape[-1], device=scores.device)
        return scores.masked_fill(rows >= self.num_tokens, -torch.inf)


class StoredSchedule(nn.Module):
    """Heads per layer as a tensor: weights of every schedule have the same shapes, so they say it.

    A module of its own, for tools that place a model on devices overlook a lone buffer.
    """

    heads: Tensor

    def __init__(self, schedule: HeadSchedule) -> None:
        super().__init__()
        self.schedule = schedule
        self.register_buffer("heads", torch.tensor(schedule.heads))
        self.register_load_state_dict_pre_hook(refuse_other_schedule)


def refuse_other_schedule(own: Any, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Before ``load_state_dict``: weights that carry another schedule are not taken."""
    stored = state_dict.get(f"{prefix}heads")
    if stored is not None and tuple(stored.tolist()) != own.schedule.heads:
        raise ScheduleError(
            f"these weights belong to head_schedule {HeadSchedule(tuple(stored.tolist()))}, the "
            f"model has {own.schedule}"
        )


class PrismPreTrainedModel(PreTrainedModel):
    """What all models of this file have in common: how they are loaded, filled and resized."""

    config: PrismConfig
    config_class = PrismConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["PrismDecoderLayer"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs: ClassVar[dict[str, Any]] = {
        "hidden_states": PrismDecoderLayer,
        "attentions": OutputRecorder(AttentionInterface, index=1),
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As the native model: projections onto the stream start smaller."""
        super()._init_weights(module)
        if isinstance(module, StoredSchedule):
            init.copy_(module.heads, torch.tensor(module.schedule.heads))
        if getattr(module, "adds_to_stream", False):
            std = self.config.initializer_range / (2 * self.config.num_hidden_layers) ** 0.5
            init.normal_(module.get_parameter("weight"), std=std)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *args: Any,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Load a model; refuses weights of another schedule unless the caller chose it."""
        source = pretrained_model_name_or_path
        native = None if source is None else _native_weights(source, kwargs)
        if native is None:
            model, info = super().from_pretrained(source, *args, output_loading_info=True, **kwargs)
        else:  # a folder that was exported with the native names
            kwargs = {"config": source, **kwargs, "state_dict": native}
            model, info = super().from_pretrained(None, *args, output_loading_info=True, **kwargs)
            if model.can_generate():
                model.generation_config = GenerationConfig.from_pretrained(source)
        if any(SCHEDULE.endswith(key) for key, *_ in info["mismatched_keys"]):
            raise ScheduleError("these weights have another number of layers than head_schedule")
        if any(SCHEDULE.endswith(key) for key in info["missing_keys"]):
            logger.warning(
                "These weights do not say which head_schedule they belong to: that of the config, "
                "%s, is taken.",
                model.config.head_schedule,
            )
        model._check_schedule()
        model.config.check_parallel(getattr(model, "_tp_size", None) or 1)
        return (model, info) if output_loading_info else model

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> Any:
        """Resize the vocabulary; rows beyond ``new_num_tokens`` are padding from then on."""
        tokens = new_num_tokens or self.config.num_tokens or self.config.vocab_size
        sizes = (new_num_tokens, pad_to_multiple_of, mean_resizing)
        embedding = super().resize_token_embeddings(*sizes)
        self.config.num_tokens = tokens
        return embedding

    def _check_schedule(self) -> None:
        """Hold the schedule that came with the weights against the one of the config."""
        own = self.base_model.head_schedule
        stored = HeadSchedule(tuple(own.heads.tolist()))
        asked = self.config.schedule
        chosen = self.config.__dict__.pop("_schedule_chosen", False)
        if stored.heads == asked.heads:
            return
        if not chosen:
            raise ScheduleError(
                f"these weights belong to head_schedule {stored}, but the config says {asked}; "
                f"give from_pretrained head_schedule={str(asked)!r} if you mean it"
            )
        logger.warning(
            "Loading weights of head_schedule %s under %s. The shapes agree, the function does "
            "not: the model must be trained further.",
            stored,
            asked,
        )
        own.heads.copy_(torch.tensor(asked.heads))


class PrismModel(PrismPreTrainedModel):
    """The Prism Transformer without a head: last hidden states."""

    def __init__(self, config: PrismConfig) -> None:
        super().__init__(config)
        native = config.native
        self.native = native  # made here, for compilers cannot trace how it is checked
        self.head_dims = native.head_dims
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        layers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(PrismDecoderLayer(config, layer) for layer in layers)
        self.norm = make_norm(native)
        counts = dict(zip(self.head_dims, native.schedule.heads, strict=True))
        self.rotary = {w: rotary_shape(config, rotary_width(native, n)) for w, n in counts.items()}
        self.gradient_checkpointing = False
        self.head_schedule = StoredSchedule(native.schedule)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Run tokens (B, T) or embeddings (B, T, D) through all layers and the last norm."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        causal = self.config.attention == "causal"
        if use_cache and causal and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        own_document = None
        if position_ids is None:
            seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = torch.arange(x.shape[1], device=x.device)[None] + seen
        elif attention_mask is None and not causal:
            own_document = within_documents(position_ids.expand(x.shape[:2]))
        parts = {"config": self.config, "inputs_embeds": x, "attention_mask": attention_mask}
        mask = (
            create_causal_mask(**parts, past_key_values=past_key_values, position_ids=position_ids)
            if causal
            else create_bidirectional_mask(**parts, and_mask_function=own_document)
        )
        tables = self.rotary_tables(position_ids)
        for width, layer in zip(self.head_dims, self.layers, strict=True):
            x = layer(
                x,
                position_embeddings=tables[width],
                attention_mask=mask,
                past_key_values=past_key_values,
                position_ids=position_ids,
                **kwargs,
            )
        return BaseModelOutputWithPast(
            last_hidden_state=self.norm(x), past_key_values=past_key_values
        )

    def rotary_tables(self, positions: Tensor) -> dict[int, Tensor]:
        """One table per distinct head width, scaled as ``rope_parameters`` say."""
        found = self.rotary_frequencies(positions.device)
        tables = rotary_tables(positions, {width: each for width, (each, _) in found.items()})
        return {width: table * found[width][1] for width, table in tables.items()}

    def rotary_frequencies(self, device: torch.device | None) -> dict[int, tuple[Tensor, float]]:
        """Radians per position of each channel pair, by head width, and what scales the table."""
        found = {}
        for width, n_heads in zip(self.head_dims, self.native.schedule.heads, strict=True):
            own, factor = scaled_frequencies(self.rotary[width], device)
            found[width] = dealt(self.native, n_heads, own), factor
        return found


def within_documents(position_ids: Tensor) -> Callable[..., Tensor] | None:
    """What a mask is joined with where positions (B, T) begin anew: each time another document.

    transformers does so by itself, but only for causal masks.
    """
    documents = find_packed_sequence_indices(position_ids)
    return None if documents is None else packed_sequence_mask_function(documents)


class PrismLanguageModel(PrismPreTrainedModel):
    """What the causal and the masked language model share: layers, and logits from them."""

    attention: ClassVar[str]
    """the only one that a config may have"""
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: PrismConfig) -> None:
        if config.attention != self.attention:
            other = "PrismForCausalLM" if config.attention == "causal" else "PrismForMaskedLM"
            raise ValueError(f"attention = {config.attention!r}: this one is a {other}")
        super().__init__(config)
        self.model = PrismModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()


class PrismForCausalLM(PrismLanguageModel, GenerationMixin):
    """The Prism Transformer as a language model."""

    attention = "causal"
    _tp_plan: ClassVar[dict[str, str]] = LlamaForCausalLM._tp_plan

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (B, T, V), and with ``labels`` the loss, shifted inside."""
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds)
        outputs = self.model(*inputs, use_cache=use_cache, **kwargs)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept, :])
        size = self.config.vocab_size
        return CausalLMOutputWithPast(
            loss=None if labels is None else self.loss_function(logits, labels, size, **kwargs),
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: Any | None = None,
        logits_processor: LogitsProcessorList | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Generate as any transformers model, but never a row that only pads the vocabulary."""
        processors = LogitsProcessorList(logits_processor or [])
        tokens = self.config.num_tokens or self.config.vocab_size
        if tokens < self.config.vocab_size:
            processors.append(WithoutPadding(tokens))
        return super().generate(inputs, generation_config, processors, *args, **kwargs)

    def _get_static_cache_init_shape(self) -> tuple[list[int], list[int]] | None:
        """Key-value heads and head width of each layer; transformers 5.14 asks for one of each."""
        if len(set(getattr(self, "hf_device_map", {}).values())) > 1:
            return None
        heads = [layer["num_key_value_heads"] for layer in self.config.layer_fields()]
        return heads, list(self.model.head_dims)


class PrismForSequenceClassification(GenericForSequenceClassification, PrismPreTrainedModel):
    """One label for a text, read from its last token."""


class PrismForTokenClassification(GenericForTokenClassification, PrismPreTrainedModel):
    """A label for each token."""


class PrismForQuestionAnswering(GenericForQuestionAnswering, PrismPreTrainedModel):
    """Where in a text the answer begins and ends."""


def _native_weights(source: Any, hub: dict[str, Any]) -> dict[str, Tensor] | None:
    """Renamed weights of a folder that has the native names; None of any other."""
    options = {key: hub[key] for key in HUB_OPTIONS if key in hub}
    file = cached_file(source, "model.safetensors", **options, **QUIETLY)
    if file is None:
        return None
    with safe_open(file, "pt") as weights:
        if not is_native(set(weights.keys())):
            return None
        found = {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118
    config = hub.get("config")
    if not isinstance(config, PrismConfig):
        config = PrismConfig.from_pretrained(source, **options)
    return to_llama_names(found, config.queries_per_kv)
