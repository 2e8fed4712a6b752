"""A run whose folder was removed or replaced while it was being trained is saved beside."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

from prism_transformer.core.disk import new_folder, partial_of
from prism_transformer.recipe import Recipe
from prism_transformer.training.run import METRICS_FILE, Row, create_run
from prism_transformer.training.saving import SHARED

Save = Callable[[Path], None]


def save_beside(folder: Path, recipe: Recipe, facts: Row, lines: bytes | None, save: Save) -> str:
    """Write a whole run next to where it was; a sentence that says where.

    ``lines`` are those of its metrics, None in processes that only write their part of the
    checkpoint; ``save`` writes that into a run folder, in all of them.
    """
    names = (f"{folder.name}-saved" + (f"-{n}" if n > 1 else "") for n in count(1))
    # All processes find the same name: it is taken when every part has been written.
    place = next(each for name in names if not (each := folder.with_name(name)).exists())
    if lines is None:
        save(partial_of(place, SHARED))
    else:
        with new_folder(place, SHARED) as partial:
            create_run(partial, recipe, facts)
            (partial / METRICS_FILE).write_bytes(lines)
            save(partial)
    return (
        f"{folder}: was removed or replaced while it was being trained; all of the run is in "
        f"{place} now: go on with `prism resume {place}`"
    )
