"""Everything the loop works on: a new run, or one taken up where its checkpoint left it.

``new_job`` and ``resumed_job`` check before they write: recipe, shards and their order must be what
the run began with, since a comparison of arms rests on that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FSDPModule

from prism_transformer.core.disk import locked, new_folder
from prism_transformer.core.errors import InputError, RunError
from prism_transformer.data.loader import Windows
from prism_transformer.data.mixture import Mixture, open_splits
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import SCHEDULE, WEIGHTS_FILE, check_schedule, read_tensors
from prism_transformer.recipe import OptimConfig, Recipe, differences
from prism_transformer.training.checkpoint import (
    OPTIMIZER_FILE,
    State,
    newest_sound,
    prune,
    read_state,
    save_checkpoint,
    set_aside_damaged,
    sweep,
)
from prism_transformer.training.device import Settings, compile_layers, compile_loss
from prism_transformer.training.distributed import World, distribute, part_of
from prism_transformer.training.environment import changes, data_hashes, environment, session
from prism_transformer.training.rate import check_larger_budget
from prism_transformer.training.rescue import Save, save_beside
from prism_transformer.training.run import (
    Covered,
    Metrics,
    Row,
    checkpoint_folder,
    checkpoints,
    create_run,
    note_session,
    read_environment,
    trained_recipe,
    write_recipe,
)
from prism_transformer.training.saving import (
    MOMENTS,
    Saver,
    anywhere,
    has_part,
    save_parts,
    save_whole,
    snapshot,
)
from prism_transformer.training.start import Start, check_tokenizer
from prism_transformer.training.stopping import StopRequest
from prism_transformer.training.trackers import Trackers


@dataclass
class Job:
    """A run and how far it is."""

    folder: Path
    recipe: Recipe
    settings: Settings
    world: World
    train: Windows | Mixture
    val: Windows
    model: PrismLM
    wrapped: nn.Module
    """the model as training calls it: in DDP's wrapper, sharded, or as it is"""
    optimizer: torch.optim.AdamW
    step: int = 0
    """updates done"""
    metrics: Metrics | None = None
    """in the first process"""
    trackers: Trackers | None = None
    facts: Row = field(default_factory=dict)
    """its environment, in the first process"""
    stop: StopRequest = field(default_factory=StopRequest)
    stopping: bool = False
    """some process was asked to stop, and all of them know it"""
    first_done: bool = False
    """a step was taken in this process"""
    saver: Saver = field(default_factory=Saver)

    @property
    def how(self) -> str:
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
        """Copy the state of training, to be written as a checkpoint while training goes on."""
        self.saver.wait()
        first, group = self.world.is_first, self.world.savers
        # The last one is whole, as every other model on a disk is.
        parts = isinstance(self.wrapped, FSDPModule) and self.step < self.recipe.n_steps
        keep = has_part(self.model) if parts else first
        taken = snapshot(self.model, self.optimizer, keep=keep, parts=parts)
        tokens, lines = self.step * self.recipe.train.batch_tokens, Covered(self.step, 0)
        if self.metrics is not None:
            lines = self.metrics.sync(self.step)
        state = State(self.step, tokens, lines.n_bytes, lines.sha256)
        recipe, to = self.recipe, partial(checkpoint_folder, step=self.step)
        if parts and group is not None:
            part = taken if keep else None
            self._begin(state, lambda run: save_parts(to(run), recipe, state, part, group), group)
        elif first:
            self._begin(state, lambda run: save_whole(to(run), recipe, state, taken))

    def _begin(self, state: State, save: Save, group: ProcessGroup | None = None) -> None:
        """Have a checkpoint written; older ones go only when it is there."""

        def work() -> None:
            problem, gone = None, self._gone(group)
            if not gone:
                try:
                    save(self.folder)
                except (InputError, OSError) as error:
                    problem = error
                gone = self._gone(group)
            if gone:
                lines = None if self.metrics is None else self.metrics.content(state.metrics_bytes)
                raise RunError(save_beside(self.folder, self.recipe, self.facts, lines, save))
            if problem is not None:
                raise InputError(f"{problem}; what was saved before is intact: {self.how}")
            if self.world.is_first:
                every = self.recipe.run
                with suppress(FileNotFoundError):  # it went now: the next checkpoint will notice
                    prune(self.folder, every.keep_checkpoints, every.milestones)

        self.saver.begin(work)

    def _gone(self, group: ProcessGroup | None) -> bool:
        """Whether the folder is no longer the one that metrics are written to; all agree."""
        return anywhere(self.metrics is not None and not self.metrics.there, group)

    def wait_until_saved(self) -> None:
        """Until every checkpoint is on the disk, in all processes."""
        self.saver.wait()
        self.world.wait()


