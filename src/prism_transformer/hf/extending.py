"""Contexts beyond the one a model was trained on: its rotary positions, scaled.

``linear`` interpolates positions. ``ntk`` raises the base, so that the slowest pair is interpolated
and the fastest is left alone. ``yarn`` chooses pair by pair, by how often it turns in a context.
These two depend on the width over which frequencies are spread, so that each width of a Prism model
is scaled by itself.
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from prism_transformer.core.errors import InputError, first_line
from prism_transformer.model import pair_frequencies

ROPE_SCALINGS = ("linear", "ntk", "dynamic", "yarn")


def rotary_shape(config: Any, width: int) -> LlamaConfig:
    """What transformers' own functions read: a model of one head of this rotary width."""
    rope = dict(config.rope_parameters)
    # "ntk" is ours: transformers has it only as "dynamic", of a length known while running.
    if rope["rope_type"] == "ntk":
        rope = {"rope_type": "default", "rope_theta": ntk_base(rope, width)}
    return LlamaConfig(
        hidden_size=width,
        num_attention_heads=1,
        head_dim=width,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=rope,
    )


def ntk_base(rope: dict[str, Any], width: int) -> float:
    """The base under which the slowest of a width's pairs turns ``factor`` times slower."""
    if width <= 2:  # one pair, the fastest, which is left alone
        return rope["rope_theta"]
    return rope["rope_theta"] * rope["factor"] ** (width / (width - 2))


def scaled_frequencies(shape: LlamaConfig, device: torch.device | None) -> tuple[Tensor, float]:
    """Radians per position of each channel pair of a rotary width, and what scales the table."""
    rope = shape.rope_parameters
    if rope["rope_type"] == "default":
        return pair_frequencies(shape.head_dim, rope["rope_theta"], device), 1.0
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](shape, device)


def check_context(model: Any, length: int, extrapolate: bool) -> None:
    """Refuse sequences beyond a model's context unless that is the question."""
    config = model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    if longest is None or length <= longest:
        return
    if getattr(config, "rope_parameters", None) is None:
        raise InputError(f"--length {length}: this model has {longest} learned positions, no more")
    if not extrapolate:
        raise InputError(
            f"--length {length}: this model's context is {longest}; to go beyond, --extrapolate "
            "its positions as they are, or --rope-scaling linear:2"
        )


def with_rope_scaling(model: Any, scaling: str) -> Any:
    """The same weights with positions rescaled: ``linear:2``, ``ntk:2`` or ``yarn:4``."""
    kind, _, factor = scaling.partition(":")
    try:
        times = float(factor)
    except ValueError:
        times = math.nan
    if kind not in ROPE_SCALINGS or not 1 <= times < math.inf:
        raise InputError(
            f"--rope-scaling {scaling!r}: write one of {', '.join(ROPE_SCALINGS)} and a factor of "
            "at least 1, as in linear:2"
        )
    config = deepcopy(model.config)
    rope = getattr(config, "rope_parameters", None)
    # Gemma 3 has them by kind of layer, older transformers beside a theta of none of its layers.
    if not rope or any(isinstance(each, dict) for each in rope.values()):
        has = "other rotary positions in other layers" if rope else "no rotary positions to scale"
        raise InputError(f"--rope-scaling: {type(model).__name__} has {has}")
    if (known := rope.get("rope_type", "default")) != "default":
        raise InputError(
            f"--rope-scaling {scaling}: this model's positions are scaled already ({known}); "
            "leave it out"
        )
    context = config.max_position_embeddings
    scaled_rope = rope | {"rope_type": kind, "factor": times}
    if kind != "linear":  # which knows no context
        scaled_rope["original_max_position_embeddings"] = context
    if kind == "ntk" and config.model_type != "prism":  # one width: another base is all
        base = ntk_base(scaled_rope, _turned_width(config, rope))
        scaled_rope = rope | {"rope_theta": base}
    try:
        config.rope_parameters = scaled_rope
        config.max_position_embeddings = int(context * times)
        scaled = type(model)(config)
    except (ValueError, KeyError) as error:
        why = first_line(error)
        raise InputError(f"--rope-scaling {scaling}: {type(model).__name__}: {why}") from None
    scaled.load_state_dict(model.state_dict())
    return scaled.to(model.device, model.dtype).eval()


def _turned_width(config: Any, rope: dict[str, Any]) -> int:
    """Channels of a head that turn at all: some families leave the rest as they are."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(width * rope.get("partial_rotary_factor", 1.0))
