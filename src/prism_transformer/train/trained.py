"""The model of a run."""

from __future__ import annotations

from pathlib import Path

from prism_transformer.data.tokenizer import Tokenizer, open_tokenizer
from prism_transformer.errors import InputError
from prism_transformer.model import PrismLM
from prism_transformer.train.checkpoint import newest_sound
from prism_transformer.train.run import is_run, read_run
from prism_transformer.weights import load_model


def newest_model(folder: Path) -> Path:
    """The newest sound checkpoint of a run; any other folder is taken for a model itself."""
    if not is_run(folder):
        return folder
    checkpoint, problems = newest_sound(folder)
    if checkpoint is None:
        raise InputError(
            f"{folder}: has no sound checkpoint: {'; '.join(problems.values()) or 'none yet'}"
        )
    return checkpoint


def open_trained(folder: Path) -> tuple[PrismLM, Tokenizer]:
    """The model of a run as it is now, and its tokenizer."""
    recipe = read_run(folder)
    model = load_model(newest_model(folder))
    return model.eval(), open_tokenizer(recipe.data.tokenizer, folder)
