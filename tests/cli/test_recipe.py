"""``prism show`` and ``prism recipes``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prism_transformer.cli.recipe import recipe_comments, recipe_facts
from prism_transformer.models import cost
from prism_transformer.recipes.files import load_recipe
from tests.conftest import Prism


def test_shown_recipe_is_a_recipe(prism: Prism, tmp_path: Path) -> None:
    result = prism("show", "prism-small", "optim.lr=3e-4", "model.schedule=3x2 12x10")
    (tmp_path / "mine.toml").write_text(result.stdout, "utf-8")
    recipe = load_recipe(tmp_path / "mine.toml")
    assert recipe.optim.lr == 3e-4
    assert recipe == load_recipe("prism-small", ["optim.lr=3e-4", "model.schedule=3x2 12x10"])
    assert "# parameters    123,587,328" in result.stdout


def test_shown_recipe_as_json(prism: Prism) -> None:
    shown = json.loads(prism("show", "prism-large", "--json").stdout)
    assert shown["derived"]["parameters"]["total"] == 756_819_456
    assert shown["derived"]["paper"]["hours"] == pytest.approx(8.88, abs=0.005)
    assert shown["recipe"]["model"]["schedule"] == "6x3 12x3 16x18"


def test_an_encoder_has_no_cache() -> None:
    facts = recipe_facts(load_recipe("encoder-nano"))
    assert facts["kv_bytes_per_sequence"] is None
    assert "cache" not in recipe_comments(facts).lower()
    assert "KV cache" in recipe_comments(recipe_facts(load_recipe("prism-nano")))


def test_recipes_are_listed_and_copied(prism: Prism, tmp_path: Path) -> None:
    assert "baseline-medium" in prism("recipes").stdout
    copied = json.loads(prism("recipes", "prism-medium", "--out", "a/b.toml", "--json").stdout)
    assert copied == {"wrote": "a/b.toml"}
    assert prism("recipes", "prism-medium").stdout == "wrote prism-medium.toml\n"
    assert load_recipe(tmp_path / "prism-medium.toml") == load_recipe("prism-medium")
    again = prism("recipes", "prism-medium")
    assert again.returncode == 2
    assert "exists already" in again.stderr


@pytest.mark.parametrize(
    ("scale", "time"),
    [
        (
            "small",
            "0.28 h at the paper's 2,875,000 tokens/s (31% utilisation); it prints 0.31 h, 11%",
        ),
        (
            "medium",
            "2.84 h at the paper's 1,025,000 tokens/s (31% utilisation); it prints 3.03 h, 7%",
        ),
        ("large", "8.88 h at the paper's 656,000 tokens/s (41% utilisation); it prints 9.09 h, 2%"),
    ],
)
def test_expected_hours_stand_beside_the_printed_ones(scale: str, time: str) -> None:
    comments = recipe_comments(recipe_facts(load_recipe(f"prism-{scale}")))
    assert time in comments
    assert all(line.startswith("# ") for line in comments.splitlines())
    memory = cost.memory(load_recipe(f"prism-{scale}"))
    assert f"{memory.total / 1024**3:.2f} GiB a device" in comments


@pytest.mark.parametrize(
    "change",
    [
        "model.schedule=2x6 12x6",
        "model.d_ff=4096",
        "train.tokens=262144",
        "train.precision=fp32",
        "train.micro_batch=8",
    ],
)
def test_another_run_than_the_papers_has_no_paper_time(change: str) -> None:
    recipe = load_recipe("prism-small", change)
    comments = recipe_comments(recipe_facts(recipe))
    assert "at 40% utilisation" in comments
    assert "the paper's" not in comments.splitlines()[-1]
    same = recipe_comments(recipe_facts(load_recipe("prism-small", "train.seed=7")))
    assert "0.28 h at the paper's" in same


def test_recipes_say_what_is_out_of_the_ordinary() -> None:
    facts = recipe_facts(load_recipe("prism-small", ["model.schedule=3x2 12x11 8x1"]))
    assert "# layers        14; breaks monotonicity" in recipe_comments(facts)
    heavy = recipe_facts(load_recipe("prism-large", ["train.micro_batch=64"]))
    assert "more than an 80 GB device has" in recipe_comments(heavy)


@pytest.mark.slow
def test_it_draws_builds_and_proves(prism: Prism, tmp_path: Path) -> None:
    result = prism("neutrality")
    assert result.returncode == 0, result.stderr
    for expected in ("Prism small, 124M", "16 heads |", "123,587,328", "the schedule acts"):
        assert expected in result.stdout
    assert " NO" not in result.stdout
    written = sorted(file.name for file in (tmp_path / "figures").iterdir())
    assert written == ["schedule-large.png", "schedule-medium.png", "schedule-small.png"]


def test_it_would_see_a_pair_that_is_not_neutral(
    monkeypatch: pytest.MonkeyPatch, prism_inside: Prism
) -> None:
    import torch

    from prism_transformer.models import neutrality

    seen = iter(
        neutrality.Measurement(123, "weights", 1, 2, 3, logits=torch.full((1,), float(n)))
        for n in range(2)
    )
    monkeypatch.setattr(neutrality, "measure", lambda *_: next(seen))
    result = prism_inside("neutrality")
    assert result.returncode == 1
    assert "NO" in result.stdout
