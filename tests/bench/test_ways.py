"""What is measured is what it says."""

from __future__ import annotations

import pytest
import torch

from prism_transformer.bench import ways
from prism_transformer.bench.tables import our_step
from prism_transformer.model import PrismLM
from prism_transformer.schedule import HeadSchedule
from prism_transformer.train.device import Settings
from tests.conftest import small_config

SETTINGS = Settings(torch.device("cpu"), "fp32", False, "")


def test_a_swapped_schedule_is_the_model_of_that_schedule() -> None:
    uniform, prism = small_config("12x5"), small_config("2x1 3x1 6x1 12x2")
    model, expected = PrismLM(uniform, seed=1), PrismLM(prism, seed=1)
    tokens = ways.some_tokens(uniform, 2, 20, torch.device("cpu"))
    before = model(tokens)
    assert not before.allclose(expected(tokens))
    ways.take_schedule(model, prism.schedule)
    assert model(tokens).equal(expected(tokens))
    assert model.config == prism
    ways.take_schedule(model, uniform.schedule)
    assert model(tokens).equal(before)


def test_a_measured_step_trains() -> None:
    model = PrismLM(small_config())
    tokens = ways.some_tokens(model.config, 2, 65, torch.device("cpu"))
    with torch.no_grad():
        before = model(tokens[:, :-1], tokens[:, 1:]).item()
    step = our_step(model, tokens, SETTINGS)
    for _ in range(20):
        step()
    with torch.no_grad():
        assert model(tokens[:, :-1], tokens[:, 1:]).item() < before - 0.05
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("backward", [True, False])
def test_ways_run(backward: bool) -> None:
    model = PrismLM(small_config()).eval()
    tokens = ways.some_tokens(model.config, 1, 16, torch.device("cpu"))
    ways.prefill(model, tokens, SETTINGS)()
    ways.decode(model, tokens, 4, SETTINGS)()
    ways.attention(4, 8, 2, 16, SETTINGS, backward)()
    ways.matmul_rate(SETTINGS, 64)()
    assert ways.matmul_flops(64) == 2 * 64**3


def test_schedules_of_the_wrong_depth_do_not_pass() -> None:
    with pytest.raises(ValueError, match="zip"):
        ways.take_schedule(PrismLM(small_config()), HeadSchedule.parse("12x4"))
