"""A native model on disk: a folder with its config and its weights, never one without the other.

The weights of every schedule have the same shapes, so the file carries its schedule as a tensor of
its own; ``load_model`` holds it against the config.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prism_transformer.errors import InputError
from prism_transformer.folders import new_folder
from prism_transformer.model import PrismLM
from prism_transformer.recipe import ModelConfig
from prism_transformer.schedule import HeadSchedule

CONFIG_FILE = "model.json"
WEIGHTS_FILE = "model.safetensors"
SCHEDULE = "head_schedule"


def save_model(model: PrismLM, folder: Path) -> None:
    """Write the model to a new folder."""
    weights = {name: weight.detach().cpu() for name, weight in model.state_dict().items()}
    with new_folder(folder) as place:
        write_model(model.config, weights, place)


def write_model(config: ModelConfig, weights: Mapping[str, Tensor], place: Path) -> None:
    """Write config and weights into a folder that is there."""
    schedule = torch.tensor(config.schedule.heads)
    text = json.dumps(config.model_dump(), indent=2)
    (place / CONFIG_FILE).write_text(text + "\n", "utf-8")
    write_tensors({SCHEDULE: schedule, **weights}, place / WEIGHTS_FILE)


def write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write a safetensors file; a full disk is an OSError, as for any other file."""
    try:
        save_file(dict(tensors), file)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from None


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read a safetensors file."""
    try:
        return load_file(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise InputError(f"{file}: not a sound safetensors file: {error}") from None


def load_model(folder: Path) -> PrismLM:
    """Read a model, in the precision it was saved in."""
    config = _read_config(folder / CONFIG_FILE)
    weights = read_tensors(folder / WEIGHTS_FILE)
    check_schedule(weights.pop(SCHEDULE, None), config.schedule, folder)
    with torch.device("meta"):
        model = PrismLM(config)
    wanted = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise InputError(
                f"{folder / WEIGHTS_FILE}: {name} has shape {found.get(name)}, but the model of "
                f"{CONFIG_FILE} needs {wanted.get(name)}"
            )
    model.load_state_dict(weights, assign=True)
    return model


def check_schedule(stored: Tensor | None, schedule: HeadSchedule, folder: Path) -> None:
    """Refuse weights that were made for another schedule."""
    if stored is None:
        raise InputError(f"{folder / WEIGHTS_FILE}: has no {SCHEDULE}, so its schedule is unknown")
    if tuple(stored.tolist()) != schedule.heads:
        made_for = HeadSchedule(tuple(stored.tolist()))
        raise InputError(
            f"{folder}: the weights belong to schedule {made_for}, the config says {schedule}"
        )


def _read_config(file: Path) -> ModelConfig:
    try:
        return ModelConfig.model_validate(json.loads(file.read_text("utf-8")))
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{file}: not JSON: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{file}: {key}: {first['msg'].removeprefix('Value error, ')}") from None
