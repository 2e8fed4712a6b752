"""Device, precision and compilation: each choice with its reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from prism_transformer.core.errors import InputError
from prism_transformer.core.loss import chunked_loss
from prism_transformer.model import PrismLM
from prism_transformer.recipes.files import load_recipe
from prism_transformer.training import device
from prism_transformer.training.device import (
    begin,
    compile_layers,
    compile_loss,
    plain_loss,
    settle,
)
from prism_transformer.training.job import make_optimizer
from prism_transformer.training.loop import largest_attention_logits
from tests.conftest import small_config
from tests.training.runs import Counters


def test_auto_on_a_cpu() -> None:
    settings = settle(load_recipe("prism-micro"), "cpu")
    assert settings.precision == "fp32"
    assert not settings.compiled
    assert "over before compiling pays" in settings.compile_reason


@pytest.mark.parametrize("precision", ["bf16", "fp32", "fp64"])
def test_a_recipe_can_insist_on_a_precision(precision: str) -> None:
    settings = settle(load_recipe("prism-micro", f"train.precision={precision}"), "cpu")
    assert settings.precision == precision
    assert settings.dtype == (torch.float64 if precision == "fp64" else torch.float32)
    assert settings.peak_flops() is None


def test_a_long_run_compiles_where_a_compiler_works(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("prism-micro", "train.tokens=1_000_000_000")
    monkeypatch.setattr(device, "_compiler_problem", lambda _: None)
    assert begin(settle(recipe, "cpu")) == settle(recipe, "cpu")
    assert settle(recipe, "cpu").compiled
    monkeypatch.setattr(device, "_compiler_problem", lambda _: "no g++")
    settings = begin(settle(recipe, "cpu"))
    assert not settings.compiled
    assert settings.compile_reason == "the compiler does not work: no g++"
    with pytest.raises(InputError, match="the compiler does not work: no g"):
        begin(settle(load_recipe("prism-micro", "train.compile=on"), "cpu"))


def test_deciding_changes_nothing_and_tries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def acted(*_: object) -> None:
        raise AssertionError("acted")

    for name in ("_compiler_problem", "keep_memory", "compile_layers"):
        monkeypatch.setattr(device, name, acted)
    for name in ("compile", "set_float32_matmul_precision"):
        monkeypatch.setattr(torch, name, acted)
    settings = settle(load_recipe("prism-micro", "train.compile=on"), "cpu")
    assert settings.compiled
    with pytest.raises(AssertionError, match="acted"):
        begin(settings)


@pytest.mark.slow
def test_without_a_compiler_it_is_said(tmp_path: Path) -> None:
    # In a process of its own: torch reads CXX once and remembers it.
    code = (
        "import torch; from prism_transformer.training.device import _compiler_problem;"
        "print(_compiler_problem(torch.device('cpu')))"
    )
    nowhere = {"CXX": "/nowhere/g++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | nowhere, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "/nowhere/g++" in done.stdout


@pytest.mark.parametrize("has_units", [True, False])
def test_auto_asks_a_gpu_for_bfloat16(monkeypatch: pytest.MonkeyPatch, has_units: bool) -> None:
    """As a T4 or V100 would answer, and an A100."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: has_units)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    settings = settle(load_recipe("prism-micro"), "cuda")
    assert settings.precision == ("bf16" if has_units else "fp32")
    said = settings.precision_reason
    assert said == "" if has_units else "Tesla T4 has no units for bfloat16" in said


def test_an_apple_gpu_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    settings = settle(load_recipe("prism-micro", "train.compile=auto"), "mps")
    assert (settings.device.type, settings.precision, settings.compiled) == ("mps", "fp32", False)
    assert settle(load_recipe("prism-micro"), "auto").device.type != "mps"
    assert device.sum_type(settings.device) == torch.float32
    with pytest.raises(InputError, match="on mps only fp32"):
        settle(load_recipe("prism-micro", "train.precision=bf16"), "mps")


