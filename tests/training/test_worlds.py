"""Worlds that are not here: graphs under DDP, and steps in pretended worlds of 8 and 1024."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from prism_transformer.model import PrismLM
from prism_transformer.recipe import Distribution
from prism_transformer.recipes.files import load_recipe
from prism_transformer.training.device import compile_layers, plain_loss
from prism_transformer.training.distributed import (
    STEP_TIMEOUT,
    World,
    device_mesh,
    distribute,
    shard,
    whole,
)
from prism_transformer.training.job import make_optimizer
from tests.conftest import small_config
from tests.training.runs import Counters

CPU = torch.device("cpu")
N_LARGE = 756_819_456  # parameters, as the paper has it


@contextmanager
def group(backend: str, store: dist.Store, size: int) -> Iterator[None]:
    dist.init_process_group(backend, store=store, rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_a_layer_is_one_graph_under_ddp(compiler: Counters) -> None:
    model = PrismLM(small_config("1x1 2x2 6x1 12x2"))
    compile_layers(model)
    tokens = torch.randint(300, (2, 65), generator=torch.Generator().manual_seed(0))
    with group("gloo", dist.HashStore(), 1):
        wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        wrapped(tokens[:, :-1], tokens[:, 1:]).backward()
    assert compiler["stats"]["unique_graphs"] == 4  # one for each width
    assert not compiler["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "size", "rows"),
    [("fully_shard", 8, 8), ("fully_shard", 1024, 1024), ("hybrid_shard", 1024, 8)],
)
def test_a_pretended_world_steps_through_the_large_model(
    way: Distribution, size: int, rows: int
) -> None:
    recipe = load_recipe("prism-large")
    tokens = torch.zeros(2, 1025, dtype=torch.long)
    with group("fake", FakeStore(), size):
        mesh = device_mesh(World(0, size, CPU, None, per_node=8), way)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = PrismLM(recipe.model)
            model.training_loss = plain_loss
            shard(model, mesh, mixed=True)
            optimizer = make_optimizer(model, recipe.optim)
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            weights = list(model.parameters())
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            norm = whole(nn.utils.get_total_norm(gradients))
            nn.utils.clip_grads_with_norm_(weights, 1.0, norm)
            optimizer.step()
    assert loss.dtype == torch.float32
    assert len(gradients) == len(weights)
    held = 0
    for weight, gradient in zip(weights, gradients, strict=True):
        assert isinstance(weight, DTensor)
        assert gradient.dtype == weight.dtype == torch.float32
        assert weight.placements == ((Shard(0),) if rows == size else (Replicate(), Shard(0)))
        held += weight.to_local().numel()
    assert N_LARGE / rows <= held < 1.2 * N_LARGE / rows  # the rest is rounding up of rows


def test_the_world_waits_long_for_the_first_step_and_shortly_after_it() -> None:
    with group("gloo", dist.HashStore(), 1):
        everybody = dist.group.WORLD
        assert everybody is not None
        backend = everybody._get_backend(CPU)
        assert backend.options._timeout > timedelta(minutes=10)
        world = World(0, 1, CPU, None, hurried=[everybody])
        assert distribute(PrismLM(small_config()), world, "ddp") is not None
        world.hurry()
        assert backend.options._timeout == STEP_TIMEOUT
