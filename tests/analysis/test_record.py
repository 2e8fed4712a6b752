"""Means, errors and ranks against direct computation; other models against transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from torch import Tensor

from prism_transformer import PrismLM
from prism_transformer.analysis.profile import Profile, attention_profile
from prism_transformer.analysis.record import Array, record
from prism_transformer.core.errors import InputError
from prism_transformer.hf.export import to_hf
from prism_transformer.model import ATTENTION, causal_attention
from prism_transformer.recipe import AttentionKind
from prism_transformer.training.device import compile_layers
from tests.analysis.models import model_of, some_tokens
from tests.conftest import small_config


def test_one_batch_or_many_give_the_same(profile: Profile) -> None:
    singly = attention_profile(model_of(), some_tokens(6).split(1), effective_rank=True)
    for statistic in profile.statistics:
        for one, other in zip(profile.layers, singly.layers, strict=True):
            assert one[statistic].heads == pytest.approx(other[statistic].heads, rel=1e-4)
            assert one[statistic].layer_error == pytest.approx(
                other[statistic].layer_error, rel=1e-3, nan_ok=True
            )


def test_standard_errors_are_those_of_the_sequences(profile: Profile) -> None:
    singles = [attention_profile(model_of(), [each]) for each in some_tokens(6).split(1)]
    by_sequence = np.stack([single.means() for single in singles])
    expected = by_sequence.std(0, ddof=1) / 6**0.5
    errors = [layer["distance"].layer_error for layer in profile.layers]
    assert errors == pytest.approx(expected, rel=1e-3)
    assert np.isnan(singles[0].layers[0]["distance"].layer_error)


def test_effective_rank_of_known_outputs(profile: Profile) -> None:
    outputs: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outputs.append(causal_attention(q, k, v))
        return outputs[-1]

    with torch.no_grad():
        model_of()(some_tokens(6), attend=attend)
    for layer, y in enumerate(outputs):
        for head in range(y.shape[1]):
            rows = y[:, head, 24:].flatten(0, 1).double().numpy()
            values = np.linalg.svd(rows, compute_uv=False) ** 2
            shares = values / values.sum()
            rank = np.exp(-(shares * np.log(shares + 1e-300)).sum())
            found = profile.layers[layer]["effective_rank"].heads[head]
            assert found == pytest.approx(rank, rel=1e-3)


def test_measuring_changes_nothing_and_compiled_layers_are_measured_too() -> None:
    tokens = some_tokens(2)
    plain, compiled = model_of(), model_of()
    compile_layers(compiled)
    plain.train()
    before = plain(tokens)
    one = attention_profile(plain, [tokens])
    assert plain.training
    assert torch.equal(plain(tokens), before)
    other = attention_profile(compiled, [tokens])
    assert other.means() == pytest.approx(one.means(), rel=1e-6)


def test_what_cannot_be_averaged_is_refused() -> None:
    with pytest.raises(InputError, match="no sequence was measured"):
        record(model_of(), []).layers()
    with pytest.raises(InputError, match="sequences of 16 and 8 tokens cannot be averaged"):
        record(model_of(), [some_tokens(1, 16), some_tokens(1, 8)])
    with pytest.raises(InputError, match="sequences of 65 tokens; this model's context is 64"):
        record(model_of(), [some_tokens(1, 65)])


SIZE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GQA = SIZE | {"num_key_value_heads": 2}

MODELS: dict[str, Any] = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**GQA)),
    "gpt2": lambda: tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=96, n_embd=32, n_layer=3, n_head=4, n_positions=64)
    ),
    "qwen2": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**GQA)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**GQA, head_dim=8)),
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(**GQA, sliding_window=12)),
    "gemma": lambda: tf.GemmaForCausalLM(tf.GemmaConfig(**GQA, head_dim=16)),
    "gemma3": lambda: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(
            **GQA,
            head_dim=16,
            sliding_window=10,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    ),
    "gpt_neox": lambda: tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**SIZE)),
    "prism": lambda: to_hf(PrismLM(small_config("2x2 12x3"))),
}


def tokens(length: int = 40, sequences: int = 3) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(96, (sequences, length), generator=draw)


def sharpened(model: Any) -> Any:
    """With random weights of the usual size every head is uniform; these differ."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(4)
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_transformers_own_weights(name: str) -> None:
    torch.manual_seed(0)
    model = sharpened(MODELS[name]())
    x = tokens()
    profile = attention_profile(model, [x[:2], x[2:]])
    assert model.config._attn_implementation != "prism_measure"
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(x, output_attentions=True).attentions
    assert profile.n_sequences == 3
    assert profile.schedule == tuple(each.shape[1] for each in weights)
    t = torch.arange(x.shape[1])
    back = (t[:, None] - t).double()
    for layer, each in enumerate(weights):
        half = each.double()[:, :, x.shape[1] // 2 :]
        expected = {
            "distance": (half * back[x.shape[1] // 2 :]).sum(-1).mean(-1),
            "sink": half[..., 0].mean(-1),
            "entropy": torch.special.entr(half).sum(-1).mean(-1),
        }
        for statistic, values in expected.items():
            found = profile.layers[layer][statistic]
            assert found.heads == pytest.approx(values.mean(0).numpy(), abs=2e-5), statistic
            by_sequence = values.mean(1)
            error = by_sequence.std().item() / 3**0.5
            assert found.layer == pytest.approx(by_sequence.mean().item(), abs=2e-5)
            assert found.layer_error == pytest.approx(error, abs=2e-5)


def test_the_models_own_output_is_not_changed() -> None:
    model = sharpened(MODELS["llama"]())
    x = tokens()
    with torch.no_grad():
        before = model(x).logits
        attention_profile(model, [x])
        assert torch.equal(model(x).logits, before)


REFUSED: dict[str, tuple[Any, str]] = {
    "softcap": (
        lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**GQA, head_dim=16)),
        "layer 0 caps its scores",
    ),
    "sinks": (
        lambda: tf.GptOssForCausalLM(
            tf.GptOssConfig(**GQA, head_dim=8, num_local_experts=2, num_experts_per_tok=1)
        ),
        "layer 0 adds sinks to its softmax",
    ),
    "alibi": (
        lambda: tf.BloomForCausalLM(
            tf.BloomConfig(vocab_size=96, hidden_size=32, n_layer=3, n_head=4)
        ),
        "BloomForCausalLM: its attention cannot be measured",
    ),
    "state space": (
        lambda: tf.MambaForCausalLM(
            tf.MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2)
        ),
        "MambaForCausalLM: its attention cannot be measured",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_measured_is_refused_by_name(name: str) -> None:
    make, message = REFUSED[name]
    model = make()
    before = model.config._attn_implementation
    with pytest.raises(InputError, match=message):
        attention_profile(model, [tokens()])
    assert model.config._attn_implementation == before


def test_other_modules_long_sequences_and_unequal_lengths() -> None:
    with pytest.raises(InputError, match="Linear: is neither a Prism model"):
        attention_profile(torch.nn.Linear(2, 2), [tokens()])
    model = MODELS["llama"]()
    with pytest.raises(InputError, match="sequences of 65 tokens; this model's context is 64"):
        attention_profile(model, [tokens(65)])
    with pytest.raises(InputError, match="sequences of 40 and 41 tokens"):
        attention_profile(model, [tokens(40), tokens(41)])
    with pytest.raises(InputError, match="no sequence was measured"):
        attention_profile(model, [])


def sums_alone(model: PrismLM, document: Tensor, first: int) -> list[dict[str, Array]]:
    """Of each layer, sums over the queries from ``first`` on of a document that is read alone."""
    causal = model.config.attention == "causal"
    layers: list[dict[str, Array]] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q[0].double() @ k[0].double().mT * q.shape[-1] ** -0.5
        t = torch.arange(len(document))
        seen = (t <= t[:, None]) | (not causal)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        even = (seen / seen.sum(-1, keepdim=True)).double()
        apart = (t[:, None] - t).abs().double()
        each = {
            "distance": weights * apart,
            "sink": weights * (t == 0),
            "second_moment": weights * apart.square(),
            "excess": (weights - even) * apart,
            "entropy": torch.special.entr(weights),
            "rest": weights * (t > 0),
            "rest_distance": weights * apart * (t > 0),
            "ahead": weights * (t > t[:, None]),
        }
        layers.append({name: x[:, first:].sum((-1, -2)).numpy() for name, x in each.items()})
        return ATTENTION[model.config.attention](q, k, v)

    with torch.no_grad():
        model(document[None], attend=attend)
    return layers


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_isolated_documents_are_measured_as_if_alone(attention: AttentionKind) -> None:
    """One window of three documents: the mean over its queries is that of each document's own."""
    model = PrismLM(small_config(attention=attention))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    end, first = 299, 24 if attention == "causal" else 0
    text = some_tokens(1)[0] % 290
    text[[5, 30]] = end
    found = record(model, [text[None]], end_of_text=end).layers()
    alone = [
        sums_alone(model, text[begin:stop], max(0, first - begin))
        for begin, stop in ((0, 5), (5, 30), (30, 48))
    ]
    for own, parts in zip(found, zip(*alone, strict=True), strict=True):
        exact = {name: sum(part[name] for part in parts) / (48 - first) for name in parts[0]}
        exact["distance_without_sink"] = exact["rest_distance"] / exact["rest"]
        for name in set(exact) & set(own):
            assert own[name].heads == pytest.approx(exact[name], abs=2e-4), name
        assert ("ahead" in own) == (attention == "bidirectional")