def open_data(recipe: Recipe, world: World | None = None) -> tuple[Windows | Mixture, Windows]:
    """Training and validation windows, checked against the recipe."""
    train, val = open_splits(recipe)
    if world is not None and world.size > 1:
        _check_once(train, val, world)
    return train, val


def _check_once(train: Windows | Mixture, val: Windows, world: World) -> None:
    """Check every shard in one process, before the first step: the others would all do the same.

    Alone, a process checks each shard when it first reads of it.
    """
    # The first of all, then the first of each machine: where they share a disk these find that
    # all is checked, and elsewhere they check their own.
    for checks in (world.is_first, world.is_first_here):
        if checks:
            train.check()
            val.check()
        world.wait()
    train.trust()
    val.trust()


@contextmanager
def new_job(
    folder: Path, recipe: Recipe, settings: Settings, world: World, start: Start | None = None
) -> Iterator[Job]:
    """Begin a run in a folder that is not there yet, from weights that are drawn or given."""
    train, val = open_data(recipe, world)
    model = _model(recipe, settings, world)
    if start is not None:
        check_tokenizer(start, recipe)
        start.fill(model)
    # The folder comes last, when nothing that a user can get wrong is left: a refused run leaves
    # nothing behind.
    if world.is_first:
        facts = environment(recipe, model, train, val, settings, start)
        with new_folder(folder) as place:
            create_run(place, recipe, facts)
            if start is not None:  # the run must not need them again, nor a seed stand in for them
                _save_start(place, recipe, model)
    world.wait()
    with locked(folder) if world.is_first else nullcontext():
        job = _assemble(folder, recipe, settings, world, (train, val), model, None)
        with job.saver:  # nobody else may write here before its thread is done
            yield job


@contextmanager
def resumed_job(
    folder: Path, recipe: Recipe, settings: Settings, world: World, notes: list[str]
) -> Iterator[Job]:
    """Go on with a run from its newest sound checkpoint; ``notes`` gets what is worth saying."""
    with locked(folder) if world.is_first else nullcontext():
        changed = _check_recipe(folder, recipe)
        data = open_data(recipe, world)
        _check_shards(folder, data_hashes(*data, recipe))
        checkpoint = _checkpoint(folder, world, notes)
        model = _model(recipe, settings, world)
        if world.is_first and changed:
            # Before the environment knows it: killed in between, the change is checked once more.
            write_recipe(folder, recipe)
        job = _assemble(folder, recipe, settings, world, data, model, checkpoint, changed)
        notes += [f"from here on {line}" for line in changed]
        sessions = read_environment(folder)["sessions"][-2:]
        notes += changes(*sessions) if len(sessions) == 2 else []
        with job.saver:
            yield job


def _model(recipe: Recipe, settings: Settings, world: World) -> PrismLM:
    passes = recipe.accumulation(world.size)
    if passes is None:
        raise InputError(
            f"train.batch_tokens = {recipe.train.batch_tokens} does not split over {world.size} "
            f"processes of train.micro_batch = {recipe.train.micro_batch} sequences; lower that"
        )
    try:
        # Whole and on the CPU in every process: devices draw other numbers, and shards of a draw
        # would depend on how many there are.
        model = PrismLM(recipe.model, recipe.train.seed).to(settings.dtype)
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        raise InputError(f"the model does not fit into memory: {error}") from None
    model.activation_checkpointing = recipe.train.activation_checkpointing
    return model


