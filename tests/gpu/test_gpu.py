"""What only a GPU can show. Skipped by name without one; nobody has run these yet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prism_transformer.bench.doctor import CHECKS, WIDTHS, diagnose, doctor_settings
from prism_transformer.core.loss import chunked_loss, recomputed_loss
from prism_transformer.model import PrismLM
from prism_transformer.recipes.files import load_recipe
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.hardware import layer_backends
from prism_transformer.training.api import resume, train
from prism_transformer.training.device import (
    begin,
    compile_layers,
    compile_loss,
    plain_loss,
    settle,
)
from prism_transformer.training.job import make_optimizer
from prism_transformer.training.saving import snapshot
from tests.conftest import small_config
from tests.training.runs import tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")


def a_model() -> tuple[PrismLM, torch.Tensor]:
    tokens = torch.randint(300, (4, 65), generator=torch.Generator().manual_seed(0))
    return PrismLM(small_config("2x1 3x1 6x1 12x2")).cuda(), tokens.cuda()


def test_the_compiled_loss_is_that_of_chunks_with_gradients() -> None:
    x = torch.randn(5000, 96, device="cuda", requires_grad=True)
    weight = torch.randn(640, 96, device="cuda", requires_grad=True)
    targets = torch.randint(640, (5000,), device="cuda")
    found = []
    for loss in (torch.compile(plain_loss), chunked_loss, recomputed_loss):
        with torch.autocast("cuda", torch.bfloat16):
            value = loss(x, weight, targets)
        found.append((value, *torch.autograd.grad(value, (x, weight))))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert (one - two).norm() / one.norm() < 1e-2


def test_compiled_steps_follow_the_cpu() -> None:
    plain, tokens = a_model()
    begin(settle(load_recipe("prism-micro", "train.compile=off"), "cuda"))
    compiled, _ = a_model()
    compile_layers(compiled)
    compile_loss(compiled, 256, torch.device("cuda"))
    assert compiled.training_loss is not chunked_loss
    exact = plain.cpu()(tokens[:, :-1].cpu(), tokens[:, 1:].cpu())
    with torch.autocast("cuda", torch.bfloat16):
        found = compiled(tokens[:, :-1], tokens[:, 1:])
    found.backward()
    assert found.item() == pytest.approx(exact.item(), rel=2e-3)


def test_every_width_has_a_fused_kernel() -> None:
    schedule = HeadSchedule(tuple(768 // width for width in WIDTHS))
    assert "math" not in layer_backends(schedule, 768, "cuda", "bfloat16")


def test_a_snapshot_is_of_its_moment_though_nobody_waits() -> None:
    model, tokens = a_model()
    optimizer = make_optimizer(model, load_recipe("prism-small").optim)
    before = {name: weight.detach().cpu() for name, weight in model.named_parameters()}
    taken = snapshot(model, optimizer)
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    optimizer.step()
    taken.ready()
    for name, weight in before.items():
        assert taken.weights[name].is_pinned()
        assert torch.equal(taken.weights[name], weight)


def test_a_run_trains_and_goes_on(tmp_path: Path, data: Path) -> None:
    recipe = tiny(data, "train.compile=on")
    train(recipe, tmp_path / "run", until=8, device="cuda")
    assert resume(tmp_path / "run", device="cuda").complete


def test_the_doctor_finds_nothing_wrong() -> None:
    settings = doctor_settings("cuda")
    problems = [each for each in (diagnose(check, settings) for check in CHECKS) if not each.ok]
    assert not problems
