from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from prism_transformer.models.sampling import sample
from tests.hf.models import EACH, EACH_UNIFORM, RAGGED, llama_twin, prism, tokens
from tests.hf.test_modeling_prism import native_twin

Fields = dict[str, Any]

METHODS: dict[str, Fields] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 20, "temperature": 1.3},
    "beams": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    "static cache": {"do_sample": False, "cache_implementation": "static"},
    "chunked prefill": {"do_sample": False, "prefill_chunk_size": 5},
    "no cache": {"do_sample": False, "use_cache": False},
}
LENGTH: Fields = {"max_new_tokens": 12, "min_new_tokens": 12}


def continued(model: Any, prompt: Tensor, **options: Any) -> Any:
    torch.manual_seed(0)
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), **(LENGTH | options))


@EACH_UNIFORM
@pytest.mark.parametrize("method", METHODS)
def test_uniform_model_generates_as_llama(fields: Fields, method: str) -> None:
    model = prism(**fields)
    llama = llama_twin(model)
    prompt = tokens(length=11)
    ours, theirs = (continued(m, prompt, **METHODS[method]) for m in (model, llama))
    assert torch.equal(ours, theirs)


@EACH
@pytest.mark.parametrize("method", ["greedy", "static cache", "chunked prefill", "no cache"])
def test_every_greedy_way_equals_the_native_one(fields: Fields, method: str) -> None:
    model = prism(**fields, eos_token_id=None)
    prompt = tokens(length=11)
    options = METHODS[method] | {"eos_token_id": None, "min_new_tokens": None}
    expected = sample(native_twin(model), prompt, 12, temperature=0.0)
    assert torch.equal(continued(model, prompt, **options), expected)


@EACH
def test_static_cache_with_chunks_and_early_initialization(fields: Fields) -> None:
    model = prism(**fields)
    expected = continued(model, tokens(), do_sample=False)
    cache: Any = StaticCache(config=model.config, max_cache_len=40)
    layers = model.config.layer_fields()
    cache.early_initialization(
        batch_size=2,
        num_heads=[layer["num_key_value_heads"] for layer in layers],
        head_dim=[layer["head_dim"] for layer in layers],
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    shapes = [layer.keys.shape for layer in cache.layers]
    assert shapes == [(2, layer["num_key_value_heads"], 40, layer["head_dim"]) for layer in layers]
    found = continued(model, tokens(), do_sample=False, past_key_values=cache, prefill_chunk_size=5)
    assert torch.equal(found, expected)
    static = continued(
        model, tokens(), do_sample=False, cache_implementation="static", prefill_chunk_size=4
    )
    assert torch.equal(static, expected)


@EACH
@pytest.mark.parametrize("method", ["beams", "sampling"])
def test_beams_and_samples_do_not_depend_on_the_cache(fields: Fields, method: str) -> None:
    model = prism(**fields)
    cached = continued(model, tokens(), **METHODS[method])
    assert torch.equal(cached, continued(model, tokens(), **METHODS[method], use_cache=False))


@EACH
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_left_padded_batches_equal_unpadded_ones(fields: Fields, attention: str) -> None:
    model = prism(**fields)
    model.set_attn_implementation(attention)
    long, short = tokens(length=12, batch=1), tokens(length=7, batch=1, seed=1)
    padded = torch.cat((torch.zeros(1, 5, dtype=torch.long), short), dim=1)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, :5] = 0
    together = model.generate(
        torch.cat((long, padded)), attention_mask=mask, do_sample=False, **LENGTH
    )
    assert torch.equal(together[:1], continued(model, long, do_sample=False))
    assert torch.equal(together[1:, 5:], continued(model, short, do_sample=False))


@EACH
def test_assisted_decoding_changes_nothing(fields: Fields) -> None:
    model = prism(**fields)
    assistant = prism(seed=1, head_schedule="3x1 12x1")
    prompt = tokens(batch=1)
    expected = continued(model, prompt, do_sample=False)
    assert torch.equal(
        continued(model, prompt, do_sample=False, assistant_model=assistant), expected
    )
    assert torch.equal(
        continued(model, prompt, do_sample=False, prompt_lookup_num_tokens=3), expected
    )


def outputs_of(model: Any, **options: Any) -> Any:
    model.set_attn_implementation("eager")
    return continued(
        model,
        tokens(),
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        output_attentions=True,
        output_hidden_states=True,
        **options,
    )


@EACH
@pytest.mark.parametrize("assisted", [False, True])
def test_all_outputs_of_generate_follow_each_layer(fields: Fields, assisted: bool) -> None:
    model = prism(**fields)
    heads = model.config.schedule.heads
    options: Fields = {"do_sample": False}
    if assisted:
        # One sequence at a time is what assisted decoding takes.
        model.set_attn_implementation("eager")
        out = model.generate(
            tokens(batch=1),
            attention_mask=torch.ones(1, 12, dtype=torch.long),
            assistant_model=prism(seed=1, head_schedule="3x1 12x1"),
            return_dict_in_generate=True,
            output_scores=True,
            output_attentions=True,
            output_hidden_states=True,
            **options,
            **LENGTH,
        )
    else:
        out = outputs_of(model, **options)
    assert len(out.scores) == 12
    assert len(out.attentions) == 12
    batch = 1 if assisted else 2
    for step, layers in enumerate(out.attentions):
        queries = 12 if step == 0 else 1
        shapes = [(batch, h, queries, 12 + step) for h in heads]
        assert [a.shape for a in layers] == shapes
    assert all(len(step) == len(heads) + 1 for step in out.hidden_states)
    grouped = model.config.queries_per_kv
    assert [layer[0].shape[1] for layer in out.past_key_values] == [h // grouped for h in heads]


@EACH_UNIFORM
def test_all_outputs_of_generate_equal_llamas(fields: Fields) -> None:
    model = prism(**fields)
    ours, theirs = (outputs_of(m, do_sample=False) for m in (model, llama_twin(model)))
    for name in ("sequences", "scores", "logits", "attentions", "hidden_states"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_padding_of_the_vocabulary_is_never_generated(method: str) -> None:
    model = prism(**RAGGED, vocab_size=384, num_tokens=300)
    with torch.no_grad():
        model.get_input_embeddings().weight[300:] *= 20  # make the padding loud
    assert continued(model, tokens(), **METHODS[method]).max() < 300
    assisted = continued(
        model, tokens(batch=1), do_sample=False, assistant_model=model, max_new_tokens=20
    )
    assert assisted.max() < 300


def test_a_processor_of_the_caller_is_kept() -> None:
    from transformers import LogitsProcessorList, SuppressTokensLogitsProcessor

    model = prism(**RAGGED, vocab_size=384, num_tokens=300)
    banned = list(range(10, 300))
    processors = LogitsProcessorList([SuppressTokensLogitsProcessor(banned)])
    assert continued(model, tokens(), logits_processor=processors)[:, 12:].max() < 10
    assert len(processors) == 1
    # And so is transformers' own processor of the same kind.
    assert continued(model, tokens(), suppress_tokens=banned)[:, 12:].max() < 10


@torch.no_grad()
def test_a_dynamic_cache_continues_across_calls() -> None:
    model = prism(**RAGGED)
    cache = DynamicCache(config=model.config)
    text = tokens(length=20)
    pieces = [
        model(text[:, start:stop], past_key_values=cache).logits
        for start, stop in ((0, 9), (9, 10), (10, 20))
    ]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(text).logits, rtol=1e-5, atol=1e-4)
