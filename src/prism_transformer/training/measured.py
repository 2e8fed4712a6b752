"""Which model a measurement is of. Nothing here needs torch: results are read without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prism_transformer.core.disk import read_whole, reading
from prism_transformer.core.errors import InputError
from prism_transformer.core.sealed import read_sealed
from prism_transformer.models import CONFIG_FILE, WEIGHTS_FILE
from prism_transformer.training.run import CHECKPOINTS, SUMS_FILE


def own_sums(folder: Path) -> dict[str, str]:
    """The sums of a checkpoint's model, which tell it from any other model."""
    with reading(folder / SUMS_FILE):
        sums = json.loads(read_whole(folder / SUMS_FILE))
        return {name: sums[name] for name in (CONFIG_FILE, WEIGHTS_FILE)}


def read_measured(file: Path) -> dict[str, Any]:
    """What was measured of a checkpoint: ``RUN/WHAT/step-N/FILE``, refused if of another model.

    Such a file is sound by itself where it was copied from another run. Older ones do not say of
    which model they are, and are read as they are, as are those of a checkpoint that is gone.
    """
    facts = read_sealed(file)
    measured: dict[str, str] = facts.get("model") or facts.get("settings", {}).get("model", {})
    checkpoint = file.parents[2] / CHECKPOINTS / file.parent.name
    if CONFIG_FILE in measured and (checkpoint / SUMS_FILE).is_file():
        own = own_sums(checkpoint)
        if any(measured[name] != own[name] for name in own.keys() & measured.keys()):
            raise InputError(
                f"{file}: was measured of another model than {checkpoint} holds; put back its own, "
                "or remove it and measure again"
            )
    return facts
