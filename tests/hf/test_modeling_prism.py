"""Uniform models against transformers' Llama; ragged ones against the native model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from prism_transformer.core.errors import InputError
from prism_transformer.hf import PrismForCausalLM, PrismModel
from prism_transformer.hf.load import read_any
from prism_transformer.hf.names import SCHEDULE, to_native_names
from prism_transformer.model import PrismLM
from prism_transformer.schedule import ScheduleError
from tests.hf.models import (
    EACH,
    EACH_UNIFORM,
    RAGGED,
    llama_twin,
    prism,
    prism_config,
    tokens,
)

Fields = dict[str, Any]


def native_twin(model: Any) -> PrismLM:
    """The native model with the same weights; its embedding has padding rows."""
    native = PrismLM(model.config.native)
    weights = to_native_names(model.state_dict())
    weights.pop("lm_head.weight")
    weights.pop("head_schedule")
    rows = torch.zeros_like(native.embedding.weight)
    rows[: model.config.vocab_size] = weights["embedding.weight"]
    native.load_state_dict(weights | {"embedding.weight": rows})
    return native.to(model.dtype)


@EACH_UNIFORM
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_uniform_model_equals_llama_in_every_output(fields: Fields, attention: str) -> None:
    model = prism(**fields)
    llama = llama_twin(model)
    model.set_attn_implementation(attention)
    llama.set_attn_implementation(attention)
    asked = {"output_hidden_states": True, "output_attentions": attention == "eager"}
    ours, theirs = (m(tokens(), labels=tokens(), **asked) for m in (model, llama))
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(ours.loss, theirs.loss)
    torch.testing.assert_close(ours.hidden_states, theirs.hidden_states, rtol=1e-5, atol=1e-4)
    if attention == "eager":
        torch.testing.assert_close(ours.attentions, theirs.attentions, rtol=1e-5, atol=1e-5)
    for one, other in zip(ours.past_key_values, theirs.past_key_values, strict=True):
        torch.testing.assert_close(one[:2], other[:2], rtol=1e-5, atol=1e-5)


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_ragged_model_equals_the_native_one_after_save_and_load(
    fields: Fields, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = prism(**fields).to(dtype)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, PrismForCausalLM)
    assert loaded.dtype == dtype
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)
    native = native_twin(model)(tokens())[..., :300]
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    relative = (loaded(tokens()).logits - native).abs().max() / native.abs().max()
    assert relative <= tolerance
    body = AutoModel.from_pretrained(tmp_path)
    assert isinstance(body, PrismModel)
    hidden = loaded(tokens(), output_hidden_states=True).hidden_states[-1]
    assert torch.equal(body(tokens()).last_hidden_state, hidden)


@EACH
@torch.no_grad()
def test_outputs_follow_each_layers_own_heads(fields: Fields) -> None:
    model = prism(**fields)
    model.set_attn_implementation("eager")
    out = model(tokens(), output_attentions=True, output_hidden_states=True)
    heads = model.config.schedule.heads
    assert [a.shape for a in out.attentions] == [(2, h, 12, 12) for h in heads]
    assert [h.shape for h in out.hidden_states] == [(2, 12, 96)] * (len(heads) + 1)
    grouped = model.config.queries_per_kv
    assert [layer[0].shape for layer in out.past_key_values] == [
        (2, h // grouped, 12, 96 // h) for h in heads
    ]
    for weights in out.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert (weights.triu(1) == 0).all()


@EACH
@torch.no_grad()
def test_eager_equals_sdpa(fields: Fields) -> None:
    model = prism(**fields)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :4] = 0
    logits = []
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        logits.append(model(tokens(), attention_mask=mask).logits[mask.bool()])
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-4)


@EACH
def test_gradient_checkpointing_changes_no_gradient(fields: Fields) -> None:
    plain, frugal = prism(**fields).train(), prism(**fields).train()
    frugal.gradient_checkpointing_enable()
    for model in (plain, frugal):
        model(tokens(), labels=tokens()).loss.backward()
    for one, other in zip(plain.parameters(), frugal.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@EACH
@torch.no_grad()
def test_resize_token_embeddings(fields: Fields) -> None:
    model = prism(**fields, vocab_size=384, num_tokens=300)
    before = model(tokens()).logits
    model.resize_token_embeddings(320, pad_to_multiple_of=64, mean_resizing=False)
    assert (model.config.vocab_size, model.config.num_tokens) == (320, 320)
    assert torch.equal(model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    torch.testing.assert_close(model(tokens()).logits, before[..., :320])
    model.resize_token_embeddings(390, pad_to_multiple_of=64, mean_resizing=False)
    assert (model.config.vocab_size, model.config.num_tokens) == (448, 390)
    plain = prism(**fields)
    plain.resize_token_embeddings(None, 128)
    assert (plain.config.vocab_size, plain.config.num_tokens) == (384, 300)


@pytest.mark.slow
@EACH
@torch.no_grad()
def test_compiles_as_one_graph(fields: Fields) -> None:
    torch._dynamo.reset()
    model = prism(**fields)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for use_cache in (None, False):
        expected = model(tokens(), use_cache=use_cache).logits
        torch.testing.assert_close(compiled(tokens(), use_cache=use_cache).logits, expected)


@torch.no_grad()
def test_embeddings_may_be_given_instead_of_tokens() -> None:
    model = prism(**RAGGED)
    embedded = model.get_input_embeddings()(tokens())
    assert torch.equal(model(inputs_embeds=embedded).logits, model(tokens()).logits)
    with pytest.raises(ValueError, match="exactly one"):
        model()


@torch.no_grad()
def test_logits_to_keep_and_tuples() -> None:
    model = prism(**RAGGED)
    full = model(tokens()).logits
    torch.testing.assert_close(model(tokens(), logits_to_keep=3).logits, full[:, -3:])
    assert torch.equal(model(tokens(), return_dict=False)[0], full)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_heads_survive(tied: bool, tmp_path: Path) -> None:
    model = prism(**RAGGED, tie_word_embeddings=tied)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)


def test_file_has_llamas_names(tmp_path: Path) -> None:
    model = prism(head_schedule="12x3", queries_per_kv=3, tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    theirs = llama_twin(model).state_dict()
    assert written.keys() == {*theirs, SCHEDULE}
    assert all(torch.equal(written[name], weight) for name, weight in theirs.items())


def test_initial_weights_have_the_native_spread() -> None:
    model: Any = PrismForCausalLM(
        prism_config(hidden_size=384, intermediate_size=1024, head_schedule="2x2 12x2")
    )
    layer = model.model.layers[0]
    assert layer.self_attn.q_proj.weight.std().item() == pytest.approx(0.02, rel=0.03)
    for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
        assert weight.std().item() == pytest.approx(0.02 / 8**0.5, rel=0.03)
    assert (model.model.norm.weight == 1).all()


def test_weights_are_not_loaded_under_another_schedule_unnoticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = prism(**RAGGED)
    model.save_pretrained(tmp_path)
    other = AutoModelForCausalLM.from_pretrained(tmp_path, head_schedule="12x6")
    assert "Loading weights of head_schedule 1x1 2x1 3x1 4x1 6x1 12x1 under 12x6" in caplog.text
    assert other.config.num_attention_heads == 12
    assert not torch.allclose(other(tokens()).logits, model(tokens()).logits)

    file = tmp_path / "config.json"
    edited = json.loads(file.read_text("utf-8")) | {"head_schedule": "12x6"}
    file.write_text(json.dumps(edited), "utf-8")
    with pytest.raises(ScheduleError, match="these weights belong to head_schedule 1x1 2x1"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    config = prism_config(head_schedule="12x6")
    with pytest.raises(ScheduleError, match="these weights belong"):
        PrismForCausalLM.from_pretrained(tmp_path, config=config)
    # What the message advises works, once: consent does not outlive the load.
    meant = AutoModelForCausalLM.from_pretrained(tmp_path, head_schedule="12x6")
    assert torch.equal(meant(tokens()).logits, other(tokens()).logits)
    model.save_pretrained(tmp_path / "ragged")
    with pytest.raises(ScheduleError, match="these weights belong"):
        PrismForCausalLM.from_pretrained(tmp_path / "ragged", config=meant.config)
    # Saved again, the weights belong to the new schedule.
    other.save_pretrained(tmp_path / "new")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    assert torch.equal(again(tokens()).logits, other(tokens()).logits)


@pytest.mark.parametrize("base", [False, True])
def test_state_dicts_of_another_schedule_are_refused(base: bool) -> None:
    ragged, uniform = prism(**RAGGED), prism(head_schedule="12x6")
    if base:
        ragged, uniform = ragged.model, uniform.model
    with pytest.raises(ScheduleError, match="these weights belong to head_schedule 1x1 2x1"):
        uniform.load_state_dict(ragged.state_dict())
    uniform.load_state_dict(prism(head_schedule="12x6").base_model.state_dict(), strict=base)


def test_weights_that_do_not_say_their_schedule_take_the_configs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = prism(**RAGGED)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    del weights[SCHEDULE]
    save_file(weights, file, {"format": "pt"})
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] == {SCHEDULE}
    assert "that of the config, 1x1 2x1 3x1 4x1 6x1 12x1, is taken" in caplog.text
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)
    # Ours are stricter: what is measured must be known.
    with pytest.raises(InputError, match=r"missing keys: model\.head_schedule\.heads"):
        read_any(str(tmp_path))


def test_another_number_of_layers_is_refused(tmp_path: Path) -> None:
    prism(**RAGGED).save_pretrained(tmp_path)
    with pytest.raises(ScheduleError, match="another number of layers"):
        AutoModelForCausalLM.from_pretrained(
            tmp_path, head_schedule="12x5", ignore_mismatched_sizes=True
        )


@EACH
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("given", [False, True], ids=["by-name", "with-config"])
def test_folders_with_the_native_names_still_load(
    fields: Fields, tied: bool, given: bool, tmp_path: Path
) -> None:
    model = prism(**fields, tie_word_embeddings=tied)
    model.generation_config.max_length = 77
    model.save_pretrained(tmp_path)
    weights = to_native_names(load_file(tmp_path / "model.safetensors"))
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    options = {"config": AutoConfig.from_pretrained(tmp_path)} if given else {}
    loaded, info = PrismForCausalLM.from_pretrained(tmp_path, output_loading_info=True, **options)
    assert not any(info.values())
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)
    assert loaded.generation_config.max_length == 77
    hidden = model(tokens(), output_hidden_states=True).hidden_states[-1]
    assert torch.equal(AutoModel.from_pretrained(tmp_path)(tokens()).last_hidden_state, hidden)
    other = prism_config(**(fields | {"head_schedule": f"12x{len(model.model.layers)}"}))
    with pytest.raises(ScheduleError, match="these weights belong to head_schedule"):
        PrismForCausalLM.from_pretrained(tmp_path, config=other)
    loaded.save_pretrained(tmp_path / "new")
    assert SCHEDULE in load_file(tmp_path / "new" / "model.safetensors")


@pytest.mark.parametrize("schedule", ["12x5", "12x7", "5x6"])
def test_schedules_that_do_not_fit_the_weights_are_refused(schedule: str, tmp_path: Path) -> None:
    prism(**RAGGED).save_pretrained(tmp_path)
    with pytest.raises((InputError, RuntimeError)):
        AutoModelForCausalLM.from_pretrained(tmp_path, head_schedule=schedule)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ],
    ids=lambda scaling: scaling["rope_type"],
)
@torch.no_grad()
def test_scaled_rope_equals_llama_and_is_scaled_per_width(scaling: Fields) -> None:
    rope = {"rope_theta": 10_000.0, **scaling}
    model = prism(head_schedule="12x3", rope_parameters=dict(rope))
    llama = llama_twin(model)
    theirs = llama(tokens(length=60)).logits
    torch.testing.assert_close(model(tokens(length=60)).logits, theirs, rtol=1e-5, atol=1e-4)
    ragged = prism(head_schedule="2x1 12x2", rope_parameters=dict(rope))
    tables = ragged.model.rotary_tables(torch.arange(60)[None])
    alone = prism(head_schedule="2x3", rope_parameters=dict(rope))
    torch.testing.assert_close(tables[48], alone.model.rotary_tables(torch.arange(60)[None])[48])


@torch.no_grad()
@pytest.mark.parametrize(
    "control",
    [
        {"rope_frequencies": "tiled"},
        {"rope_frequencies": "split"},
        {"rope_frequencies": "split", "queries_per_kv": 2},
        {"attention_scale": "base"},
        {"norm": "layernorm"},
    ],
    ids=str,
)
def test_controls_equal_the_native_model(control: dict[str, Any]) -> None:
    model = prism(head_schedule="2x1 12x2", **control)
    native = native_twin(model)(tokens())[..., :300]
    torch.testing.assert_close(model(tokens()).logits, native, rtol=1e-5, atol=1e-4)
    plain = prism(head_schedule="2x1 12x2", queries_per_kv=control.get("queries_per_kv", 1))
    assert not torch.allclose(plain(tokens()).logits, native)
