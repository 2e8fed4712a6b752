"""Checkpoints: folders that are whole or not there, and that know when they are damaged.

model.json, model.safetensors   the model, as ``weights.py`` has it
optimizer.safetensors           both AdamW moments of every weight, by its name
state.json                      how far the run is
recipe.toml                     what run it is
sha256.json                     a sum for each of the files above
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from prism_transformer.data.shards import file_sha256
from prism_transformer.errors import InputError
from prism_transformer.folders import new_folder
from prism_transformer.recipe import Recipe
from prism_transformer.recipe_file import recipe_toml
from prism_transformer.train.run import CHECKPOINTS, RECIPE_FILE, checkpoints
from prism_transformer.weights import write_model, write_tensors

OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
SUMS_FILE = "sha256.json"


@dataclass(frozen=True)
class State:
    """How far a run is; the learning rate and the data follow from it."""

    step: int
    """updates done"""
    tokens: int
    """tokens seen"""
    metrics_bytes: int
    """length of metrics.jsonl at this point"""


def save_checkpoint(
    folder: Path,
    recipe: Recipe,
    state: State,
    weights: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
    extra: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> None:
    """Write a checkpoint, whole or not at all; ``extra`` are more files of tensors, by name."""
    with new_folder(folder) as place:
        write_model(recipe.model, weights, place)
        write_tensors(moments, place / OPTIMIZER_FILE)
        for name, tensors in (extra or {}).items():
            write_tensors(tensors, place / name)
        (place / STATE_FILE).write_text(json.dumps(asdict(state), indent=2) + "\n", "utf-8")
        (place / RECIPE_FILE).write_text(recipe_toml(recipe), "utf-8")
        sums = {file.name: file_sha256(file) for file in sorted(place.iterdir())}
        # No blanks: every byte of this file means something, so that none can be damaged unseen.
        (place / SUMS_FILE).write_text(json.dumps(sums, separators=(",", ":")), "utf-8")


def check_checkpoint(folder: Path) -> None:
    """Refuse a checkpoint in which any byte is not as it was written."""
    try:
        sums = dict(json.loads((folder / SUMS_FILE).read_text("utf-8")))
        found = {file.name for file in folder.iterdir()} - {SUMS_FILE}
        broken = [name for name in found & sums.keys() if file_sha256(folder / name) != sums[name]]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{folder}: cannot be read: {error}") from None
    if found != sums.keys():
        odd = ", ".join(sorted(found ^ sums.keys()))
        raise InputError(f"{folder}: does not have the files it was written with: {odd}")
    if broken:
        raise InputError(f"{folder / broken[0]}: is damaged: sha256 differs")


def read_state(folder: Path) -> State:
    """How far a sound checkpoint is."""
    return State(**json.loads((folder / STATE_FILE).read_text("utf-8")))


def newest_sound(run: Path) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint that is as it was written, and what is wrong with each newer one."""
    problems = {}
    for folder in reversed(checkpoints(run)):
        try:
            check_checkpoint(folder)
        except InputError as error:
            problems[folder] = str(error)
        else:
            return folder, problems
    return None, problems


def set_aside_damaged(run: Path) -> list[str]:
    """Rename damaged checkpoints that are newer than the newest sound one; what is wrong."""
    _, problems = newest_sound(run)
    for folder in problems:
        aside = folder.with_name(f"damaged-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    return [f"{problem}; set aside" for problem in problems.values()]


def prune(run: Path, keep: int) -> None:
    """Remove all but the newest checkpoints."""
    for folder in checkpoints(run)[:-keep]:
        shutil.rmtree(folder)


def sweep(run: Path) -> None:
    """Remove what an interrupted save left behind."""
    for folder in (run / CHECKPOINTS).glob(".*.partial-*"):
        shutil.rmtree(folder, ignore_errors=True)
