"""Checkpoints that training does not wait for: copied, then written and read back by a thread.

A kill while a checkpoint is being written loses that one and no other: its folder gets its name
when everything in it is on the disk. Where weights are sharded each process writes its own part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from prism_transformer.core.disk import new_folder, partial_of, read_json, writing
from prism_transformer.core.errors import InputError
from prism_transformer.models.weights import (
    SCHEDULE,
    WEIGHTS_FILE,
    piece_of,
    write_config,
    write_tensors,
)
from prism_transformer.recipe import Recipe
from prism_transformer.training.checkpoint import (
    OPTIMIZER_FILE,
    SUMS_FILE,
    State,
    check_checkpoint,
    save_checkpoint,
    sums_of,
    write_facts,
    write_sums,
)
from prism_transformer.training.distributed import reshard, whole

MOMENTS = ("exp_avg", "exp_avg_sq")
SHARED = "shared"  # in the name of a folder that several processes write to

Tensors = dict[str, Tensor]


class Saver:
    """A thread that saves one checkpoint at a time; what goes wrong in it is raised here."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "saver")
        self.pending: Future[None] | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Have it done; at most one copy of the model waits, so the last must be written first."""
        self.wait()
        self.pending = self.thread.submit(work)

    def wait(self) -> None:
        """Until nothing is left to write."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def check(self) -> None:
        """Raise what went wrong, if something did; waits for nothing."""
        if self.pending is not None and self.pending.done():
            self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.thread.shutdown()  # what was begun is finished, also when training failed
        if error is None:
            self.wait()


@dataclass(frozen=True)
class Snapshot:
    """Weights and AdamW's moments as they were, in memory of the CPU."""

    weights: Tensors
    moments: Tensors
    ready: Callable[[], None]
    """waits until the device has copied them"""
    piece: tuple[int, int] | None = None
    """which part of how many, where it is one"""


def snapshot(
    model: nn.Module, optimizer: torch.optim.AdamW, *, keep: bool = True, parts: bool = False
) -> Snapshot:
    """Copy the state of training: whole, where all must ask and those that ``keep`` get it.

    Or the ``parts`` of it that fully_shard gave to this process. Copies go to pinned memory, so
    that the device makes them while this process goes on.
    """
    reshard(model)
    weights: Tensors = {}
    moments: Tensors = {}
    for name, weight in model.named_parameters():
        # Before the first update there are no moments.
        state = optimizer.state[weight] if optimizer.state else {}
        each = {name: weight, **{f"{kind}.{name}": state.get(kind) for kind in MOMENTS}}
        for key, tensor in each.items():
            copy = _copy(weight * 0 if tensor is None else tensor, keep, parts)
            if copy is not None:
                (weights if key == name else moments)[key] = copy
    return Snapshot(weights, moments, _copied(next(model.parameters())), _piece(model, parts))


def _copy(tensor: Tensor, keep: bool, parts: bool) -> Tensor | None:
    """A copy that training cannot change; nothing where another process keeps it."""
    if parts and isinstance(tensor, DTensor):
        tensor = tensor.to_local()
        keep = keep and tensor.numel() > 0  # a small weight has no part for everybody
    elif isinstance(tensor, DTensor):
        tensor = whole(tensor)  # weight by weight: one gathered tensor at a time
    if not keep:
        return None
    on_gpu = tensor.is_cuda
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_gpu)
    return copy.copy_(tensor.detach(), non_blocking=on_gpu)


def _copied(on: Tensor) -> Callable[[], None]:
    if not on.is_cuda:
        return lambda: None
    event = torch.cuda.Event()
    event.record()  # after the copies; the thread waits for it, training does not
    return event.synchronize


def _piece(model: nn.Module, parts: bool) -> tuple[int, int] | None:
    weight = next(model.parameters())
    if not parts or not isinstance(weight, DTensor):
        return None
    return weight.device_mesh.get_local_rank(-1), weight.device_mesh.size(-1)


def has_part(model: nn.Module) -> bool:
    """Whether this process writes its part; under hybrid sharding the first machine does."""
    weight = next(model.parameters())
    place = weight.device_mesh.get_coordinate() if isinstance(weight, DTensor) else None
    return place is None or not any(place[:-1])


# Not torch.distributed.checkpoint: its index is a file that runs code when it is read, and its
# planner sends such objects around. Parts of ours are rows of each weight in order, so that the
# whole is their concatenation, for any number of processes that read it.
def save_parts(
    folder: Path, recipe: Recipe, state: State, taken: Snapshot | None, group: dist.ProcessGroup
) -> None:
    """Write a checkpoint together with the threads of all other processes, whole or not at all.

    Each writes its part and hashes what the disk has of it; the first adds what is common and gives
    the folder its name when all are done. ``taken`` is None where another has the same part.
    """
    first, place = dist.get_rank() == 0, partial_of(folder, SHARED)
    with ExitStack() as stack:
        make = partial(stack.enter_context, new_folder(folder, SHARED)) if first else None
        _together(group, make)  # the others write only when the folder is there
        _together(group, partial(_write_part, place, recipe, taken))
        if not first:
            return
        parts = sorted(place.glob(f"*{SUMS_FILE}"))
        sums = {name: digest for part in parts for name, digest in read_json(part).items()}
        for part in parts:
            part.unlink()
        written = set(place.iterdir())
        write_config(recipe.model, place)
        write_facts(place, recipe, state)
        write_sums(place, sums | sums_of(set(place.iterdir()) - written))


def _write_part(place: Path, recipe: Recipe, taken: Snapshot | None) -> None:
    if taken is None or taken.piece is None:
        return
    taken.ready()
    number, of = taken.piece
    schedule = {SCHEDULE: torch.tensor(recipe.model.schedule.heads)} if number == 0 else {}
    contents: Mapping[str, Tensors] = {
        WEIGHTS_FILE: schedule | taken.weights,
        OPTIMIZER_FILE: taken.moments,
    }
    with writing(place):
        files = {place / piece_of(name, number, of): each for name, each in contents.items()}
        for file, tensors in files.items():
            write_tensors(tensors, file)
        sums = sums_of(files)
        (place / f"{number}-{SUMS_FILE}").write_text(json.dumps(sums), "utf-8")


def _together(group: dist.ProcessGroup, work: Callable[[], object] | None) -> None:
    """Do something in every process; where one fails, all do, and nobody waits for it."""
    problem: InputError | None = None
    try:
        if work is not None:
            work()
    except InputError as error:
        problem = error
    failed = anywhere(problem is not None, group)
    if problem is not None:
        raise problem
    if failed:
        raise InputError("another process could not write its part of a checkpoint")


def anywhere(found: bool, group: dist.ProcessGroup | None) -> bool:
    """Whether something is so in any process of a group; all of them must ask."""
    if group is None:
        return found
    count = torch.tensor(float(found))
    dist.all_reduce(count, group=group)
    return bool(count > 0)


def save_whole(folder: Path, recipe: Recipe, state: State, taken: Snapshot) -> None:
    """Write a checkpoint and read it back: a disk may lie about what it wrote."""
    taken.ready()
    save_checkpoint(folder, recipe, state, taken.weights, taken.moments)
    check_checkpoint(folder)
