"""AdamW's groups and the learning rate."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest

from prism_transformer.model import PrismLM
from prism_transformer.recipe_file import load_recipe
from prism_transformer.train.optim import learning_rate, make_optimizer
from tests.conftest import small_config


def test_only_matrices_decay() -> None:
    model = PrismLM(small_config())
    optimizer = make_optimizer(model, load_recipe("prism-small").optim)
    decay = {
        id(w): group["weight_decay"] for group in optimizer.param_groups for w in group["params"]
    }
    for name, weight in model.named_parameters():
        assert decay[id(weight)] == (0.0 if "norm" in name else 0.1), name
    assert optimizer.defaults["betas"] == (0.9, 0.95)
    assert optimizer.defaults["eps"] == 1e-8


def test_the_rate_of_the_papers_small_model() -> None:
    recipe = load_recipe("prism-small")  # 11,000 steps, 275 of warmup, 6e-4
    rates = [learning_rate(recipe, step) for step in range(11_000)]
    assert rates[0] == pytest.approx(6e-4 / 276)
    assert rates[274] == pytest.approx(6e-4 * 275 / 276)
    assert rates[275] == max(rates) == pytest.approx(6e-4)
    middle = 275 + (11_000 - 275) // 2
    assert rates[middle] == pytest.approx((6e-4 + 6e-5) / 2, rel=1e-3)
    assert 6e-5 < rates[-1] < 6.001e-5
    assert all(b > a for a, b in pairwise(rates[:276]))
    assert all(b < a for a, b in pairwise(rates[275:]))


def test_no_warmup_begins_at_the_peak(tmp_path: Path) -> None:
    recipe = load_recipe("prism-nano", "optim.warmup_fraction=0.0")
    assert learning_rate(recipe, 0) == recipe.optim.lr
    quarter = learning_rate(recipe, recipe.n_steps // 4)
    expected = 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2
    assert quarter == pytest.approx(recipe.optim.lr * expected)
