from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from prism_transformer.errors import InputError
from prism_transformer.hf.convert import from_llama, to_hf, to_native, window_losses
from prism_transformer.hf.folder import model_card, read_config, read_llama, write_hf
from prism_transformer.model import PrismLM, fingerprint
from prism_transformer.schedule import HeadSchedule, ScheduleError
from tests.conftest import small_config
from tests.hf.models import (
    EACH,
    EACH_UNIFORM,
    RAGGED,
    llama_twin,
    llama_weights,
    prism,
    tokens,
)

Fields = dict[str, Any]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "config",
    [small_config("1x1 2x1 3x1 4x1 6x1 12x1"), small_config("2x1 4x1 12x1", queries_per_kv=2)],
    ids=["ragged", "gqa"],
)
@torch.no_grad()
def test_native_to_hugging_face_folder_and_back(
    config: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    native = PrismLM(config, seed=3).to(dtype)
    write_hf(to_hf(native, eos_token_id=7), tmp_path / "hf")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert loaded.config.eos_token_id == loaded.generation_config.eos_token_id == 7
    text = tokens()
    relative = (loaded(text).logits - native(text)).abs().max() / native(text).abs().max()
    assert relative <= {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    back = to_native(loaded)
    assert back.config == native.config
    assert fingerprint(back) == fingerprint(native)


def test_what_a_native_model_has_not_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"tie_word_embeddings = false; .*vocab_size = 300"):
        to_native(prism(**RAGGED, tie_word_embeddings=False))
    rope = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
    with pytest.raises(InputError, match="rope_type = 'linear'"):
        to_native(prism(**RAGGED, rope_parameters=rope, vocab_size=384))


@EACH_UNIFORM
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_llama_with_its_own_heads_keeps_its_function(fields: Fields, tied: bool) -> None:
    original = prism(**fields, tie_word_embeddings=tied)
    llama = llama_twin(original)
    model = from_llama(llama, HeadSchedule.parse("12x3"))
    torch.testing.assert_close(model(tokens()).logits, llama(tokens()).logits)
    assert model.config.queries_per_kv == original.config.queries_per_kv


@torch.no_grad()
def test_llama_with_other_heads_keeps_its_weights_not_its_function() -> None:
    llama = llama_twin(prism(head_schedule="12x3"))
    model = from_llama(llama, HeadSchedule.parse("2x1 6x1 12x1"))
    before = llama.state_dict()
    for name, weight in llama_weights(model).items():
        assert torch.equal(weight, before[name]), name
    assert not torch.allclose(model(tokens()).logits, llama(tokens()).logits)
    assert model.config.h_base == 12


def test_schedules_that_do_not_fit_a_llama_are_refused() -> None:
    llama = llama_twin(prism(head_schedule="12x3", queries_per_kv=3))
    with pytest.raises(ScheduleError, match="has 2 layers but the model has 3"):
        from_llama(llama, HeadSchedule.parse("12x2"))
    with pytest.raises(ScheduleError, match="queries_per_kv = 3: layer 0 has 2 heads"):
        from_llama(llama, HeadSchedule.parse("2x1 12x2"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"attention_bias": True}, "attention_bias = true"),
        ({"mlp_bias": True}, "mlp_bias = true"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"head_dim": 16}, "head_dim = 16, where hidden_size / num_attention_heads is 8"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type = 'dynamic'",
        ),
        ({"attention_dropout": 0.1}, "attention_dropout = 0.1"),
    ],
)
def test_llamas_that_cannot_become_prism_are_refused_by_name(
    changes: Fields, problem: str, tmp_path: Path
) -> None:
    config = llama_twin(prism(head_schedule="12x3")).config
    config.update(changes)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=problem):
        read_llama(str(tmp_path))


def test_other_architectures_are_refused_by_name(tmp_path: Path) -> None:
    from transformers import GPT2Config

    GPT2Config().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="model_type 'gpt2'"):
        read_llama(str(tmp_path))
    (tmp_path / "config.json").write_text("{broken", "utf-8")
    with pytest.raises(InputError, match="not a Hugging Face model"):
        read_config(str(tmp_path))


@EACH
def test_loss_of_windows_is_the_models_own(fields: Fields) -> None:
    model = prism(**fields)
    text = tokens(length=33, batch=1)[0]
    losses = list(window_losses(model, text, 8))
    assert len(losses) == 4
    window = text[8:16][None]
    assert losses[1] == pytest.approx(model(window, labels=window).loss.item())


def test_model_card_draws_the_schedule() -> None:
    card = model_card(prism(**RAGGED), "mine", "Converted.")
    untied = prism(**RAGGED, tie_word_embeddings=False, vocab_size=30_000)
    assert f"with {untied.num_parameters() / 1e6:.1f}M parameters" in model_card(untied, "mine")
    assert "Converted." in card
    assert "# mine" in card
    assert "`1x1 2x1 3x1 4x1 6x1 12x1`" in card
    assert "   12 heads |" in card
