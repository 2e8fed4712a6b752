"""Flags that people guess: each works, or its error names what does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prism_transformer.cli.overrides import Short, joined, recipe_and_overrides, schedule_text
from prism_transformer.core.errors import InputError
from prism_transformer.recipes.files import load_recipe
from tests.conftest import Prism


def test_thin_names_are_the_overrides_they_stand_for() -> None:
    short = Short(schedule=("2x2", "8x6"), seed=1, steps=200, lr=1e-3)
    name, overrides = recipe_and_overrides("prism-micro", ["train.batch_tokens=4096"], short)
    plain = ["train.batch_tokens=4096", "model.schedule=2x2 8x6", "train.seed=1", "optim.lr=1e-3"]
    assert load_recipe(name, overrides) == load_recipe(name, [*plain, "train.tokens=819200"])
    assert load_recipe(name, overrides).n_steps == 200


def test_overrides_alone_change_the_usual_recipe() -> None:
    assert recipe_and_overrides("train.seed=1", ["optim.lr=1e-3"]) == (
        "prism-micro", ["train.seed=1", "optim.lr=1e-3"]
    )  # fmt: skip


def test_a_schedule_needs_no_quotes() -> None:
    assert joined(["model.schedule=3x2", "12x10", "train.seed=1"]) == [
        "model.schedule=3x2 12x10", "train.seed=1"
    ]  # fmt: skip
    assert joined(["train.seed=1", "12x10"]) == ["train.seed=1", "12x10"]
    assert schedule_text(["small"]) == "small"
    with pytest.raises(InputError, match="'prism-small': is no part of a schedule"):
        schedule_text(["3x2", "12x10", "prism-small"])


def test_a_schedule_without_quotes_on_the_command_line(prism_inside: Prism) -> None:
    one = prism_inside("schedule", "show", "3x2", "12x10", "--d-model", "768", "--json")
    two = prism_inside("schedule", "show", "3x2 12x10", "--d-model", "768", "--json")
    assert one.returncode == 0, one.stderr
    assert one.stdout == two.stdout
    flags = ("--schedule", "2x2", "8x6", "--seed", "1", "--steps", "3", "--lr", "1e-3", "--json")
    shown = prism_inside("show", "prism-micro", *flags)
    assert json.loads(shown.stdout)["derived"]["steps"] == 3


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("train --sed 1", "Did you mean --seed?"),
        (
            "train --batch-tokens 512",
            "--batch-tokens: no such option; write train.batch_tokens=512",
        ),
        ("train --learning-rate=1e-3", "write optim.lr=1e-3"),
        ("resume run --seed 1", "write train.seed=1"),
        ("study run demo --lr 1e-3", "write optim.lr=1e-3"),
        ("study run demo --seed 1", "write --seeds 1"),
        ("study run demo --steps 200", "train.tokens=N, N being 200 x train.batch_tokens"),
        ("train train.steps=200", "200 steps of 2048 tokens are train.tokens=409600"),
        ("train --steps 0", "--steps 0: give at least 1"),
        ("generate run --temprature 1", "Did you mean --temperature?"),
        ("trian", 'Did you mean "train"?'),
        ("train --layers 3", "write model.schedule=8x3, 3 layers of 8 heads each"),
        ("train --batch-size 8", "write train.batch_tokens=N, N being 8 x model.seq_len"),
        ("train --recipe prism-micro", "write prism train prism-micro"),
        ("train --gpus 2", "write torchrun --nproc-per-node 2 -m prism_transformer train"),
        ("train --dim 64", "write model.d_model=64"),
        ("train --no-compile", "write train.compile=off"),
        ("train lr=1e-3", "cannot read override 'lr=1e-3'; write optim.lr=1e-3"),
        ("train model.layers=3", "unknown key; a model's layers are those of its schedule"),
        ("train nano", "did you mean 'prism-nano', 'encoder-nano' or 'baseline-nano'?"),
        ("train --schedule 3x2 12x10 --data texts", "`prism prepare texts` makes shards"),
        ("prepare --input texts", "write prism prepare texts"),
        ("prepare texts --vocab 512", "write --tokenizer bpe:512"),
        ("generate nano --length 5", "write --tokens 5"),
        ("generate --model nano", "write prism generate nano"),
        ("generate nano some words", "`prism generate` takes no more words"),
        ("generate", "See prism generate --help"),
        ("study demo", "Write prism study run demo"),
        ("study run nan", "did you mean 'nano'?"),
        ("schedule small", "Write prism schedule show small"),
        ("schedule 3x2 12x10", "Write prism schedule show 3x2 12x10"),
        ("bench prism-micro", "Write prism bench schedules prism-micro"),
        ("train --verbose", "See prism train --help"),
        ("train --steps many", "'many' is not a whole number"),
        ("train --warmup 10", "write optim.warmup_fraction=F, F being 10 / steps"),
        ("export nanoo out", "did you mean nano?"),
        ("train --from nanoo", "did you mean nano?"),
        ("version", "Write prism --version"),
        ("help trian", 'Did you mean "train"?'),
    ],
)
def test_what_is_unknown_gets_a_hint_that_works(
    prism_inside: Prism, tmp_path: Path, line: str, hint: str
) -> None:
    done = prism_inside(*line.split())
    assert done.returncode == 2
    assert hint in done.stderr
    assert not list(tmp_path.iterdir())


def test_help_is_a_command_too(prism_inside: Prism) -> None:
    assert prism_inside("help", "train").stdout == prism_inside("train", "--help").stdout
    assert "prepare" in prism_inside("help").stdout


@pytest.mark.parametrize("command", ["analyze", "eval", "study run", "study submit", "import"])
def test_no_option_to_make_a_list_empty(prism_inside: Prism, command: str) -> None:
    assert "--empty" not in prism_inside(*command.split(), "--help").stdout
