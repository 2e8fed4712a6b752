"""Learning rates against closed forms, and budgets that a run may or may not grow into."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.recipe import Recipe
from prism_transformer.recipes.files import load_recipe
from prism_transformer.training.rate import check_larger_budget, learning_rate

STEP = 2048  # tokens of the nano recipes
LR = 3e-3


def nano(steps: int, schedule: str, *overrides: str) -> Recipe:
    size = f"train.tokens={STEP * steps}"
    return load_recipe("prism-micro", [size, f"optim.lr_schedule={schedule}", *overrides])


def rates(recipe: Recipe) -> list[float]:
    return [learning_rate(recipe, step) for step in range(recipe.n_steps)]


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


def test_no_warmup_begins_at_the_peak() -> None:
    recipe = load_recipe("prism-micro", "optim.warmup_fraction=0.0")
    assert learning_rate(recipe, 0) == recipe.optim.lr
    quarter = learning_rate(recipe, recipe.n_steps // 4)
    expected = 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2
    assert quarter == pytest.approx(recipe.optim.lr * expected)


def test_a_constant_rate_is_constant_after_warmup() -> None:
    recipe = nano(200, "constant")  # 5 of warmup
    assert rates(recipe) == pytest.approx([LR * n / 6 for n in range(1, 6)] + [LR] * 195)


def test_warmup_stable_decay_in_closed_form() -> None:
    recipe = nano(100, "wsd", "optim.warmup_fraction=0.04", "optim.decay_fraction=0.25")
    up = [LR * n / 5 for n in range(1, 5)]
    down = [LR * (1 - 0.9 * n / 25) for n in range(25)]  # from lr towards a tenth of it
    assert rates(recipe) == pytest.approx(up + [LR] * 71 + down)
    assert learning_rate(recipe, recipe.stable_until) == LR
    assert learning_rate(recipe, recipe.stable_until + 1) < LR


def test_shares_at_their_limits() -> None:
    flat = nano(40, "wsd", "optim.decay_fraction=0.0", "optim.warmup_fraction=0.0")
    assert rates(flat) == [LR] * 40
    tent = nano(40, "wsd", "optim.decay_fraction=0.5", "optim.warmup_fraction=0.5")
    assert rates(tent)[20] == max(rates(tent)) == LR


def test_a_constant_run_may_always_get_longer() -> None:
    for step in (0, 10):
        check_larger_budget(nano(10, "constant"), nano(20, "constant"), step)


def test_warmup_must_have_had_the_same_steps() -> None:
    short, long = nano(200, "constant"), nano(400, "constant")  # 5 and 10 of warmup
    check_larger_budget(short, long, 0)
    with pytest.raises(
        InputError,
        match=r"step 0 would have had the rate 0\.0002727, not 0\.0005: warmup took 5 steps and "
        r"would take 10; give optim\.warmup_fraction=0\.0125 as well",
    ):
        check_larger_budget(short, long, 1)
    check_larger_budget(short, nano(400, "constant", "optim.warmup_fraction=0.0125"), 200)


def test_wsd_may_get_longer_until_its_decay_begins() -> None:
    share, none = "optim.decay_fraction=0.1", "optim.warmup_fraction=0.0"
    short, long = nano(20, "wsd", none), nano(40, "wsd", none)  # decay after 16, after 32
    for step in (1, 16, 17):  # step 16, the 17th, is the last at the full rate
        check_larger_budget(short, long, step)
        check_larger_budget(short, nano(40, "wsd", none, share), step)
    for step in (18, 20):
        with pytest.raises(InputError, match=r"its decay began after step 16; stop .* --until"):
            check_larger_budget(short, long, step)


def test_a_cosine_cannot_get_longer_once_it_falls() -> None:
    with pytest.raises(InputError, match="a cosine falls"):  # whose warmup differs, too
        check_larger_budget(nano(200, "cosine"), nano(400, "cosine"), 200)
    with pytest.raises(InputError, match="warmup took 5 steps and would take 10"):
        check_larger_budget(nano(200, "cosine"), nano(400, "cosine"), 3)
    short, long = (nano(n, "cosine", "optim.warmup_fraction=0.0") for n in (20, 40))
    check_larger_budget(short, long, 1)  # its first step is at the peak, whatever the budget
    with pytest.raises(InputError, match="a cosine falls towards the end of its budget"):
        check_larger_budget(short, long, 2)


@pytest.mark.parametrize(
    ("steps", "override", "reason"),
    [
        (10, "optim.lr=1e-3", r"a run keeps its recipe; this would change .*optim\.lr"),
        (20, "train.seed=3", r"a run keeps its recipe; .*train\.seed: 0 -> 3"),
        (5, "train.seed=0", r"only get a larger train\.tokens; .*20480 -> 10240"),
        (10, "optim.decay_fraction=0.1", r"only get a larger train\.tokens"),
    ],
)
def test_nothing_else_may_change(steps: int, override: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        check_larger_budget(nano(10, "constant"), nano(steps, "constant", override), 4)
