"""Text from whatever a user named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from prism_transformer import generate
from prism_transformer.core.errors import InputError
from prism_transformer.training.generate import generate as generate_from_run
from prism_transformer.training.naming import shipped_models

ROOT = Path(__file__).parents[2]


def test_a_run_speaks_as_it_does_alone(trained: Path) -> None:
    how: dict[str, Any] = {"tokens": 12, "seed": 3}
    assert generate(trained, "The ", **how).text == generate_from_run(trained, "The ", **how).text


def test_a_model_that_ships_speaks_as_transformers_has_it() -> None:
    pieces: list[str] = []
    made = generate("nano", "My fellow citizens", tokens=20, temperature=0, stream=pieces.append)
    folder = shipped_models()["nano"]
    words = AutoTokenizer.from_pretrained(folder)
    begin = words("My fellow citizens", return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = model.generate(**begin, max_new_tokens=20, do_sample=False)[0]
    assert made.text == words.decode(tokens) == "".join(pieces)
    assert made.n_tokens == 20
    assert made.text.count(" ") >= 8  # words, after 1,536 steps


def test_seeds_tell_texts_apart_and_both_models_are_there() -> None:
    def text(name: str, seed: int) -> str:
        return generate(name, "The", tokens=10, seed=seed).text

    assert text("nano", 1) == text("nano", 1)
    assert len({text("nano", 1), text("nano", 2), text("nano-uniform", 1)}) == 3
    nothing = generate("nano", "The", tokens=0)
    assert (nothing.text, nothing.n_tokens) == ("The", 0)  # as for runs


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"seed": -1}, "--seed -1: give a number from 0"),
        ({"seed": 2**63}, "give a number from 0"),
        ({"prompt": "\udcff"}, "--prompt: is not UTF-8 text"),
    ],
)
def test_what_cannot_be_drawn_is_said_for_runs_and_other_models(
    trained: Path, wrong: dict[str, Any], reason: str
) -> None:
    for source in (trained, "nano"):
        with pytest.raises(InputError, match=reason):
            generate(source, **{"tokens": 2, **wrong})


def test_no_model_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism_transformer.hf.load.hub_answers", lambda: False)
    with pytest.raises(InputError, match=r"nanu: there is no .* ships \(nano, nano-uniform\)"):
        generate("nanu")


@pytest.mark.slow
def test_an_installed_wheel_speaks_without_a_network(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "HF_HUB_OFFLINE": "1"}
    python = [sys.executable, "-m"]
    wheel = [*python, "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(wheel, cwd=ROOT, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.whl")
    install = [
        *python,
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "site"),
    ]
    subprocess.run([*install, str(built)], check=True, capture_output=True)
    code = (
        "import prism_transformer as p; print(p.__file__); "
        "print(p.generate('nano', 'We the people', tokens=8))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    place, text = done.stdout.split("\n", 1)
    assert Path(place).is_relative_to(tmp_path / "site"), done.stderr
    assert text.startswith("We the people")
