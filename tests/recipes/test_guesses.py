"""Names that other tools have: each hint is an override that loads, or says what there is."""

from __future__ import annotations

import re

import pytest

from prism_transformer.recipes.files import known_keys, load_recipe
from prism_transformer.recipes.guesses import KEYS, SAID, guessed, hint


def test_every_key_that_is_named_is_a_recipe_s() -> None:
    known = set(known_keys())
    assert set(KEYS.values()) <= known
    named = {key for text in SAID.values() for key in re.findall(r"\b[a-z]+\.\w+(?==)", text)}
    assert named
    assert named <= known


def test_no_name_is_that_of_a_key() -> None:
    names = {key.rpartition(".")[2] for key in known_keys() if "." in key}
    assert not names & KEYS.keys()
    assert names & SAID.keys() == {"compile"}  # which says its values


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers", "3"),
        ("heads", "4"),
        ("learning_rate", "1e-3"),
        ("context", "64"),
        ("warmup_ratio", "0.1"),
        ("bf16", "VALUE"),
        ("wandb", "VALUE"),
        ("no_compile", "VALUE"),
        ("save_every", "5"),
    ],
)
def test_what_a_hint_says_can_be_written(name: str, value: str) -> None:
    said = guessed(name, value)
    assert said is not None
    override = re.search(r"write '?([a-z]+\.\w+=[^',; ]+)", said)
    assert override is not None, said
    assert load_recipe("prism-micro", override[1]) != load_recipe("prism-micro")


def test_names_of_keys_and_near_ones() -> None:
    known = list(known_keys())
    assert hint("weight-decay", "0.1", known) == "write optim.weight_decay=0.1"
    assert hint("weight-deacy", "0.1", known) == "write optim.weight_decay=0.1"
    assert hint("weight-deacy", "0.1", known, near=False) is None
    assert hint("seed", "1", known) == "write train.seed=1"
    assert hint("nonsense", "1", known) is None
