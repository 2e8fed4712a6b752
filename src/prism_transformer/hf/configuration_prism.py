"""PrismConfig: the configuration of a Hugging Face Prism model.

The schedule is one field, ``head_schedule``. What transformers wants to know of each layer is
derived from it, so the two cannot disagree; only the schedule is written to ``config.json``.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from transformers import LlamaConfig, PreTrainedConfig

from prism_transformer.recipe import (
    AttentionKind,
    AttentionScale,
    ModelConfig,
    Norm,
    RopeFrequencies,
)
from prism_transformer.schedule import HeadSchedule, ScheduleError

# What a layer has of its own, as transformers names it.
LAYER_FIELDS = ("num_attention_heads", "num_key_value_heads", "head_dim")
DERIVED = (*LAYER_FIELDS, "num_hidden_layers", "per_layer_config")

# The fields that LAYER_FIELDS follow from.
SOURCES = (
    "head_schedule", "hidden_size", "queries_per_kv", "h_base", "rope_parameters",
    "rope_frequencies",
)  # fmt: skip

# Fields that only have another name, or not even that, in a native model's configuration.
NATIVE = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "max_position_embeddings": "seq_len",
    "attention": "attention",
    "queries_per_kv": "queries_per_kv",
    "tie_word_embeddings": "tied_embeddings",
    "rope_frequencies": "rope_frequencies",
    "attention_scale": "attention_scale",
    "norm": "norm",
    "rms_norm_eps": "norm_eps",
    "initializer_range": "init_std",
}

# Fields of Llama's for which a Prism model has only this.
FIXED = {
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "partial_rotary_factor": 1.0,
}

# RoPE types whose frequencies depend on the head width and nothing that changes while running.
ROPE_TYPES = ("default", "linear", "ntk", "llama3", "yarn")


class NotOfAllLayers(AttributeError, RuntimeError):
    """A field in which layers differ was asked of the whole model."""


class PrismConfig(PreTrainedConfig):
    """Fields are named as in Llama's configuration; ours are the nine that Llama has not."""

    model_type = "prism"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    # Modules have Llama's names. A layer's heads are shared out whole: ``check_parallel``.
    base_model_tp_plan: ClassVar[dict[str, str]] = LlamaConfig.base_model_tp_plan

    head_schedule: str = "12x12"
    """heads per layer, as in "3x2 6x2 8x2 12x6"; a list of counts is welcome too"""
    h_base: int | None = None
    """head count of the uniform twin; the schedule's largest when left out"""
    attention: AttentionKind = "causal"
    """``bidirectional`` is an encoder, and as a language model a masked one"""
    queries_per_kv: int = 1
    """queries that share one key-value head, in every layer"""
    rope_frequencies: RopeFrequencies = "per-width"
    attention_scale: AttentionScale = "per-width"
    """both: see docs/schedules.md, "Controls" """
    norm: Norm = "rmsnorm"
    num_tokens: int | None = None
    """tokens of the tokenizer; rows of the vocabulary beyond them are never generated"""
    masking: dict[str, float] | None = None
    """of an encoder, what it was trained with: ``share`` of tokens, and of these ``replaced`` by
    the mask and by ``random`` tokens"""

    vocab_size: int = 50304
    hidden_size: int = 768
    intermediate_size: int = 2048
    max_position_embeddings: int = 1024
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    rope_parameters: dict[str, Any] | None = None
    tie_word_embeddings: bool = True
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        given = {key: kwargs.pop(key) for key in DERIVED if key in kwargs}
        for key, only in FIXED.items():
            if kwargs.get(key, only) != only:
                raise ValueError(f"{key} = {kwargs[key]!r} is not supported, only {only!r}")
        super().__post_init__(**kwargs)
        if self.num_tokens is not None and self.num_tokens > self.vocab_size:
            raise ValueError(f"num_tokens = {self.num_tokens} is above {self.vocab_size=}")
        self._derive()
        for key, value in given.items():
            self._refuse_other(key, value)

    def __setattr__(self, key: str, value: Any) -> None:
        if key == "head_schedule":
            value = str(HeadSchedule.parse(value))
        ready = "num_hidden_layers" in self.__dict__ and not self._is_layer_view()
        if ready and key in DERIVED:
            self._refuse_other(key, value)
            return
        if ready and key == "head_schedule":
            self.__dict__["_schedule_chosen"] = True  # from_pretrained then warns, not refuses
        previous = self.__dict__.get(key)
        super().__setattr__(key, value)
        if ready and key in SOURCES:
            try:
                self._derive()
            except ValueError:
                self.__dict__[key] = previous
                raise

    def __getattribute__(self, key: str) -> Any:
        """A field; where layers differ there is none for all, and tools that probe are told so."""
        try:
            return super().__getattribute__(key)
        except RuntimeError as error:  # transformers', which ``hasattr`` does not catch
            raise NotOfAllLayers(str(error)) from None

    @property
    def schedule(self) -> HeadSchedule:
        return HeadSchedule.parse(self.head_schedule)

    @property
    def native(self) -> ModelConfig:
        """The same model as ``prism_transformer.model`` describes it."""
        rope = self.rope_parameters or {}
        return ModelConfig(
            schedule=self.schedule,
            h_base=self.h_base or max(self.schedule.heads),
            vocab_size=self.num_tokens or self.vocab_size,
            rope_base=float(rope.get("rope_theta") or self.default_theta),
            **{native: getattr(self, ours) for ours, native in NATIVE.items()},
        )

    @classmethod
    def from_native(cls, config: ModelConfig, **fields: Any) -> PrismConfig:
        """The Hugging Face configuration of a native model."""
        return cls(
            head_schedule=str(config.schedule),
            h_base=config.h_base,
            num_tokens=config.vocab_size,
            vocab_size=config.vocab_rows,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
            **{ours: getattr(config, native) for ours, native in NATIVE.items()},
            **fields,
        )

    def layer_fields(self) -> list[dict[str, int]]:
        """Head counts and head width of each layer, as transformers names them."""
        widths = self.schedule.head_dims(self.hidden_size)
        return [
            dict(zip(LAYER_FIELDS, (heads, heads // self.queries_per_kv, width), strict=True))
            for heads, width in zip(self.schedule.heads, widths, strict=True)
        ]

    def check_parallel(self, n_parts: int) -> None:
        """Refuse to share a layer's heads out where they do not divide."""
        for layer, fields in enumerate(self.layer_fields()):
            n_heads, n_kv_heads, _ = fields.values()
            if n_kv_heads % n_parts:
                raise ScheduleError(
                    f"layer {layer} has {n_heads} heads and {n_kv_heads} of keys and values: "
                    f"tensor parallelism cannot share them out among {n_parts} processes; take a "
                    "number that divides every layer's"
                )
        if self.rope_frequencies == "split" and n_parts > 1:
            raise ScheduleError("split rope_frequencies differ by head: no tensor parallelism")

    def validate(self) -> None:
        """Run transformers' own checks; those of 5.14 take one head width for granted."""
        PreTrainedConfig.validate(self.per_layer_config[0] if self.is_heterogeneous else self)

    def to_dict(self) -> dict[str, Any]:
        """Every field, and what all layers have in common."""
        _tell_peft(self.model_type)
        return _without(super().to_dict(), "per_layer_config", "_schedule_chosen")

    def to_diff_dict(self) -> dict[str, Any]:
        """The fields that ``config.json`` shows: none that follows from the schedule."""
        return _without(super().to_diff_dict(), *DERIVED, "_schedule_chosen")

    def _derive(self) -> None:
        """Set what transformers reads per layer; a model-wide value only where all layers agree."""
        self._check_rope()
        _ = self.native  # which checks it
        layers = self.layer_fields()
        for key in LAYER_FIELDS:
            self.__dict__.pop(key, None)
        self.__dict__["num_hidden_layers"] = len(layers)
        uniform = len(set(self.schedule.heads)) == 1
        self.__dict__.update(layers[0] if uniform else {})
        own = None if uniform else dict(enumerate(layers))
        PreTrainedConfig.per_layer_config.fset(self, own)

    def _check_rope(self) -> None:
        rope_type = (self.rope_parameters or {}).get("rope_type", "default")
        if self.rope_parameters is None or rope_type not in ROPE_TYPES:
            raise ScheduleError(
                f"rope_parameters = {self.rope_parameters!r}: not supported; rope_type may be "
                f"{', '.join(ROPE_TYPES)}"
            )

    def _is_layer_view(self) -> bool:
        """Whether this is the copy of a ragged config that transformers makes for one layer."""
        return len(self.schedule.phases) > 1 and "_heterogeneity_spec" not in self.__dict__

    def _refuse_other(self, key: str, value: Any) -> None:
        """Accept only what the schedule says already."""
        layers = self.layer_fields()
        if key == "per_layer_config":
            same = value is None or all(
                0 <= int(index) < len(layers) and fields.items() <= layers[int(index)].items()
                for index, fields in value.items()
            )
        elif key == "num_hidden_layers":
            same = value == len(layers)
        else:
            same = {layer[key] for layer in layers} == {value}
        if not same:
            raise ScheduleError(
                f"{key} = {value!r} disagrees with head_schedule = {self.head_schedule!r}, which "
                "decides it; set head_schedule instead"
            )


def _tell_peft(model_type: str) -> None:
    """List Llama's LoRA targets as ours, for those who give none.

    PEFT asks a config for its fields, then looks its model type up: this is the moment that comes
    after both were imported, in whichever order. It is not imported for this alone: it is slow.
    """
    peft = sys.modules.get("peft.utils.constants")
    if peft is not None:
        targets = peft.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
        targets.setdefault(model_type, targets["llama"])


def _without(fields: dict[str, Any], *hidden: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in hidden}
