"""Several processes as one: launched by torchrun, or alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from prism_transformer.model import PrismLM
from prism_transformer.recipe import Distribution

STEP_TIMEOUT = timedelta(minutes=2)  # a step takes seconds: whoever waits longer waits for the dead
PATIENT_TIMEOUT = timedelta(hours=2)  # while the first process prepares data or writes to disk


@dataclass(frozen=True)
class World:
    """A process among all."""

    rank: int
    size: int
    device: torch.device
    patient: dist.ProcessGroup | None

    @property
    def is_first(self) -> bool:
        """The first process alone writes and speaks."""
        return self.rank == 0

    def wait(self) -> None:
        """Until everybody is here, however long the first one works."""
        if self.patient is not None:
            dist.barrier(group=self.patient)

    def total(self, values: Sequence[float]) -> list[float]:
        """Numbers summed over all processes, in float64."""
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.size > 1:
            dist.all_reduce(sums)
        return sums.tolist()


@contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Meet the other processes of a torchrun launch, if this is one."""
    size = int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ else 1
    if size == 1:
        yield World(0, 1, device, None)
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=STEP_TIMEOUT)
    try:
        patient = dist.new_group(backend="gloo", timeout=PATIENT_TIMEOUT)
        yield World(dist.get_rank(), size, device, patient)
    finally:
        dist.destroy_process_group()


def distribute(model: PrismLM, world: World, way: Distribution) -> nn.Module:
    """The model as training calls it: gradients come out averaged over all processes."""
    if world.size == 1:
        return model
    if way == "ddp":
        devices = [world.device] if world.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    mesh = init_device_mesh(world.device.type, (world.size,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)  # what is left: the embedding and the last norm
    return model


def accumulating(model: nn.Module, last: bool) -> AbstractContextManager[object]:
    """Gradients are exchanged in the last pass of a step only."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    elif isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return nullcontext()


def reshard(model: nn.Module) -> None:
    """Let go of weights that fully_shard gathered and still holds for the next pass.

    Until then the model's parameters are not those that the optimizer knows.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """A tensor as it would be in one process, on the CPU; all processes must ask together."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.detach().cpu()


def part_of(full: Tensor, like: Tensor) -> Tensor:
    """The share of this process of a whole tensor, laid out as ``like``."""
    if isinstance(like, DTensor):
        full = full.to(like.device)
        return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)
    return full
