"""A native model on disk: a folder with its config and its weights, never one without the other.

The weights of every schedule have the same shapes, so the file carries its schedule as a tensor of
its own; ``load_model`` holds it against the config.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from prism_transformer.core.disk import new_folder, read_json
from prism_transformer.core.errors import InputError, explain
from prism_transformer.model import PrismLM
from prism_transformer.models import CONFIG_FILE, WEIGHTS_FILE
from prism_transformer.recipe import ModelConfig
from prism_transformer.schedule import HeadSchedule

SCHEDULE = "head_schedule"


def fingerprint(model: nn.Module) -> str:
    """sha256 of every weight, by name: equal for models that start alike."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
        raw = weight.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()


def save_model(model: PrismLM, folder: Path) -> None:
    """Write the model to a new folder."""
    weights = {name: weight.detach().cpu() for name, weight in model.state_dict().items()}
    with new_folder(folder) as place:
        write_model(model.config, weights, place)


def write_model(config: ModelConfig, weights: Mapping[str, Tensor], place: Path) -> None:
    """Write config and weights into a folder that is there."""
    write_config(config, place)
    schedule = torch.tensor(config.schedule.heads)
    write_tensors({SCHEDULE: schedule, **weights}, place / WEIGHTS_FILE)


def write_config(config: ModelConfig, place: Path) -> None:
    text = json.dumps(config.model_dump(), indent=2)
    (place / CONFIG_FILE).write_text(text + "\n", "utf-8")


def write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write a safetensors file; a full disk is an OSError, as for any other file."""
    try:
        save_file(dict(tensors), file)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from None


def piece_of(name: str, number: int, of: int) -> str:
    """The file that has one part of several: rows of each tensor, in order."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{number:05d}-of-{of:05d}.{suffix}"


def read_tensors(file: Path) -> dict[str, Tensor]:
    """What a safetensors file holds, whole or in the pieces that several processes wrote."""
    pieces = sorted(file.parent.glob(f"{file.stem}-*-of-*{file.suffix}"))
    if not pieces or file.exists():
        return _read_file(file)
    parts = [_read_file(piece) for piece in pieces]
    names = {name: None for part in parts for name in part}
    return {name: torch.cat([part[name] for part in parts if name in part]) for name in names}


def _read_file(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise InputError(f"{file}: not a sound safetensors file: {error}") from None


def load_model(folder: Path) -> PrismLM:
    """Read a model, in the precision it was saved in."""
    try:
        config = ModelConfig.model_validate(read_json(folder / CONFIG_FILE))
    except ValidationError as error:
        raise InputError(explain(folder / CONFIG_FILE, error.errors()[0])) from None
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
    if (made_for := HeadSchedule(tuple(stored.tolist()))) != schedule:
        raise InputError(
            f"{folder}: the weights belong to schedule {made_for}, the config says {schedule}"
        )
