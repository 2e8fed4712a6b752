"""Runs in folders: which there are, how far each is, what it reached.

From recipes and metrics alone: a run that is under way counts up to its last step, saved or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from prism_transformer.core.errors import InputError
from prism_transformer.core.table import Column, Row, Table, words
from prism_transformer.models.cost import parameters, size_text
from prism_transformer.training.run import RECIPE_FILE, Run, is_run, reached

USUAL = (Path("runs"), Path("studies"))  # where commands put runs


def find_runs(places: Sequence[Path] | None = None) -> list[Run]:
    """Every run in some folders, to any depth, in the order of their names."""
    for place in places or ():
        if not place.is_dir():
            raise InputError(f"{place}: there is no such folder")
    found = (file.parent for place in places or USUAL for file in place.rglob(RECIPE_FILE))
    return [Run.open(folder) for folder in sorted(set(filter(is_run, found)))]


def list_runs(runs: Iterable[Run]) -> Table:
    """A row for each: heads per layer, size, how far it is, and its newest validation loss."""
    rows: list[Row] = []
    for run in runs:
        step, loss = reached(run.folder)
        rows.append(
            {
                "run": str(run.folder),
                "heads": str(run.recipe.model.schedule),
                "parameters": size_text(parameters(run.recipe.model).total),
                "seed": run.recipe.train.seed,
                "step": step,
                "of": run.recipe.n_steps,
                "loss": loss,
                "state": "complete" if run.complete else "not complete",
            }
        )
    numbers = (Column("seed"), Column("step"), Column("of"))
    loss_column = Column("loss", name="loss", unit="nats", places=4)
    size = Column("parameters", name="size", numeric=False)
    columns = (*words("run", "heads"), size, *numbers, loss_column, *words("state"))
    return Table("runs", columns, tuple(rows))
