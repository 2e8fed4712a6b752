"""A run goes on under another schedule: the verb ``reslice``.

What it makes is a run like any other, with the steps of its source behind it: weights and optimizer
as they were, metrics up to there, the same data ahead. ``resume`` does the rest.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_args
from uuid import uuid4

from torch import Tensor

from prism_transformer.core.disk import check_new, file_sha256, new_folder, reading, write_whole
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Note, Tell, counted, silent
from prism_transformer.core.table import Column, Table, words
from prism_transformer.core.table import Row as Cells
from prism_transformer.model import PrismLM
from prism_transformer.models.reslice import matched
from prism_transformer.models.weights import SCHEDULE, WEIGHTS_FILE, read_tensors
from prism_transformer.recipe import Map, ModelConfig, Recipe
from prism_transformer.recipes.files import changed
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.paper import resolve
from prism_transformer.training.checkpoint import (
    OPTIMIZER_FILE,
    State,
    check_checkpoint,
    newest_model,
    read_state,
    save_checkpoint,
)
from prism_transformer.training.device import Settings, attention_backends, begin, settle
from prism_transformer.training.distributed import World
from prism_transformer.training.job import open_data
from prism_transformer.training.loop import validation_loss
from prism_transformer.training.objective import objective_of
from prism_transformer.training.run import (
    METRICS_FILE,
    SUMS_FILE,
    Row,
    Run,
    checkpoint_folder,
    checkpoints,
    create_run,
    read_environment,
)

RESLICE = "reslice"  # the kind of row that a change of schedule leaves in metrics.jsonl
MOMENT_POWERS = {"exp_avg": -1.0, "exp_avg_sq": -2.0}  # gradients go with one over the weight

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Resliced:
    """A run under another schedule, and what the change did to its validation loss."""

    run: Run
    source: Path
    step: int
    before: HeadSchedule
    how: Map
    loss_before: float
    losses: dict[str, float]
    """right after the change, by map; the run goes on with ``how``"""

    @property
    def table(self) -> Table:
        """A row for each way to come under the new schedule."""
        ways = {"before": self.loss_before} | self.losses
        schedules = {"before": str(self.before)}
        rows: tuple[Cells, ...] = tuple(
            {
                "schedule": schedules.get(way, str(self.run.recipe.model.schedule)),
                "map": way,
                "loss": loss,
                "change": loss - self.loss_before,
            }
            for way, loss in ways.items()
        )
        nats = (Column("loss", "nats", 4), Column("change", "nats", 4, sign=True))
        return Table(RESLICE, (*words("schedule", "map"), *nats), rows)


def reslice(
    run: Run | Path | str,
    schedule: HeadSchedule | str,
    folder: Path | str,
    *,
    step: int | None = None,
    how: Map = "matched",
    recipe: Recipe | None = None,
    device: str = "auto",
    tell: Tell = silent,
) -> Resliced:
    """Make a new run that goes on from a checkpoint of another, under another schedule.

    ``step`` is that of the checkpoint, the newest one when left out. ``matched`` moves
    weights for the least change of function; ``reshape`` leaves every one as it is. Both losses
    right after the change are measured. ``recipe`` may say otherwise how the new run is watched and
    saved; a source that sampled schedules goes on with this one alone.
    """
    source, place = Run.open(run), Path(folder)
    if how not in get_args(Map):
        raise InputError(f"map {how!r}: write {' or '.join(get_args(Map))}")
    target = resolve(schedule) if isinstance(schedule, str) else schedule
    after = _recipe(source, target, recipe)
    check_new(place)
    checkpoint = _checkpoint(source, step)
    state = read_state(checkpoint)
    if state.step >= source.recipe.n_steps:
        raise InputError(
            f"{checkpoint}: is the last of its run, nothing is left to train; name an earlier step "
            f"with --at: {_steps(source)}"
        )
    settings = begin(settle(after, device))
    made = _ways(checkpoint, source.recipe.model, target, how)
    losses = _losses(source, target, {way: each[0] for way, each in made.items()}, settings, tell)
    found = Resliced(
        Run(place, after), source.folder, state.step, source.recipe.model.schedule, how,
        losses.pop("before"), losses,
    )  # fmt: skip
    _write(found, checkpoint, state, *made[how], settings)
    tell(Note(f"{place}: goes on at step {state.step:,} with `prism resume {place}`"))
    return found


def _recipe(source: Run, target: HeadSchedule, wanted: Recipe | None) -> Recipe:
    changes = {"model.schedule": str(target), "train.schedule_sampling": ""}
    after = changed(source.recipe, changes, f"{source.folder} under {target}")
    target.expect_layers(source.recipe.model.n_layers)
    if after == source.recipe:
        raise InputError(f"{source.folder}: has schedule {target} already")
    if wanted is None:
        return after
    if wanted.model_copy(update={"run": after.run, "data": after.data}) != after:
        raise InputError(f"{source.folder}: the recipe differs from its own in more than schedule")
    return wanted


def _steps(source: Run) -> str:
    """Steps that a run has checkpoints of, as a reader hears of them."""
    found = [str(int(each.name.removeprefix("step-"))) for each in checkpoints(source.folder)]
    return (
        f"it has checkpoints of {', '.join(found) or 'none'}; run.milestones keeps others, as in "
        "prism train RECIPE run.milestones=[100]"
    )


def _checkpoint(source: Run, step: int | None) -> Path:
    if step is None:
        return newest_model(source.folder)
    checkpoint = checkpoint_folder(source.folder, step)
    if not checkpoint.is_dir():
        raise InputError(f"{source.folder}: has no checkpoint of step {step}; {_steps(source)}")
    check_checkpoint(checkpoint)
    return checkpoint


def _ways(
    checkpoint: Path, before: ModelConfig, target: HeadSchedule, how: Map
) -> dict[str, tuple[Tensors, Tensors]]:
    """Weights and moments of a checkpoint for another schedule, by map."""
    weights = read_tensors(checkpoint / WEIGHTS_FILE)
    weights.pop(SCHEDULE, None)
    moments = read_tensors(checkpoint / OPTIMIZER_FILE)
    found = {"reshape": (weights, moments)}
    if before.rope_frequencies == "split" and how == "reshape":
        return found  # there is no other
    moved: Tensors = {}
    for kind, power in MOMENT_POWERS.items():
        own = {name: moments[f"{kind}.{name}"] for name in weights}
        own = matched(own, before, target, power)
        moved |= {f"{kind}.{name}": tensor for name, tensor in own.items()}
    return found | {"matched": (matched(weights, before, target), moved)}


def _losses(
    source: Run, target: HeadSchedule, made: dict[str, Tensors], settings: Settings, tell: Tell
) -> dict[str, float]:
    """Validation loss before the change and right after it, each way."""
    config, recipe = source.recipe.model, source.recipe
    after = config.model_copy(update={"schedule": target})
    ways = {"before": (config, made["reshape"])}
    ways |= {way: (after, tensors) for way, tensors in made.items()}
    _, val = open_data(recipe)
    n_windows, size = recipe.data.val_tokens // config.seq_len, recipe.train.micro_batch
    world, objective, found = World(0, 1, settings.device, None), objective_of(recipe), {}
    for way, (own, tensors) in counted(tell, "losses", ways.items(), len(ways)):
        model = PrismLM(own).to(settings.dtype)
        model.load_state_dict(tensors)
        model.to(settings.device)
        found[way] = validation_loss(model, val, n_windows, size, world, settings, objective)
    return found


def _write(
    found: Resliced,
    checkpoint: Path,
    state: State,
    weights: Tensors,
    moments: Tensors,
    settings: Settings,
) -> None:
    """The folder of the new run, whole or not at all."""
    recipe, file = found.run.recipe, found.source / METRICS_FILE
    row: Row = {
        "step": state.step, "kind": RESLICE, "from": str(found.before), "map": found.how,
        "loss_before": found.loss_before, **{f"loss_{k}": v for k, v in found.losses.items()},
    }  # fmt: skip
    with reading(file):
        content = file.read_bytes()
    state.covered.check(file, content)
    lines = content[: state.metrics_bytes] + json.dumps(row).encode() + b"\n"
    saved = State(state.step, state.tokens, len(lines), hashlib.sha256(lines).hexdigest())
    with new_folder(found.run.folder) as place:
        create_run(place, recipe, _environment(found, checkpoint, settings))
        write_whole(place / METRICS_FILE, lines)
        save_checkpoint(checkpoint_folder(place, state.step), recipe, saved, weights, moments)


def _environment(found: Resliced, checkpoint: Path, settings: Settings) -> Row:
    """That of the source, whose steps and data are the run's own, and where it left it."""
    return read_environment(found.source) | {
        "recipe": found.run.recipe.model_dump(),
        "identity": uuid4().hex,
        "attention_backends": attention_backends(found.run.recipe.model, settings),
        "start": {
            "source": str(checkpoint),
            "sha256": file_sha256(checkpoint / SUMS_FILE),  # which has a sum of every other file
            "schedule": str(found.before),
            "map": found.how,
        },
    }
