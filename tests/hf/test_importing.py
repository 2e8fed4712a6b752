"""Models of others: what comes in, with the loss before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaForCausalLM

from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Advance, Event
from prism_transformer.hf import PrismForCausalLM
from prism_transformer.hf.importing import (
    from_llama,
    import_model,
    read_llama,
    to_native,
    window_losses,
)
from prism_transformer.hf.load import read_config
from prism_transformer.models.weights import load_model
from prism_transformer.schedule import HeadSchedule, ScheduleError
from tests.hf.models import (
    EACH,
    EACH_UNIFORM,
    RAGGED,
    byte_level_tokenizer,
    llama_twin,
    prism,
    tokens,
)

Fields = dict[str, Any]
TEXT = "a head is a narrow view of the stream, and a stream is a wide view of the heads. " * 40


@EACH
def test_loss_of_windows_is_the_models_own(fields: Fields) -> None:
    model = prism(**fields)
    text = tokens(length=33, batch=1)[0]
    losses = list(window_losses(model, text, 8))
    assert len(losses) == 4
    window = text[8:16][None]
    assert losses[1] == pytest.approx(model(window, labels=window).loss.item())


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A Llama with a tokenizer, and a text beside it."""
    llama_twin(prism(head_schedule="12x3")).save_pretrained(tmp_path / "llama")
    byte_level_tokenizer(TEXT).save_pretrained(tmp_path / "llama")
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")
    return tmp_path / "llama"


def test_losses_before_and_after_are_the_models_own(llama: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    schedule = "2x1 6x1 12x1"
    done = import_model(
        llama, tmp_path / "out", schedule=schedule, text=tmp_path / "text.txt", tell=events.append
    )
    assert (done.llama_heads, done.n_changed, str(done.schedule)) == (12, 2, schedule)
    before = read_llama(str(llama))
    words = byte_level_tokenizer(TEXT)
    seq_len = before.config.max_position_embeddings
    ids = torch.tensor(words(TEXT, add_special_tokens=False)["input_ids"])
    windows = ids[: len(ids) // seq_len * seq_len].view(-1, seq_len)[:64]
    assert len(windows) > 1
    for model, found in (
        (before, done.loss_before),
        (from_llama(before, HeadSchedule.parse(schedule)), done.loss_after),
    ):
        with torch.no_grad():  # windows are equally long, so the mean of their means is the mean
            assert found == pytest.approx(model(windows, labels=windows).loss.item(), rel=1e-5)
    ends = [each for each in events if isinstance(each, Advance) and each.done == each.total]
    assert [each.what for each in ends] == ["loss before", "loss after"]


def test_a_prism_model_becomes_native(tmp_path: Path) -> None:
    prism(head_schedule="2x1 12x2", vocab_size=384).save_pretrained(tmp_path / "hf")
    done = import_model(str(tmp_path / "hf"), str(tmp_path / "native"))
    assert (str(done.schedule), done.n_changed, done.loss_before) == ("2x1 12x2", 0, None)
    theirs = PrismForCausalLM.from_pretrained(tmp_path / "hf")
    assert torch.equal(
        load_model(done.folder).embedding.weight, theirs.get_input_embeddings().weight
    )
    with pytest.raises(InputError, match="--schedule and --text are for Llamas"):
        import_model(tmp_path / "hf", tmp_path / "again", schedule="12x3")


def test_a_llama_needs_a_schedule(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a llama model; choose its heads per layer"):
        import_model(llama, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_native_model_has_not_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"vocab_size = 300, where native models have 384 rows"):
        to_native(prism(**RAGGED))
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
    ours = model.state_dict()
    for name, weight in llama.state_dict().items():
        assert torch.equal(weight, ours[name]), name
    assert not torch.allclose(model(tokens()).logits, llama(tokens()).logits)
    assert model.config.h_base == 12


def test_schedules_that_do_not_fit_a_llama_are_refused() -> None:
    llama = llama_twin(prism(head_schedule="12x3", queries_per_kv=3))
    with pytest.raises(ScheduleError, match="has 2 layers but the model has 3"):
        from_llama(llama, HeadSchedule.parse("12x2"))
    with pytest.raises(InputError, match="queries_per_kv = 3: layer 0 has 2 heads"):
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
    GPT2Config().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="model_type 'gpt2'"):
        read_llama(str(tmp_path))
    (tmp_path / "config.json").write_text("{broken", "utf-8")
    with pytest.raises(InputError, match="not a Hugging Face model"):
        read_config(str(tmp_path))
