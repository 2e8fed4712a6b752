"""Estimates of a GPU's step against arithmetic by hand."""

from __future__ import annotations

import pytest

from prism_transformer.bench.estimate import step_parts, tokens_per_second
from prism_transformer.recipes.files import load_recipe
from prism_transformer.schedules.paper import scales


def test_a_small_step_by_hand() -> None:
    found = step_parts(load_recipe("prism-small"))
    tokens, matrices, vocabulary = 32_768, 84_934_656, 50_304  # 12 x (4 + 8) x 768^2
    assert found.products == pytest.approx(6 * tokens * matrices / 600e9)
    assert found.attention == pytest.approx(7 * tokens * 1024 * 768 * 12 / 300e9)
    three_products = 3 * 2 * tokens * vocabulary * 768 / 600e9
    assert found.loss == pytest.approx(three_products + 10e9 / 3e9)
    assert found.elementwise == pytest.approx(12 * 3.37e9 / 3e9)


def test_before_it_was_what_a_reading_of_the_generated_code_gave() -> None:
    """Milliseconds of the loss: 55, 57 and 137 at the three scales, counted by hand."""
    for name, expected in {"small": 55, "medium": 57, "large": 137}.items():
        found = step_parts(load_recipe(f"prism-{name}"), before=True)
        assert found.loss == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", scales())
def test_the_schedule_does_not_enter(name: str) -> None:
    prism, uniform = (load_recipe(f"{arm}-{name}") for arm in ("prism", "baseline"))
    assert tokens_per_second(prism) == tokens_per_second(uniform)
