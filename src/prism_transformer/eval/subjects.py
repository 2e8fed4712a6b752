"""What is evaluated: checkpoints of a run, a Hugging Face folder, or a model on the hub."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prism_transformer.data.shards import file_sha256
from prism_transformer.data.tokenizer import BPE_FILE
from prism_transformer.errors import InputError
from prism_transformer.eval.source import check_source, checkpoint_of
from prism_transformer.hf.export import export_checkpoint
from prism_transformer.hf.folder import check_weights, read_config, read_tokenizer
from prism_transformer.hf.hub import hub_answers
from prism_transformer.train.checkpoint import SUMS_FILE, check_checkpoint
from prism_transformer.train.run import checkpoints, is_run, read_run
from prism_transformer.weights import CONFIG_FILE, WEIGHTS_FILE

MODEL_FILES = ("config.json", "*.safetensors", "*.bin", "tokenizer*", "vocab*", "merges*")


@dataclass(frozen=True)
class Subject:
    """One model to evaluate."""

    name: str
    out: Path
    """where its results go"""
    sums: dict[str, str]
    """what tells this model from any other: a sha256 for each file, or the hub's commit"""
    run: Path | None = None
    checkpoint: Path | None = None


def find_subjects(source: str, checkpoint: str | None, out: Path | None) -> list[Subject]:
    """The models that were named."""
    place = Path(source)
    if is_run(place):
        chosen = _checkpoints(place, checkpoint)
        base = out or place / "eval"
        alone = out is not None and checkpoint != "all"
        return [
            Subject(str(each), base if alone else base / each.name, _sums(place, each), place, each)
            for each in chosen
        ]
    if checkpoint is not None:
        raise InputError(f"{source}: is not a run; --checkpoint is for runs")
    found = _folder_sums(place) if place.is_dir() else _hub_sums(source)
    return [Subject(source, out or Path("eval") / place.resolve().name, found)]


@contextmanager
def as_hf(subject: Subject) -> Iterator[str]:
    """The model as lm_eval opens it: a run is exported to a folder that goes afterwards."""
    if subject.run is None or subject.checkpoint is None:
        check_weights(subject.name)
        yield subject.name
        return
    with tempfile.TemporaryDirectory(prefix="prism-eval-") as folder:
        export_checkpoint(subject.run, subject.checkpoint, Path(folder) / "hf")
        yield str(Path(folder) / "hf")


def _checkpoints(run: Path, wanted: str | None) -> list[Path]:
    """The newest sound checkpoint, the one that was named, or all."""
    if wanted != "all":
        return [checkpoint_of(run, wanted)]
    there = checkpoints(run)
    if not there:
        raise InputError(f"{run}: has no checkpoint yet")
    for each in there:
        check_checkpoint(each)
    return there


def _sums(run: Path, checkpoint: Path) -> dict[str, str]:
    sums = json.loads((checkpoint / SUMS_FILE).read_text("utf-8"))
    tokenizer = run / BPE_FILE
    return {
        CONFIG_FILE: sums[CONFIG_FILE],
        WEIGHTS_FILE: sums[WEIGHTS_FILE],
        "tokenizer": file_sha256(tokenizer) if tokenizer.exists() else read_run(run).data.tokenizer,
    }


def _folder_sums(folder: Path) -> dict[str, str]:
    if not (folder / "config.json").is_file():
        hint = (
            f"`prism export {folder} OUT --tokenizer ...` makes one of it"
            if (folder / CONFIG_FILE).is_file()
            else "`prism train` makes a run, `prism export` a Hugging Face folder"
        )
        raise InputError(f"{folder}: is neither a run nor a Hugging Face folder; {hint}")
    read_config(str(folder))
    read_tokenizer(str(folder), required=True)
    files = {file for pattern in MODEL_FILES for file in folder.glob(pattern)}
    return {file.name: file_sha256(file) for file in sorted(files)}


def _hub_sums(source: str) -> dict[str, str]:
    """A model on the hub, by its commit."""
    check_source(source)
    if not hub_answers():
        raise InputError(
            f"{source}: no such run or Hugging Face folder, and the hub cannot be reached"
        )
    config = read_config(source)
    read_tokenizer(source, required=True)
    return {"commit": str(getattr(config, "_commit_hash", None))}
