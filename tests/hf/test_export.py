"""Folders that stand alone, of runs, native models and recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from prism_transformer.core.errors import InputError
from prism_transformer.data.tokenizer import open_tokenizer
from prism_transformer.hf.export import (
    END_OF_TEXT,
    Opened,
    as_hf,
    export,
    model_card,
    to_hf,
    to_hf_tokenizer,
    write_hf,
)
from prism_transformer.hf.importing import to_native
from prism_transformer.hf.load import named_model
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import fingerprint, load_model, save_model
from prism_transformer.training.naming import shipped_models
from prism_transformer.training.run import Run, checkpoints
from tests.conftest import small_config
from tests.hf.models import RAGGED, prism, tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "config",
    [
        small_config("1x1 2x1 3x1 4x1 6x1 12x1"),
        small_config("2x1 4x1 12x1", queries_per_kv=2),
        small_config("2x1 4x1 12x1", tied_embeddings=False),
    ],
    ids=["ragged", "gqa", "untied"],
)
@torch.no_grad()
def test_native_to_hugging_face_folder_and_back(
    config: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    native = PrismLM(config, seed=3).to(dtype)
    write_hf(Opened(to_hf(native, eos_token_id=7)), tmp_path / "hf")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert loaded.config.eos_token_id == loaded.generation_config.eos_token_id == 7
    text = tokens()
    relative = (loaded(text).logits - native(text)).abs().max() / native(text).abs().max()
    assert relative <= {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    back = to_native(loaded)
    assert back.config == native.config
    assert fingerprint(back) == fingerprint(native)


def test_a_model_that_ships_is_exported_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    export("nano", "hf")
    shipped = load_file(shipped_models()["nano"] / "model.safetensors")
    written = load_file("hf/model.safetensors")
    assert shipped.keys() == written.keys()
    assert all(torch.equal(shipped[name], written[name]) for name in shipped)
    with pytest.raises(InputError, match="nano: is a trained model; --seed is for recipes"):
        export("nano", "again", seed=1)


def test_model_card_draws_the_schedule() -> None:
    card = model_card(prism(**RAGGED), "mine", "Converted.")
    untied = prism(**RAGGED, tie_word_embeddings=False, vocab_size=30_000)
    assert f"with {untied.num_parameters() / 1e6:.1f}M parameters" in model_card(untied, "mine")
    assert "Converted." in card
    assert "# mine" in card
    assert "`1x1 2x1 3x1 4x1 6x1 12x1`" in card
    assert "   12 heads |" in card


def test_model_card_says_which_tools_run_the_folder() -> None:
    narrow, wide = prism(**RAGGED), prism(head_schedule="1x1 3x1")
    assert "vllm serve" in model_card(wide, "mine")
    assert "vLLM pads heads 8 wide to 32, 16 wide to 32" in model_card(narrow, "mine")
    assert "pads" not in model_card(wide, "mine")
    assert "model.gguf --gguf" in model_card(wide, "mine")
    assert "import prism_transformer.hf" in model_card(wide, "mine")
    assert "trust_remote_code=True" in model_card(wide, "mine", form="code")
    assert "Whatever runs a Llama" in model_card(prism(head_schedule="3x2"), "mine", form="llama")


def test_a_hugging_face_folder_is_exported_again(tmp_path: Path) -> None:
    model = prism(**RAGGED)
    write_hf(Opened(model), tmp_path / "one")
    done = export(tmp_path / "one", tmp_path / "two")
    assert done.head_dims == (96, 48, 32, 24, 16, 8)
    again = AutoModelForCausalLM.from_pretrained(done.folder)
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)


@torch.no_grad()
def test_a_run_becomes_a_folder_with_its_tokenizer_and_numbers(
    trained: Path, tmp_path: Path
) -> None:
    out = export(Run.open(trained), tmp_path / "hf").folder
    loaded = AutoModelForCausalLM.from_pretrained(out)
    text = "a head"
    words = AutoTokenizer.from_pretrained(out)(text, return_tensors="pt")["input_ids"]
    assert words.tolist() == [list(text.encode())]  # this run's tokens are bytes
    native = load_model(checkpoints(trained)[-1])
    torch.testing.assert_close(loaded(words).logits, native(words))
    assert "Trained for 20 of 20 steps" in (out / "README.md").read_text("utf-8")
    with pytest.raises(InputError, match="exists already"):
        export(trained, out)


def test_a_seed_is_for_recipes_only(trained: Path, tmp_path: Path) -> None:
    save_model(PrismLM(small_config(), seed=2), tmp_path / "native")
    for source in (trained, tmp_path / "native"):
        with pytest.raises(InputError, match="--seed is for recipes"):
            export(source, tmp_path / "hf", seed=1)
    assert not (tmp_path / "hf").exists()


def test_an_older_checkpoint_for_other_libraries_goes_afterwards(trained: Path) -> None:
    step = checkpoints(trained)[0]
    with as_hf(named_model(trained, step.name)) as folder:
        loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert not Path(folder).exists()
    assert torch.equal(loaded.get_input_embeddings().weight, load_model(step).embedding.weight)


@pytest.mark.parametrize(
    "text",
    [
        "A head is a narrow view, isn't it?",
        "  two spaces,\ttabs\n\nand lines  ",
        "naïve façade: 1234 + 5.6, 你好 and \U0001f308",
    ],
)
def test_bytes_are_the_same_tokens(text: str, tmp_path: Path) -> None:
    ours = open_tokenizer("bytes", tmp_path)
    theirs = to_hf_tokenizer(ours, 64)
    found = theirs(text, add_special_tokens=False)["input_ids"]
    assert found == list(text.encode()) == ours.encode_batch([text])[0].tolist()
    assert theirs.decode(found) == text
    assert theirs.eos_token_id == ours.end_of_text
    assert theirs(END_OF_TEXT, add_special_tokens=False)["input_ids"] == [ours.end_of_text]
