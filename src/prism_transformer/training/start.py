"""Weights to begin a run from, in place of a draw; ``hf/pretrained.py`` reads them.

Weights of another shape cannot be taken, and those of another schedule, rotary base or tokenizer
could be taken without a word and would be nonsense: all of it is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prism_transformer.core.disk import file_sha256
from prism_transformer.core.errors import InputError
from prism_transformer.data.tokenizer import BPE_FILE
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import fingerprint
from prism_transformer.recipe import ModelConfig, Recipe
from prism_transformer.training.run import Row, read_run

# What a run may have otherwise than its start: weights do not depend on the length of contexts,
# nor, once they are there, on how they were drawn.
FREE = {"seq_len", "init_std"}


@dataclass(frozen=True)
class Start:
    """A model to begin from."""

    source: str
    """what the user named, and the checkpoint of a run"""
    model: PrismLM
    run: Path | None = None
    """the run that it comes from, whose tokenizer its weights know"""

    @property
    def facts(self) -> Row:
        """What a run remembers of it."""
        return {"source": self.source, "sha256": fingerprint(self.model)}

    @torch.no_grad()
    def fill(self, model: PrismLM) -> None:
        """Copy the weights into a model, in the model's precision."""
        weights = self.model.state_dict()
        # Into memory that torch laid out: results on a CPU can depend on alignment.
        for name, weight in model.named_parameters():
            weight.copy_(weights[name])


def check_shape(start: Start, recipe: Recipe) -> None:
    """Refuse a model that is not the recipe's, with everything in which it differs."""
    wanted, there = recipe.model, start.model.config
    keys = [key for key in ModelConfig.model_fields if key not in FREE]
    apart = [key for key in keys if getattr(wanted, key) != getattr(there, key)]
    if not apart:
        return
    lines = [_difference(key, wanted, there) for key in apart]
    remedy = " ".join(f'"model.{key}={_text(getattr(there, key))}"' for key in apart)
    other = (
        "; a Llama gets another schedule by `prism import --schedule`, and must be trained further"
        if "schedule" in apart
        else ""
    )
    raise InputError(
        f"{start.source}: is not the recipe's model: {'; '.join(lines)}. To train it as it is, "
        f"add {remedy}{other}"
    )


def _difference(key: str, wanted: ModelConfig, there: ModelConfig) -> str:
    line = f"model.{key} is {_text(getattr(wanted, key))} in the recipe, "
    line += f"{_text(getattr(there, key))} in these weights"
    if key != "schedule":
        return line
    if wanted.n_layers != there.n_layers:
        return f"{line} ({wanted.n_layers} layers, {there.n_layers} layers)"
    pairs = enumerate(zip(wanted.schedule.heads, there.schedule.heads, strict=True))
    layer = next(index for index, (ours, theirs) in pairs if ours != theirs)
    return f"{line} (first at layer {layer})"


def _text(value: Any) -> str:
    """A value as an override takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_tokenizer(start: Start, recipe: Recipe) -> None:
    """Refuse to train a run's weights on tokens that stand for other text than they learnt.

    The shards must be there. Other models do not say enough of their tokenizer: its size is all
    that is compared.
    """
    if start.run is None:
        return
    ours, theirs = recipe.data.tokenizer, read_run(start.run).data.tokenizer
    if ours != theirs:
        raise InputError(
            f"{start.source}: was trained with tokenizer {theirs}, the recipe says {ours}"
        )
    files = start.run / BPE_FILE, Path(recipe.data.folder) / BPE_FILE
    if all(file.exists() for file in files) and len({file_sha256(file) for file in files}) > 1:
        raise InputError(
            f"{start.source}: its {theirs} is another than that of {recipe.data.folder}: a BPE "
            "belongs to the corpus it was trained on; train on the same shards, or begin both runs "
            "with tokenizer gpt2 or bytes"
        )
