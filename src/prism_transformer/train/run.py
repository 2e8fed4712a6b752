"""The folder of a run.

recipe.toml         resolved, and runnable again
environment.json    on what and from what it was trained
metrics.jsonl       a line for each step, validation and look at attention
tokenizer.json      a BPE trained for this corpus, where it has one
checkpoints/        see ``checkpoint.py``

Nothing here needs torch: reports read runs without it.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from prism_transformer.data.tokenizer import BPE_FILE
from prism_transformer.errors import InputError
from prism_transformer.folders import new_folder, write_whole
from prism_transformer.recipe import Recipe
from prism_transformer.recipe_file import load_recipe, recipe_toml

RECIPE_FILE = "recipe.toml"
ENVIRONMENT_FILE = "environment.json"
METRICS_FILE = "metrics.jsonl"
CHECKPOINTS = "checkpoints"

# What every environment has, at the least.
ENVIRONMENT = {"recipe", "hashes", "hardware", "software", "sessions"}

Row = dict[str, Any]


def create_run(folder: Path, recipe: Recipe, environment: Row) -> None:
    """Make the folder of a new run."""
    with new_folder(folder) as place:
        (place / RECIPE_FILE).write_text(recipe_toml(recipe), "utf-8")
        (place / METRICS_FILE).touch()
        tokenizer = Path(recipe.data.folder) / BPE_FILE
        if recipe.data.tokenizer.startswith("bpe") and tokenizer.exists():
            shutil.copyfile(tokenizer, place / BPE_FILE)
        _write_environment(place, environment)


def read_run(folder: Path) -> Recipe:
    """The recipe of a run."""
    if not is_run(folder):
        raise InputError(f"{folder}: is not a run; `prism train` makes one")
    return load_recipe(folder / RECIPE_FILE)


def read_environment(folder: Path) -> Row:
    """What ``create_run`` wrote down."""
    file = folder / ENVIRONMENT_FILE
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from None
    if not isinstance(found, dict) or not found.keys() >= ENVIRONMENT:
        raise InputError(f"{file}: does not have all of {', '.join(sorted(ENVIRONMENT))}")
    return found


def note_session(folder: Path, session: Row) -> None:
    """Add to the environment that the run goes on here and now."""
    environment = read_environment(folder)
    environment["sessions"].append(session)
    _write_environment(folder, environment)


def read_metrics(folder: Path, n_bytes: int | None = None) -> list[Row]:
    """The rows of a run's metrics: all, or those of a checkpoint, which knows their length."""
    content = (folder / METRICS_FILE).read_bytes()[:n_bytes]
    content = content[: content.rfind(b"\n") + 1]  # the last line may be half written
    try:
        return [json.loads(line) for line in content.splitlines()]
    except ValueError as error:
        raise InputError(f"{folder / METRICS_FILE}: has a line that is no JSON: {error}") from None


def _write_environment(folder: Path, environment: Row) -> None:
    write_whole(folder / ENVIRONMENT_FILE, json.dumps(environment, indent=2) + "\n")


class Metrics:
    """metrics.jsonl, open for writing."""

    def __init__(self, folder: Path, n_bytes: int) -> None:
        """Go on after the first ``n_bytes``; what comes later was not part of a checkpoint."""
        file = folder / METRICS_FILE
        if file.stat().st_size < n_bytes:
            raise InputError(f"{file}: is shorter than its checkpoint remembers; it was changed")
        os.truncate(file, n_bytes)
        self.file = file
        self.stream = file.open("ab", buffering=0)

    def write(self, row: Row) -> None:
        """Append a line."""
        line = json.dumps(row).encode() + b"\n"
        try:
            while line:
                line = line[self.stream.write(line) :]
        except OSError as error:
            raise InputError(
                f"{self.file}: cannot be written: {error.strerror}; go on with "
                f"`prism resume {self.file.parent}` once it can"
            ) from None

    def sync(self) -> int:
        """Bring every line to the disk; the length of the file."""
        try:
            os.fsync(self.stream.fileno())
        except OSError as error:
            raise InputError(f"{self.file}: cannot be written: {error.strerror}") from None
        return self.stream.tell()


def is_run(folder: Path) -> bool:
    """Whether a folder is one that ``create_run`` made."""
    return (folder / RECIPE_FILE).is_file() and (folder / METRICS_FILE).is_file()


def checkpoint_folder(run: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def checkpoints(run: Path) -> list[Path]:
    """All checkpoints of a run, oldest first."""
    return sorted((run / CHECKPOINTS).glob("step-*"))
