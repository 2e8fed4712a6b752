"""A run in hand: everything the loop works on, new or taken up where it was left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from prism_transformer.data.loader import Windows, open_windows
from prism_transformer.data.manifest import read_manifest
from prism_transformer.errors import InputError
from prism_transformer.folders import locked
from prism_transformer.model import PrismLM
from prism_transformer.recipe import Recipe, differences
from prism_transformer.train.checkpoint import (
    OPTIMIZER_FILE,
    State,
    check_checkpoint,
    newest_sound,
    prune,
    read_state,
    save_checkpoint,
    set_aside_damaged,
    sweep,
)
from prism_transformer.train.device import Settings, compile_layers
from prism_transformer.train.distributed import World, distribute, part_of, reshard, whole
from prism_transformer.train.environment import changes, data_hashes, environment, session
from prism_transformer.train.optim import make_optimizer
from prism_transformer.train.run import (
    Metrics,
    Row,
    checkpoint_folder,
    create_run,
    note_session,
    read_environment,
)
from prism_transformer.train.stopping import StopRequest
from prism_transformer.train.trackers import Trackers
from prism_transformer.weights import SCHEDULE, WEIGHTS_FILE, check_schedule, read_tensors

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class Job:
    """A run and how far it is."""

    folder: Path
    recipe: Recipe
    settings: Settings
    world: World
    train: Windows
    val: Windows
    model: PrismLM
    wrapped: nn.Module
    """the model as training calls it"""
    optimizer: torch.optim.AdamW
    step: int = 0
    """updates done"""
    metrics: Metrics | None = None
    """in the first process"""
    trackers: Trackers | None = None
    stop: StopRequest = field(default_factory=StopRequest)
    stopping: bool = False
    """some process was asked to stop"""

    @property
    def how(self) -> str:
        """How to go on later."""
        return f"go on with `prism resume {self.folder}`"

    @property
    def sequences(self) -> int:
        """Windows in one step over all processes."""
        return self.recipe.train.batch_tokens // self.recipe.model.seq_len

    @property
    def passes(self) -> int:
        """Passes of this process in one step."""
        passes = self.recipe.accumulation(self.world.size)
        assert passes is not None
        return passes

    def log(self, kind: str, row: Row) -> Row:
        """Write a row of metrics, in the first process, and return it."""
        row = {"step": self.step, "kind": kind, **row}
        if self.metrics is not None:
            self.metrics.write(row)
        if self.trackers is not None:
            self.trackers.send(self.step, kind, row)
        return row

    def save(self) -> None:
        """Write a checkpoint; older ones go only when it has been read back."""
        weights, moments = full_state(self.model, self.optimizer, keep=self.world.is_first)
        if self.world.is_first:
            assert self.metrics is not None
            tokens = self.step * self.recipe.train.batch_tokens
            folder = checkpoint_folder(self.folder, self.step)
            try:
                state = State(self.step, tokens, self.metrics.sync())
                save_checkpoint(folder, self.recipe, state, weights, moments)
                check_checkpoint(folder)
            except InputError as error:
                raise InputError(f"{error}; what was saved before is intact: {self.how}") from None
            prune(self.folder, self.recipe.run.keep_checkpoints)
        self.world.wait()


def open_data(recipe: Recipe) -> tuple[Windows, Windows]:
    """Training and validation windows, checked against the recipe."""
    folder, data, config = Path(recipe.data.folder), recipe.data, recipe.model
    if not folder.is_dir():
        raise InputError(f"{folder}: no shards there; `prism prepare --recipe ...` makes them")
    manifest = read_manifest(folder)
    if manifest is not None and manifest.tokenizer != data.tokenizer:
        raise InputError(
            f"{folder}: its shards were made with tokenizer {manifest.tokenizer}, the recipe says "
            f"{data.tokenizer}"
        )
    train = open_windows(folder, "train", config.seq_len, config.vocab_size)
    val = open_windows(folder, "val", config.seq_len, config.vocab_size)
    if len(val) * config.seq_len < data.val_tokens:
        raise InputError(
            f"{folder}: its validation slice has {len(val) * config.seq_len} tokens, the recipe "
            f"scores {data.val_tokens}"
        )
    return train, val


@contextmanager
def new_job(folder: Path, recipe: Recipe, settings: Settings, world: World) -> Iterator[Job]:
    """Begin a run in a folder that is not there yet."""
    train, val = open_data(recipe)
    model = _model(recipe, settings, world)
    if world.is_first:
        create_run(folder, recipe, environment(recipe, model, train, val, settings))
    world.wait()
    with locked(folder) if world.is_first else nullcontext():
        job = _assemble(folder, recipe, settings, world, train, val, model)
        _take_up(job, 0, 0)
        yield job


@contextmanager
def resumed_job(
    folder: Path, recipe: Recipe, settings: Settings, world: World, notes: list[str]
) -> Iterator[Job]:
    """Go on with a run from its newest sound checkpoint; ``notes`` gets what is worth saying."""
    with locked(folder) if world.is_first else nullcontext():
        _check_recipe(folder, recipe)
        train, val = open_data(recipe)
        _check_shards(folder, data_hashes(train, val, recipe.train.seed))
        checkpoint = _checkpoint(folder, world, notes)
        job = _assemble(
            folder, recipe, settings, world, train, val, _model(recipe, settings, world)
        )
        state = State(0, 0, 0) if checkpoint is None else read_state(checkpoint)
        if checkpoint is not None:
            load_state(job.model, job.optimizer, checkpoint, state.step)
        _take_up(job, state.step, state.metrics_bytes)
        sessions = read_environment(folder)["sessions"][-2:]
        notes += changes(*sessions) if len(sessions) == 2 else []
        yield job


def _model(recipe: Recipe, settings: Settings, world: World) -> PrismLM:
    passes = recipe.accumulation(world.size)
    if passes is None:
        raise InputError(
            f"train.batch_tokens = {recipe.train.batch_tokens} does not split over {world.size} "
            f"processes of train.micro_batch = {recipe.train.micro_batch} sequences; lower that"
        )
    try:
        model = PrismLM(recipe.model, recipe.train.seed).to(settings.dtype)
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        raise InputError(f"the model does not fit into memory: {error}") from None
    model.activation_checkpointing = recipe.train.activation_checkpointing
    return model


def _assemble(
    folder: Path,
    recipe: Recipe,
    settings: Settings,
    world: World,
    train: Windows,
    val: Windows,
    model: PrismLM,
) -> Job:
    if settings.compiled:
        compile_layers(model)
    if world.size == 1 or recipe.train.distribution == "ddp":
        model.to(world.device)  # fully_shard moves its parts by itself
    wrapped = distribute(model, world, recipe.train.distribution)
    optimizer = make_optimizer(model, recipe.optim)
    return Job(folder, recipe, settings, world, train, val, model, wrapped, optimizer)


def _take_up(job: Job, step: int, metrics_bytes: int) -> None:
    job.step = step
    if job.world.is_first:
        job.metrics = Metrics(job.folder, metrics_bytes)
        identity = read_environment(job.folder)["identity"]
        job.trackers = Trackers(job.recipe.run.trackers, job.folder, job.recipe, identity)
        note_session(job.folder, session(step, job.world.size, job.settings))


def _checkpoint(folder: Path, world: World, notes: list[str]) -> Path | None:
    """The newest sound checkpoint; every process finds the same."""
    if world.is_first:
        sweep(folder)
        notes += set_aside_damaged(folder)
    world.wait()
    checkpoint, _ = newest_sound(folder)
    if checkpoint is None:
        notes.append("no sound checkpoint: begins again at step 0")
        return None
    notes.append(f"goes on from {checkpoint}")
    return checkpoint


def _check_recipe(folder: Path, recipe: Recipe) -> None:
    changed = differences(Recipe.model_validate(read_environment(folder)["recipe"]), recipe)
    if changed:
        raise InputError(f"{folder}: its recipe was changed since: " + "; ".join(changed))


def _check_shards(folder: Path, now: Row) -> None:
    before = read_environment(folder)["hashes"]
    old, new = before["shards"], now["shards"]
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            raise InputError(f"{folder}: {name} is not the shard the run began with")
    if before["data_order"] != now["data_order"]:
        raise InputError(f"{folder}: the order of its data is not the one it began with")


def full_state(
    model: PrismLM, optimizer: torch.optim.AdamW, keep: bool = True
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and AdamW's moments as in one process; all must ask, those that ``keep`` get them."""
    reshard(model)
    weights, moments = {}, {}
    for name, weight in model.named_parameters():
        full = whole(weight)
        if keep:
            weights[name] = full
        for kind in MOMENTS:
            # Before the first update there are none.
            full = whole(optimizer.state[weight][kind]) if optimizer.state else full * 0
            if keep:
                moments[f"{kind}.{name}"] = full
    return weights, moments


@torch.no_grad()
def load_state(model: PrismLM, optimizer: torch.optim.AdamW, checkpoint: Path, step: int) -> None:
    """Fill a model and its optimizer from a checkpoint, whatever their distribution.

    By copying into memory that torch laid out: results on a CPU can depend on alignment.
    """
    weights = read_tensors(checkpoint / WEIGHTS_FILE)
    check_schedule(weights.pop(SCHEDULE, None), model.config.schedule, checkpoint)
    moments = read_tensors(checkpoint / OPTIMIZER_FILE)
    for name, weight in model.named_parameters():
        weight.copy_(part_of(weights[name], weight))
        state = {
            kind: torch.empty_like(weight).copy_(part_of(moments[f"{kind}.{name}"], weight))
            for kind in MOMENTS
        }
        count = torch.tensor(float(step), dtype=torch.float32, device=weight.device)
        optimizer.state[weight] = {"step": count, **state}
