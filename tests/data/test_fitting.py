"""The recipe that a preparation leaves behind trains, at the first try."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.data.prepare import Preparation, prepare
from prism_transformer.recipes.files import load_recipe, recipe_toml
from prism_transformer.training.api import train
from tests.data.test_stream import write_jsonl


def test_one_text_of_ones_own_is_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("A line of a book of mine.\n" * 400, "utf-8")
    done = prepare(Preparation("book.txt", tokenizer="bytes", val_tokens=1000))
    assert done.manifest.val_tokens == 1024  # whole windows of 256
    assert done.recipe == Path("data/book/book.toml")
    small = tomllib.loads(done.recipe.read_text("utf-8"))
    assert small["model"] == {"vocab_size": 257}
    assert small["data"] == {
        "corpus": "book.txt", "tokenizer": "bytes", "folder": "data/book", "val_tokens": 1024
    }  # fmt: skip
    recipe = load_recipe(done.recipe, ["train.tokens=2048", "model.schedule=2x1"])
    run = train(recipe, "run")
    assert run.complete


def test_a_model_of_ones_own_is_fitted(tmp_path: Path) -> None:
    own = load_recipe("prism-micro", ["model.seq_len=32", "model.d_ff=64"])
    (tmp_path / "mine.toml").write_text(recipe_toml(own), "utf-8")
    corpus = write_jsonl(tmp_path / "c.jsonl", ["x" * 99] * 40)
    like = str(tmp_path / "mine.toml")
    done = prepare(Preparation(corpus, "bytes", tmp_path / "out", val_tokens=100, like=like))
    assert done.recipe is not None
    fitted = load_recipe(done.recipe)
    assert (fitted.model.d_ff, fitted.data.val_tokens, fitted.model.vocab_size) == (64, 128, 257)
    done.recipe.write_text("# changed by its owner\n", "utf-8")
    prepare(Preparation(corpus, "bytes", tmp_path / "out", val_tokens=100, like=like))
    assert done.recipe.read_text("utf-8") == "# changed by its owner\n"


def test_too_little_text_is_said(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl", ["x" * 99] * 5)
    with pytest.raises(InputError, match="leaves 243 tokens for train, less than one window"):
        prepare(Preparation(corpus, "bytes", tmp_path / "out"))
