"""Checkpoints: folders that are whole or not there, and that know when they are damaged.

model.json, model.safetensors   the model, as ``models/weights.py`` has it
optimizer.safetensors           both AdamW moments of every weight, by its name
                                (or each in pieces, model-00000-of-00008.safetensors, of sharded
                                runs on their way; the last checkpoint of a run is whole)
state.json                      how far the run is
recipe.toml                     what run it is
sha256.json                     a sum for each of the files above
"""

from __future__ import annotations

import json
import operator
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from prism_transformer.core.disk import file_sha256, new_folder, read_whole, reading
from prism_transformer.core.errors import InputError
from prism_transformer.models.weights import write_model, write_tensors
from prism_transformer.recipe import Recipe
from prism_transformer.recipes.files import recipe_toml
from prism_transformer.training.run import (
    CHECKPOINTS,
    RECIPE_FILE,
    STATE_FILE,
    SUMS_FILE,
    Covered,
    checkpoint_folder,
    checkpoints,
    is_run,
)

OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass(frozen=True)
class State:
    """How far a run is; the learning rate and the data follow from it.

    Nothing random is in it: training draws no random number after the initial weights.
    """

    step: int
    """updates done"""
    tokens: int
    """tokens seen"""
    metrics_bytes: int
    """length of metrics.jsonl at this point"""
    metrics_sha256: str | None = None
    """of those bytes; older checkpoints have none"""

    @property
    def covered(self) -> Covered:
        """What it remembers of metrics.jsonl."""
        return Covered(self.step, self.metrics_bytes, self.metrics_sha256)


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
        write_facts(place, recipe, state)
        write_sums(place, sums_of(place.iterdir()))


def write_facts(place: Path, recipe: Recipe, state: State) -> None:
    """How far the run is, and what run it is."""
    (place / STATE_FILE).write_text(json.dumps(asdict(state), indent=2) + "\n", "utf-8")
    (place / RECIPE_FILE).write_text(recipe_toml(recipe), "utf-8")


def sums_of(files: Iterable[Path]) -> dict[str, str]:
    """A sum for each file, by its name."""
    return {file.name: file_sha256(file) for file in sorted(files)}


def write_sums(place: Path, sums: Mapping[str, str]) -> None:
    """What ``check_checkpoint`` will hold the files against."""
    # No blanks: every byte of this file means something, so that none can be damaged unseen.
    text = json.dumps(dict(sorted(sums.items())), separators=(",", ":"))
    (place / SUMS_FILE).write_text(text, "utf-8")


def check_checkpoint(folder: Path) -> None:
    """Refuse a checkpoint in which any byte is not as it was written."""
    # A missing file, a further one and a changed one are all the same thing: not what was written.
    try:
        sums = dict(json.loads(read_whole(folder / SUMS_FILE)))
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
    with reading(folder / STATE_FILE):
        state = State(**json.loads(read_whole(folder / STATE_FILE)))
        for number in (state.step, state.tokens, state.metrics_bytes):
            operator.index(number)  # JSON has other types, which would fail far from here
        return state


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


def newest_model(folder: Path) -> Path:
    """The newest checkpoint of a run, never an older one instead; another folder is a model."""
    if not is_run(folder):
        return folder
    checkpoint, problems = newest_sound(folder)
    why = "; ".join(problems.values()) or "none yet"
    if checkpoint is None:
        raise InputError(f"{folder}: has no sound checkpoint: {why}")
    if problems:
        raise InputError(
            f"{why}; `prism resume {folder}` sets that aside and trains on from the one before, "
            f"or name it: {checkpoint}"
        )
    return checkpoint


def set_aside_damaged(run: Path) -> list[str]:
    """Rename damaged checkpoints that are newer than the newest sound one; what is wrong."""
    _, problems = newest_sound(run)
    for folder in problems:
        # Kept for a look, but no longer named like a checkpoint: the run writes that step anew.
        aside = folder.with_name(f"damaged-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    return [f"{problem}; set aside" for problem in problems.values()]


def prune(run: Path, keep: int, milestones: Sequence[int] = ()) -> None:
    """Remove all but the newest checkpoints and those of these steps."""
    stay = {checkpoint_folder(run, step) for step in milestones}
    for folder in checkpoints(run)[:-keep]:
        if folder not in stay:
            shutil.rmtree(folder)


def sweep(run: Path) -> None:
    """Remove what an interrupted save left behind."""
    for folder in (run / CHECKPOINTS).glob(".*.partial-*"):
        shutil.rmtree(folder, ignore_errors=True)