def test_the_loss_over_all_logits_is_for_gpus_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    class Card:
        total_memory = 80 * 10**9

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card)
    model = PrismLM(small_config())
    compile_loss(model, 32 * 1024, torch.device("cpu"))
    assert model.training_loss is chunked_loss
    Card.total_memory = 4 * (32 * 1024 * 384) * 4 - 1  # a quarter of it would do, but for a byte
    compile_loss(model, 32 * 1024, torch.device("cuda"))
    assert model.training_loss is chunked_loss
    Card.total_memory += 1
    compile_loss(model, 32 * 1024, torch.device("cuda"))
    assert model.training_loss is not chunked_loss


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16"])
def test_the_compiled_loss_is_the_chunked_one(mixed: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 48, generator=draw).requires_grad_() for n in (600, 640))
    targets = torch.randint(640, (600,), generator=draw)
    found = []
    for loss in (torch.compile(plain_loss, fullgraph=True, dynamic=False), chunked_loss):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            value = loss(x, weight, targets)
        found.append((value, *torch.autograd.grad(value, (x, weight))))
    for one, two in zip(*found, strict=True):
        assert (one - two).norm() / two.norm() < (1e-2 if mixed else 1e-5)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["mps", "tpu", "cuda"])
def test_other_devices_are_refused_by_name(name: str) -> None:
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device, which is not refused")
    with pytest.raises(InputError, match=f"device '{name}'"):
        settle(load_recipe("prism-micro"), name)


@pytest.mark.slow
def test_five_widths_compile_for_training_and_validation_without_falling_back(
    compiler: Counters,
) -> None:
    config = small_config("1x1 2x1 3x1 6x1 12x1")
    plain, compiled = PrismLM(config), PrismLM(config)
    compile_layers(compiled)
    tokens = torch.randint(300, (2, 65), generator=torch.Generator().manual_seed(0))
    for model in (plain, compiled):
        model(tokens[:, :-1], tokens[:, 1:]).backward()
    with torch.no_grad():
        assert compiled(tokens[:, :-1], tokens[:, 1:]).item() == pytest.approx(
            plain(tokens[:, :-1], tokens[:, 1:]).item(), abs=1e-6
        )
    for (name, one), other in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert (one.grad - other.grad).abs().max() < 1e-5, name
    assert compiler["stats"]["unique_graphs"] == 10  # five widths, with gradients and without
    assert not compiler["graph_break"]
    assert not compiler["unimplemented"]
    settings = device.Settings(torch.device("cpu"), "fp32", True, "")
    looked = largest_attention_logits(compiled, tokens[:1, :-1], settings)
    assert looked == pytest.approx(largest_attention_logits(plain, tokens[:1, :-1], settings))


def plain_losses(steps: int) -> list[float]:
    """Training written out: all logits at once, a view for v, AdamW parameter by parameter."""
    model = PrismLM(small_config("2x2 12x3"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1,
                                  foreach=False, fused=False)  # fmt: skip
    for group in optimizer.param_groups:
        group["params"] = [w for w in group["params"] if w.dim() > 1]
    optimizer.add_param_group(
        {"params": [w for w in model.parameters() if w.dim() < 2], "weight_decay": 0.0}
    )
    losses = []
    for x, y in some_batches(steps):
        loss = F.cross_entropy(F.linear(model.hidden(model.embedding(x)), model.embedding.weight)
                               .flatten(0, 1), y.flatten())  # fmt: skip
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def fast_losses(steps: int, compiled: bool) -> list[float]:
    """The same with everything that makes it fast."""
    recipe = load_recipe("prism-micro", ["optim.lr=1e-3", "optim.beta2=0.95"])
    begin(settle(recipe, "cpu"))
    model = PrismLM(small_config("2x2 12x3"))
    if compiled:
        compile_layers(model)
    optimizer = make_optimizer(model, recipe.optim)
    losses = []
    for x, y in some_batches(steps):
        loss = model(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def some_batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    tokens = torch.randint(300, (steps, 2, 65), generator=torch.Generator().manual_seed(1))
    return [(each[:, :-1], each[:, 1:]) for each in tokens]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_speed_changes_no_number(compiled: bool) -> None:
    expected = plain_losses(8)
    assert expected[-1] < expected[0] - 0.05
    assert fast_losses(8, compiled) == pytest.approx(expected, rel=2e-6)
