"""Any Prism model as weights to train on from: of a run, a native folder, or Hugging Face."""

from __future__ import annotations

from pathlib import Path

from prism_transformer.core.errors import InputError
from prism_transformer.hf.importing import to_native
from prism_transformer.hf.load import Source, named_model, read_config, read_model
from prism_transformer.hf.modeling_masked import model_class
from prism_transformer.models.weights import CONFIG_FILE, load_model
from prism_transformer.training.checkpoint import SUMS_FILE, check_checkpoint
from prism_transformer.training.run import is_run
from prism_transformer.training.start import Start


def pretrained(source: Source) -> Start:
    """Read a model for ``train`` to begin from, its ``start``.

    ``source`` is a run (its newest checkpoint), a native model folder, or a Prism model of
    Hugging Face by folder or hub name.
    """
    named = named_model(source)
    if named.checkpoint is not None:
        return Start(str(named), load_model(named.checkpoint), named.run)
    folder = Path(named.source)
    if (folder / CONFIG_FILE).is_file():
        if (folder / SUMS_FILE).is_file():  # one checkpoint of a run, by its own folder
            check_checkpoint(folder)
        run = next(filter(is_run, folder.absolute().parents[:2]), None)
        return Start(named.source, load_model(folder), run)
    config = read_config(named.source)
    kind = config.model_type
    if kind != "prism":
        way = (
            f"; `prism import {named.source} OUT --schedule ...` makes one of it, also with the "
            "heads that it has"
        )
        raise InputError(
            f"{named.source}: is a {kind} model, not Prism{way if kind == 'llama' else ''}"
        )
    model = read_model(model_class(config), named.source)
    try:
        return Start(str(named), to_native(model))
    except InputError as error:
        raise InputError(f"{named.source}: {error}") from None
