"""Names of models: what is refused at once, and what the hub may know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub.utils import validate_repo_id
from hypothesis import given
from hypothesis import strategies as st

from prism_transformer.core.errors import InputError
from prism_transformer.training.naming import (
    check_name,
    check_source,
    looks_local,
    nearest,
    shipped_models,
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("no model")
    return tmp_path


@pytest.mark.parametrize(
    "name", ["nano", "nano-uniform", "runs/first", "gpt2", "somebody/model", "run/first"]
)
def test_what_may_be_a_model_passes(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nanoo", r"ships \(nano, nano-uniform\); did you mean nano\?"),
        ("nano-unifrom", r"did you mean nano-uniform\?"),
        ("runs/frist", r"there is no such run or Hugging Face folder; did you mean runs/first\?"),
        ("studies/mine", "there is no such run or Hugging Face folder$"),
        ("./nowhere", "there is no such run or Hugging Face folder$"),
        ("prism-nano", "is a recipe, not a model: prism train prism-nano makes one; trained ones"),
        ("notes.txt", "is a file"),
        ("optim.lr=1e-3", "there is no such run or Hugging Face folder$"),
    ],
)
def test_what_cannot_be_a_model_is_refused(name: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        check_name(name)


@given(st.text(st.sampled_from("ab1.-_/=~ \u00e9\n"), min_size=1, max_size=8) | st.text(min_size=1))
def test_the_hub_is_asked_only_for_names_that_it_can_have(name: str) -> None:
    if not looks_local(name):
        validate_repo_id(name)


def test_a_folder_here_is_near_but_never_in_the_way_of_the_hub(here: Path) -> None:
    (here / "bert-base-cased").mkdir()
    assert nearest("bert-base-uncased") == "bert-base-cased"
    assert not looks_local("bert-base-uncased")
    check_name("bert-base-uncased")
    (here / "nanoo").mkdir()
    check_name("nanoo")
    (here / "nano").touch()
    with pytest.raises(InputError, match="nano: is a file"):
        check_name("nano")
    assert shipped_models().keys() == {"nano", "nano-uniform"}


def test_a_source_may_also_be_a_recipe() -> None:
    for name in ("nano", "runs/first", "prism-nano"):
        check_source(name)
    with pytest.raises(InputError, match=r"did you mean nano\?"):
        check_source("nanoo")
    with pytest.raises(InputError, match="no such recipe file"):
        check_source("nowhere")


def test_a_mistyped_model_is_told_before_torch_is_imported() -> None:
    line = (
        "import sys; from prism_transformer.cli import _run\n"
        "try: _run(['generate', 'nanoo'])\n"
        "except ValueError as error: print(error, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("did you mean nano? False")