def _save_start(run: Path, recipe: Recipe, model: PrismLM) -> None:
    """A checkpoint of step 0."""
    weights = dict(model.named_parameters())
    moments = {
        f"{kind}.{name}": torch.zeros_like(weight)
        for name, weight in weights.items()
        for kind in MOMENTS
    }
    save_checkpoint(checkpoint_folder(run, 0), recipe, State(0, 0, 0), weights, moments)


def _assemble(
    folder: Path,
    recipe: Recipe,
    settings: Settings,
    world: World,
    data: tuple[Windows | Mixture, Windows],
    model: PrismLM,
    checkpoint: Path | None,
    changed: Sequence[str] = (),
) -> Job:
    """The job of a model that is new, filled from the checkpoint if there is one."""
    if settings.compiled:
        compile_layers(model)  # before it is wrapped, so that hooks stay outside compiled code
        n_tokens = recipe.train.micro_batch * recipe.model.seq_len
        compile_loss(model, n_tokens, settings.device)
    if world.size == 1 or recipe.train.distribution == "ddp":
        model.to(world.device)  # fully_shard moves its parts by itself
    mixed = settings.precision == "bf16"
    wrapped = distribute(model, world, recipe.train.distribution, mixed=mixed)
    optimizer = make_optimizer(model, recipe.optim)
    job = Job(folder, recipe, settings, world, *data, model, wrapped, optimizer)
    state = State(0, 0, 0) if checkpoint is None else read_state(checkpoint)
    if checkpoint is not None:
        load_state(model, optimizer, checkpoint, state.step)
    job.step = state.step
    if world.is_first:
        job.metrics = Metrics(folder, state.covered)  # drops what no checkpoint covers
        now = session(job.step, world.size, settings, changed)
        job.facts = note_session(folder, now, recipe)
        identity = job.facts.get("identity", "")
        job.trackers = Trackers(recipe.run.trackers, folder, recipe, identity)
    return job


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},  # gains of norms
    ]
    betas = (config.beta1, config.beta2)
    # Fused: one kernel for all weights, also on a CPU. The loop sets the rate before every step.
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)


def _checkpoint(folder: Path, world: World, notes: list[str]) -> Path | None:
    """The newest sound checkpoint; every process finds the same."""
    if world.is_first:
        sweep(folder)
        notes += set_aside_damaged(folder)
    world.wait()  # the others look only when damaged checkpoints are out of the way
    # What the first one left is sound: a thousand processes need not hash it again.
    checkpoint = next(reversed(checkpoints(folder)), None)
    start = read_environment(folder).get("start")
    if checkpoint is None and start is not None:
        raise InputError(
            f"{folder}: has no sound checkpoint left, and the weights it began from are in "
            f"{start['source']}: begin a new run from there with `prism train --from`"
        )
    found = "no sound checkpoint: begins again at step 0"
    notes.append(found if checkpoint is None else f"goes on from {checkpoint}")
    if checkpoint is not None and read_state(checkpoint).metrics_sha256 is None:
        notes.append(f"{checkpoint}: carries no sum of metrics.jsonl, of which its length is known")
    return checkpoint


def check_change(folder: Path, before: Recipe, after: Recipe) -> None:
    """Refuse another recipe for a run, unless it is a budget that its checkpoint can grow into."""
    checkpoint, _ = newest_sound(folder)
    step = 0 if checkpoint is None else read_state(checkpoint).step
    try:
        check_larger_budget(before, after, step)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None


def _check_recipe(folder: Path, recipe: Recipe) -> list[str]:
    """What changed in a run's recipe since its last session, if that may change."""
    before = trained_recipe(folder)
    changed = differences(before, recipe)
    if changed:
        check_change(folder, before, recipe)
    return changed


def _check_shards(folder: Path, now: Row) -> None:
    before = read_environment(folder)["hashes"]
    old, new = before["shards"], now["shards"]
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            raise InputError(f"{folder}: {name} is not the shard the run began with")
    if before["data_order"] != now["data_order"]:
        raise InputError(f"{folder}: the order of its data is not the one it began with")


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
