"""PrismModel and PrismForCausalLM: the layers of ``model.py`` behind the Hugging Face interface.

Shapes: B batch, T positions, S positions attended to, D model width, H heads of one layer,
G key-value heads of one layer, K width of one head, V vocabulary.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, LogitsProcessorList, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import LogitsProcessor
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from prism_transformer.hf.configuration_prism import PrismConfig
from prism_transformer.model import (
    Attend,
    Embedding,
    Layer,
    Linear,
    remember_in,
    rotary_frequencies,
    rotary_tables,
)
from prism_transformer.schedule import HeadSchedule, ScheduleError

logger = logging.getLogger(__name__)


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


def refuse_other_schedule(model: Any, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Before ``load_state_dict``: weights that carry another schedule are not taken."""
    stored = state_dict.get(f"{prefix}head_schedule")
    if stored is not None and tuple(stored.tolist()) != model.config.schedule.heads:
        raise ScheduleError(
            f"these weights belong to head_schedule {HeadSchedule(tuple(stored.tolist()))}, the "
            f"model has {model.config.head_schedule}"
        )


class AttentionInterface(nn.Module):
    """The attention function that the config asks for, with this layer's own head counts.

    A module without weights: transformers' functions read its attributes, and its hooks record
    the attention weights that come out of it.
    """

    is_causal = True

    def __init__(self, config: PrismConfig, layer_idx: int, head_dim: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = head_dim
        self.scaling = head_dim**-0.5
        self.num_key_value_groups = config.queries_per_kv

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attended values (B, T, H, K), and the weights (B, H, T, S) where they are computed."""
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        return attention(self, q, k, v, mask, dropout=0.0, scaling=self.scaling, **kwargs)


class PrismPreTrainedModel(PreTrainedModel):
    """The layers and everything around them; the two models below differ in what they put on top.

    Both have the native model's modules at their own top level, so weights keep their names.
    """

    config: PrismConfig
    config_class = PrismConfig
    supports_gradient_checkpointing = True
    _input_embed_layer = "embedding"
    _no_split_modules: ClassVar[list[str]] = ["Layer"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs: ClassVar[dict[str, Any]] = {
        "hidden_states": Layer,
        "attentions": OutputRecorder(AttentionInterface, index=1),
    }

    head_schedule: Tensor

    def __init__(self, config: PrismConfig) -> None:
        super().__init__(config)
        native = config.native
        self.head_dims = native.head_dims
        self.gradient_checkpointing = False
        self.embedding = Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(Layer(native, n_heads) for n_heads in native.schedule.heads)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attends = nn.ModuleList(
            AttentionInterface(config, index, width) for index, width in enumerate(self.head_dims)
        )
        # The weights of every schedule have the same shapes. This is how a file knows its own.
        self.register_buffer("head_schedule", torch.tensor(native.schedule.heads))
        self.register_load_state_dict_pre_hook(refuse_other_schedule)

    @merge_with_config_defaults
    @capture_outputs
    def run_layers(
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
        x = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = torch.arange(x.shape[1], device=x.device)[None] + seen
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        tables = self.rotary_tables(position_ids)
        kwargs["position_ids"] = position_ids
        for index, layer in enumerate(self.layers):
            table = tables[self.head_dims[index]]
            attend = self._attend(index, mask, kwargs)
            if self.gradient_checkpointing and self.training:
                x = self._gradient_checkpointing_func(layer.__call__, x, table, attend)
            else:
                x = layer(x, table, attend, remember_in(past_key_values, index))
        return BaseModelOutputWithPast(
            last_hidden_state=self.norm(x), past_key_values=past_key_values
        )

    def rotary_tables(self, positions: Tensor) -> dict[int, Tensor]:
        """One table per distinct head width, scaled as ``rope_parameters`` say."""
        rope = self.config.rope_parameters or {}
        widths = dict.fromkeys(self.head_dims)
        if rope["rope_type"] == "default":
            tiled = self.config.rope_frequencies == "tiled"
            base = self.config.h_base or max(self.config.schedule.heads)
            period = self.config.hidden_size // base if tiled else None
            frequencies = {
                width: rotary_frequencies(width, rope["rope_theta"], period, positions.device)
                for width in widths
            }
            return rotary_tables(positions, frequencies)
        compute = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
        scaled = {w: compute(_layer_of_width(self.config, w), positions.device) for w in widths}
        tables = rotary_tables(positions, {width: scaled[width][0] for width in widths})
        return {width: table * scaled[width][1] for width, table in tables.items()}

    def _attend(self, index: int, mask: Tensor | None, kwargs: dict[str, Any]) -> Attend:
        """The model's seam for attention: transformers' interface, heads in front."""
        interface = self.attends[index]
        return lambda q, k, v: interface(q, k, v, mask, **kwargs)[0].transpose(1, 2)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As the native model: projections onto the stream start smaller."""
        super()._init_weights(module)
        # transformers passes only modules that hold tensors themselves, so the model stands in
        # for its layers; ``init`` leaves alone what was loaded.
        if isinstance(module, PrismPreTrainedModel):
            init.copy_(module.head_schedule, torch.tensor(self.config.schedule.heads))
            std = self.config.initializer_range / (2 * self.config.num_hidden_layers) ** 0.5
            for layer in module.layers:
                assert isinstance(layer, Layer)
                init.normal_(layer.attention.out.weight, std=std)
                init.normal_(layer.mlp.down.weight, std=std)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load a model; refuses weights of another schedule unless the caller chose it."""
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        unknown = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
        if "head_schedule" in unknown:
            raise ScheduleError(
                "these weights do not say which head_schedule they belong to, or have another "
                "number of layers; convert them with prism import"
            )
        model._check_schedule()
        return (model, info) if output_loading_info else model

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> Any:
        """Resize the vocabulary; rows beyond ``new_num_tokens`` are padding from then on."""
        tokens = new_num_tokens or self.config.num_tokens or self.config.vocab_size
        embedding = super().resize_token_embeddings(
            new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        self.config.num_tokens = tokens
        return embedding

    def _check_schedule(self) -> None:
        """Hold the schedule that came with the weights against the one of the config."""
        stored = HeadSchedule(tuple(self.head_schedule.tolist()))
        asked = self.config.schedule
        if stored == asked:
            self.config.__dict__.pop("_schedule_chosen", None)
            return
        if not self.config.__dict__.pop("_schedule_chosen", False):
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
        self.head_schedule.copy_(torch.tensor(asked.heads))


class PrismModel(PrismPreTrainedModel):
    """The Prism Transformer without a head: last hidden states."""

    def __init__(self, config: PrismConfig) -> None:
        super().__init__(config)
        self.post_init()

    forward = PrismPreTrainedModel.run_layers


class PrismForCausalLM(PrismPreTrainedModel, GenerationMixin):
    """The Prism Transformer as a language model."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "embedding.weight"}

    def __init__(self, config: PrismConfig) -> None:
        super().__init__(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        self.post_init()

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
        outputs = self.run_layers(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept, :])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs
            )
        return CausalLMOutputWithPast(
            loss=loss,
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
        layers = self.config.layer_fields()
        return (
            [layer["num_key_value_heads"] for layer in layers],
            [layer["head_dim"] for layer in layers],
        )


def _layer_of_width(config: PrismConfig, width: int) -> PrismConfig:
    """The configuration of some layer with heads of this width."""
    if not config.is_heterogeneous:
        return config
    return next(layer for layer in config.per_layer_config if layer.head_dim == width)
