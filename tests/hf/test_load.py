"""What a name means, and reading Hugging Face folders: what is refused, and by which name."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from safetensors.torch import load_file, save_file
from transformers.utils import logging as hf_logging

from prism_transformer.core.disk import file_sha256
from prism_transformer.core.errors import InputError
from prism_transformer.hf import PrismForCausalLM, load
from prism_transformer.hf.load import (
    model_sums,
    named_model,
    named_models,
    quiet,
    read_any,
    read_model,
)
from prism_transformer.hf.pretrained import pretrained
from prism_transformer.recipe import differences
from prism_transformer.recipes.files import load_recipe
from prism_transformer.training.naming import SHIPPED, shipped_models
from prism_transformer.training.run import Run, checkpoints
from tests.hf.models import RAGGED, byte_level_tokenizer, prism


def test_a_run_by_any_spelling_is_its_newest_checkpoint(trained: Path) -> None:
    expected = named_model(str(trained))
    assert expected.checkpoint == checkpoints(trained)[-1]
    assert named_model(trained) == named_model(Run.open(trained)) == expected
    assert str(expected) == f"{trained}, step-00000020"
    assert expected.home("eval") == trained / "eval" / "step-00000020"


def test_checkpoints_by_name_with_or_without_zeros(trained: Path) -> None:
    first = checkpoints(trained)[0]
    step = int(first.name.removeprefix("step-"))
    for name in (first.name, f"step-{step}", str(step)):
        assert named_model(trained, name).checkpoint == first
    every = named_models(trained, "all")
    assert [each.checkpoint for each in every] == checkpoints(trained)
    with pytest.raises(InputError, match="has no checkpoint 'last'; it has step-"):
        named_model(trained, "last")


def test_sums_tell_checkpoints_apart(trained: Path) -> None:
    one, *_, last = map(model_sums, named_models(trained, "all"))
    assert one.keys() == last.keys()
    assert one["model.safetensors"] != last["model.safetensors"]
    weights = checkpoints(trained)[-1] / "model.safetensors"
    assert last["model.safetensors"] == file_sha256(weights)


def test_a_folder_and_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prism(**RAGGED).save_pretrained(tmp_path / "hf")
    found = named_model(tmp_path / "hf")
    assert (found.run, found.checkpoint) == (None, None)
    with pytest.raises(InputError, match="has no tokenizer"):
        model_sums(found)
    byte_level_tokenizer("some words").save_pretrained(tmp_path / "hf")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= model_sums(found).keys()
    with pytest.raises(InputError, match="--checkpoint is for runs"):
        named_models(tmp_path / "hf", "all")
    monkeypatch.setattr(load, "hub_answers", lambda: True)
    somebody = named_model("somebody/model")
    assert somebody.home("analysis") == Path("analysis/somebody--model")
    with pytest.raises(InputError, match="is neither a run nor a Hugging Face folder"):
        model_sums(named_model(tmp_path))


def test_a_tokenizer_that_is_nowhere_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "hub_answers", lambda: False)  # libraries would try for a minute
    byte_level_tokenizer("some words").save_pretrained(tmp_path / "here")
    assert load.given_tokenizer(str(tmp_path / "here"))
    (tmp_path / "file").write_text("x", "utf-8")
    for name in (str(tmp_path / "file"), "../nothing"):
        with pytest.raises(InputError, match="is no folder with a tokenizer"):
            load.given_tokenizer(name)
    with pytest.raises(InputError, match="somebody/words: there is no such folder, and the hub"):
        load.given_tokenizer("somebody/words")


def test_weights_that_are_missing_are_never_drawn_at_random(tmp_path: Path) -> None:
    prism(**RAGGED).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    for read in (partial(read_model, PrismForCausalLM), read_any):
        with pytest.raises(
            InputError, match=r"have missing keys: model\.layers\.1\.mlp\.down_proj"
        ):
            read(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(InputError, match="cannot be loaded"):
        read_any(str(tmp_path))


def test_quiet_leaves_transformers_as_it_was() -> None:
    before = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    with quiet():
        assert not hf_logging.is_progress_bar_enabled()
    assert (hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()) == before


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConnectionError

    monkeypatch.setattr(load, "get_session", refuse)
    assert not load.hub_answers()
    done = Event()
    monkeypatch.setattr(load, "get_session", done.wait)  # as where no name server answers
    monkeypatch.setattr(load, "HUB_SECONDS", 0.01)
    assert not load.hub_answers()
    done.set()


def stated_hashes() -> dict[str, str]:
    """What the README beside the models that ship says of their files."""
    text = (SHIPPED / "README.md").read_text("utf-8")
    return dict(re.findall(r"^\| (nano\S*/\S+) \| ([0-9a-f]{64}) \|$", text, re.MULTILINE))


def test_the_models_that_ship_are_what_their_readme_says() -> None:
    files = [file for folder in shipped_models().values() for file in folder.iterdir()]
    there = {file.relative_to(SHIPPED).as_posix(): file_sha256(file) for file in files}
    assert there == stated_hashes()
    assert list(shipped_models()) == ["nano", "nano-uniform"]
    assert sum(file.stat().st_size for file in files) < 5e6


@pytest.mark.parametrize(("name", "recipe"), [("nano", "prism"), ("nano-uniform", "baseline")])
def test_the_models_that_ship_are_those_of_their_recipes(name: str, recipe: str) -> None:
    kept, now = load_recipe(shipped_models()[name] / "recipe.toml"), load_recipe(f"{recipe}-nano")
    assert not differences(kept, now)
    model = pretrained(name)
    assert model.source == name
    assert model.model.config == now.model


def test_a_model_that_ships_is_named_unless_a_folder_here_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = named_model("nano-uniform")
    assert str(found) == "nano-uniform"
    assert Path(found.source) == SHIPPED / "nano-uniform"
    assert found.home("analysis") == Path("analysis") / "nano-uniform"  # never in the package
    assert model_sums(found)["model.safetensors"] == stated_hashes()[f"{found}/model.safetensors"]
    (tmp_path / "nano").mkdir()
    assert named_model("nano").source == "nano"


def test_a_mistyped_path_is_called_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    asked: list[bool] = []

    def ask() -> bool:
        asked.append(True)
        return False

    monkeypatch.setattr(load, "hub_answers", ask)
    for name in ("./nowhere", "runs/frist", "/no/where", "no/such/folder", "nowhere/", "nanoo"):
        with pytest.raises(InputError, match="there is no such run or Hugging Face folder"):
            named_model(name)
    assert not asked
    for name in ("nowhere", "run/first"):
        with pytest.raises(InputError, match=r"folder.*; and the hub cannot be reached$"):
            named_model(name)
    with pytest.raises(InputError, match=r"did you mean runs/first\?"):
        named_model("run/first")
