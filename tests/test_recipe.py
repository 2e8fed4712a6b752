from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from prism_transformer.core.errors import InputError
from prism_transformer.recipe import ModelConfig, Recipe
from prism_transformer.recipes.files import RecipeError, load_recipe
from tests.conftest import small_config


@pytest.mark.parametrize(
    ("scale", "steps", "warmup", "tokens", "on_eight"),
    [
        ("small", 11_000, 275, 2_883_584_000, 1),
        ("medium", 40_000, 1_000, 10_485_760_000, 1),
        ("large", 40_000, 1_000, 20_971_520_000, 4),
    ],
)
def test_derived_numbers_of_the_paper(
    scale: str, steps: int, warmup: int, tokens: int, on_eight: int
) -> None:
    recipe = load_recipe(f"prism-{scale}")
    assert (recipe.n_steps, recipe.warmup_steps) == (steps, warmup)
    assert recipe.n_steps * recipe.train.batch_tokens == tokens == recipe.train.tokens
    assert recipe.accumulation(8) == on_eight
    assert recipe.accumulation(1) == 8 * on_eight
    assert recipe.accumulation(7) is None


def test_vocabulary_is_padded_to_whole_tiles() -> None:
    assert small_config(vocab_size=50257).vocab_rows == 50304
    assert small_config(vocab_size=256).vocab_rows == 256
    assert small_config(vocab_size=1).vocab_rows == 128


def test_a_config_is_frozen() -> None:
    with pytest.raises(ValidationError):
        small_config().d_model = 5


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"d_model": 100}, "schedule = 2x1 3x1 6x1 12x2: layer 1: 3 heads do not divide"),
        ({"h_base": 5}, "h_base = 5: does not split d_model=96 into heads of even width"),
        ({"queries_per_kv": 2}, "queries_per_kv = 2: layer 1 has 3 heads"),
        ({"rope_frequencies": "flat"}, "ModelConfig: rope_frequencies = 'flat': .*per-width"),
        ({"norm_eps": 0.0}, r"ModelConfig: norm_eps = 0\.0: .*greater than 0"),
        ({"n_layer": 12}, "ModelConfig: n_layer: unknown key; known: schedule, d_model, h_base"),
        ({"dmodel": 96}, r"ModelConfig: dmodel: unknown key; did you mean d_model\?"),
        ({"d_model": "96"}, "ModelConfig: d_model = '96': .*integer; write digits only"),
    ],
)
def test_models_that_cannot_be_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem) as refused:
        small_config(**changes)
    assert len(str(refused.value).splitlines()) == 1
    assert refused.value.__cause__ is None


def test_a_whole_made_of_parts_still_says_where_in_it_something_is_wrong() -> None:
    parts = load_recipe("prism-micro").model_dump()
    parts["optim"] |= {"lr": -1.0, "rate": 2}
    with pytest.raises(InputError) as refused:
        Recipe(**parts)
    lines = str(refused.value).splitlines()
    assert lines[0] == "Recipe: optim.lr = -1.0: Input should be greater than 0"
    assert lines[1].startswith("Recipe: optim.rate: unknown key")


def test_shares_of_a_run_that_overlap_are_refused() -> None:
    changes = ["optim.warmup_fraction=0.6", "optim.decay_fraction=0.5"]
    assert load_recipe("prism-micro", changes)  # a cosine has no decay of its own
    with pytest.raises(
        RecipeError, match=r"warmup_fraction = 0\.6 and decay_fraction = 0\.5 are more"
    ):
        load_recipe("prism-micro", [*changes, "optim.lr_schedule=wsd"])


def test_schedule_field_reads_every_notation() -> None:
    for text in ("2x1 12x2", "2,12,12", [2, 12, 12]):
        config = ModelConfig(schedule=text, d_model=96, h_base=12, d_ff=160)
        assert config.schedule.heads == (2, 12, 12)


@pytest.mark.parametrize("name", ["nano", "micro", "small", "medium", "large"])
def test_a_model_needs_only_its_schedule_and_its_width(name: str) -> None:
    written = load_recipe(f"prism-{name}").model
    derived = ModelConfig(schedule=written.schedule, d_model=written.d_model)
    assert (derived.h_base, derived.d_ff) == (written.h_base, written.d_ff)


def test_what_would_be_derived_from_a_wrong_value_is_not_blamed(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('[model]\nschedule = "2y2"\nd_model = 64\n')
    with pytest.raises(RecipeError) as refused:
        load_recipe(file)
    assert "model.schedule = '2y2'" in str(refused.value)
    assert "d_ff" not in str(refused.value)
    with pytest.raises(InputError, match=r"^ModelConfig: schedule = '2y2': cannot read [^\n]*$"):
        ModelConfig(schedule="2y2", d_model=64)
