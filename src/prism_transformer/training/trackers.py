"""Metrics sent elsewhere: TensorBoard, wandb, trackio. None is needed, and none can stop a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from prism_transformer.core.errors import first_line
from prism_transformer.recipe import Recipe, Tracker

Send = Callable[[int, dict[str, float]], None]


class Trackers:
    """All trackers of a recipe; one that fails is dropped with a line that says why."""

    def __init__(self, names: Sequence[Tracker], run: Path, recipe: Recipe, identity: str) -> None:
        self.problems: list[str] = []
        self.sends: dict[str, Send] = {}
        for name in names:
            try:
                self.sends[name] = OPEN[name](run, recipe, identity)
            except Exception as error:  # whatever goes wrong in software of others
                self._drop(name, error)

    def send(self, step: int, kind: str, row: dict[str, Any]) -> None:
        """Pass on every number of a row."""
        values = {
            f"{kind}/{key}": float(value)
            for key, value in row.items()
            if isinstance(value, int | float) and key != "step"
        }
        for name, send in list(self.sends.items()):
            try:
                send(step, values)
            except Exception as error:
                self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        self.sends.pop(name, None)
        self.problems.append(f"{name}: {first_line(error)}; the run goes on without it")


def _tensorboard(run: Path, _recipe: Recipe, _identity: str) -> Send:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(run / "tensorboard"))

    def send(step: int, values: dict[str, float]) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    return send


def _wandb(run: Path, recipe: Recipe, identity: str) -> Send:
    entity = {"entity": recipe.run.entity} if recipe.run.entity else {}
    return _session("wandb", run, recipe, id=identity, dir=run, resume="allow", **entity)


def _trackio(run: Path, recipe: Recipe, _identity: str) -> Send:
    return _session("trackio", run, recipe)


def _session(library: str, run: Path, recipe: Recipe, **options: Any) -> Send:
    """Of wandb, or of trackio, which has its interface."""
    group = {"group": recipe.run.group} if recipe.run.group else {}
    session = import_module(library).init(
        project=recipe.run.project, name=run.name, config=recipe.model_dump(), **group, **options
    )
    return lambda step, values: session.log({**values, "step": step})


OPEN: dict[Tracker, Callable[[Path, Recipe, str], Send]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
}
