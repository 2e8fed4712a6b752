"""Several processes as one: launched by torchrun, or alone."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from prism_transformer.core.errors import RunError, first_line
from prism_transformer.core.family import end_with_parent
from prism_transformer.model import PrismLM
from prism_transformer.recipe import Distribution
from prism_transformer.training.device import sum_type

# The first step compiles, opens connections and finds out what is slow to wake up.
FIRST_TIMEOUT = timedelta(minutes=30)
STEP_TIMEOUT = timedelta(minutes=2)  # a step takes seconds: whoever waits longer waits for the dead
PATIENT_TIMEOUT = timedelta(hours=2)  # while the first process prepares data or writes to disk


@dataclass(frozen=True)
class World:
    """A process among all."""

    rank: int
    size: int
    device: torch.device
    patient: dist.ProcessGroup | None
    """for waiting without the timeout of a step; None alone"""
    savers: dist.ProcessGroup | None = None
    """for the threads that write checkpoints, whose exchanges must not meet those of training"""
    per_node: int = 0
    """processes on this machine; 0 for all"""
    hurried: list[dist.ProcessGroup] = field(default_factory=list)
    """groups that training waits in"""

    @property
    def is_first(self) -> bool:
        """The first process alone writes and speaks."""
        return self.rank == 0

    def wait(self) -> None:
        """Until everybody is here, however long the first one works."""
        if self.patient is not None:
            dist.barrier(group=self.patient)

    @property
    def is_first_here(self) -> bool:
        """The first process of this machine, which reads its disk for the others."""
        return self.rank % (self.per_node or self.size) == 0

    def total(self, values: Sequence[float]) -> list[float]:
        """Numbers summed over all processes, in float64, so that counts stay exact."""
        return self.summed(torch.tensor(values, dtype=sum_type(self.device), device=self.device))

    def summed(self, values: Tensor) -> list[float]:
        """The same of numbers that are on the device; asking for them waits for it."""
        if self.size > 1:
            dist.all_reduce(values)
        return values.tolist()

    def hurry(self) -> None:
        """From here on whoever keeps the others waiting for minutes is taken for dead."""
        for group in self.hurried:
            _set_pg_timeout(STEP_TIMEOUT, group)


_worlds = count()  # that this process has joined


@contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Meet the other processes of a torchrun launch, if this is one."""
    size = int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ else 1
    if size == 1:
        yield World(0, 1, device, None)
        return
    # Gloo beside NCCL: waiting must not occupy the GPU, and NCCL's own barrier does.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    # A process that has left a world may join another one: what its store still says of the first
    # must not be read for the second. All processes join equally often, so they count alike.
    store, rank = _meeting_place()
    store = dist.PrefixStore(f"world-{next(_worlds)}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=FIRST_TIMEOUT)
    try:
        patient, savers = (
            dist.new_group(backend="gloo", timeout=PATIENT_TIMEOUT) for _ in range(2)
        )
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", size))  # set by torchrun
        everybody = [dist.group.WORLD] if dist.group.WORLD else []
        yield World(dist.get_rank(), size, device, patient, savers, per_node, everybody)
    finally:
        dist.destroy_process_group()


def _meeting_place() -> tuple[dist.Store, int]:
    """What the processes of a launch find each other by, and this one's number."""
    timeout = FIRST_TIMEOUT
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun holds the meeting place and was there first: if it does not answer within
        # minutes it was killed. If it is killed later, save and leave; its processes are in
        # sessions of their own, so that whatever ends torchrun's does not reach them.
        timeout = STEP_TIMEOUT
        end_with_parent(signal.SIGTERM)
    store, rank, _ = next(dist.rendezvous("env://", timeout=timeout))
    store.set_timeout(FIRST_TIMEOUT)  # for whatever it is asked from here on
    return store, rank


@dataclass(frozen=True)
class Share:
    """The part of one process in work of so many pieces, and the way to the sum of all parts."""

    world: World
    n_pieces: int

    @property
    def pieces(self) -> range:
        """The pieces of this process.

        Nobody is without: whoever would be does the first one, too, to know what is to be added up,
        and adds nothing.
        """
        return range(self.world.rank, self.n_pieces, self.world.size) or range(
            min(1, self.n_pieces)
        )

    def added(self, values: Tensor) -> Tensor:
        """The sum over all processes, as float64 on the CPU; all must ask together."""
        mine = values.detach().to("cpu", torch.float64)
        if self.world.size == 1:
            return mine
        if self.world.rank >= self.n_pieces:
            mine = torch.zeros_like(mine)
        dist.all_reduce(mine, group=self.world.patient)
        return mine


WHOLE = Share(World(0, 1, torch.device("cpu"), None), 1)  # of a process that works alone


@contextmanager
def work_together(device: torch.device) -> Iterator[World]:
    """Measure with all processes of a torchrun launch, if this is one."""
    with all_alive("launch it again"), join_world(device) as world:
        yield world


@contextmanager
def all_alive(remedy: str) -> Iterator[None]:
    """Say it plainly when another process of the job is gone."""
    try:
        yield
    except RuntimeError as error:
        # Gloo raises plain RuntimeErrors that only their text tells apart.
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        with suppress(ValueError):  # not in the main thread, which alone may ask for this
            # The launcher ends the others, too, and would cut us off before we say why.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise RunError(
            f"another process of this job is gone ({first_line(error)}); {remedy}"
        ) from None


def distribute(
    model: PrismLM, world: World, way: Distribution, *, mixed: bool = False
) -> nn.Module:
    """The model as training calls it: gradients come out averaged over all processes.

    ``mixed`` where products are in bfloat16.
    """
    if world.size == 1:
        return model
    if way == "ddp":
        devices = [world.device] if world.device.type == "cuda" else None
        # Gradients as views of what is exchanged: a copy of all gradients less.
        return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    mesh = device_mesh(world, way)
    world.hurried.extend(group for group in mesh.get_all_groups() if group not in world.hurried)
    shard(model, mesh, mixed=mixed)
    return model


def shard(model: PrismLM, mesh: DeviceMesh, *, mixed: bool) -> None:
    """Split weights, gradients and with them the optimizer's state over a mesh of processes."""
    # Weights are gathered in the precision they are used in, which is half the traffic; gradients
    # are summed in float32. What flows between layers stays as autocast has it, so inputs are not
    # cast. The embedding is gathered in float32: it gets gradients from both ends of the model,
    # which are to be added up in that.
    # A layer's norms have gains in bfloat16, then, beside a stream in float32: torch says so where
    # nothing is compiled.
    warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    # Layer by layer, so that the weights of one layer are gathered while another computes.
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy if mixed else MixedPrecisionPolicy())
    fully_shard(model, mesh=mesh)  # what is left: the embedding and the last norm


def device_mesh(world: World, way: Distribution) -> DeviceMesh:
    """Processes as fully_shard sees them: in a row, or hybrid, a row for each machine.

    Hybrid sharding splits weights within a machine, where links are fast, and has a copy on each:
    between machines only gradients travel.
    """
    per_node = world.per_node or world.size
    if way == "fully_shard" or per_node == world.size:
        return init_device_mesh(world.device.type, (world.size,))
    shape = (world.size // per_node, per_node)
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("nodes", "devices"))


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
    """A tensor as it would be in one process; all processes must ask together."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.detach()


def part_of(full: Tensor, like: Tensor) -> Tensor:
    """The share of this process of a whole tensor, laid out as ``like``."""
    if isinstance(like, DTensor):
        full = full.to(like.device)
        # No exchange (src_data_rank): every process has read the same file.
        return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)
    return full
