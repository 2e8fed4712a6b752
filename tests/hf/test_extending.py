from __future__ import annotations

import math

import pytest
import torch
import transformers as tf

from prism_transformer.core.errors import InputError
from prism_transformer.hf.export import to_hf
from prism_transformer.hf.extending import check_context, with_rope_scaling
from prism_transformer.model import PrismLM
from tests.conftest import small_config


def windows(count: int, length: int) -> torch.Tensor:
    return torch.randint(300, (count, length + 1), generator=torch.Generator().manual_seed(0))


def test_linear_scaling_halves_the_positions() -> None:
    native = PrismLM(small_config("2x2 12x3")).eval()
    with torch.no_grad():
        for weight in native.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    model = to_hf(native)
    scaled = with_rope_scaling(model, "linear:2")
    assert scaled.config.max_position_embeddings == 128
    tokens = windows(1, 99)
    with torch.no_grad():
        expected = native(tokens, positions=torch.arange(100) / 2)
        torch.testing.assert_close(scaled(tokens).logits, expected, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(model(tokens).logits, expected, atol=1e-2)
    assert model.config.max_position_embeddings == 64  # the model that was given is as it was


def test_beyond_the_context_only_if_that_is_asked_for() -> None:
    model = to_hf(PrismLM(small_config()))
    check_context(model, 64, extrapolate=False)
    check_context(model, 65, extrapolate=True)
    with pytest.raises(InputError, match="--length 65: this model's context is 64; to go beyond"):
        check_context(model, 65, extrapolate=False)
    gpt2 = tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=30, n_embd=8, n_layer=1, n_head=1, n_positions=32)
    )
    with pytest.raises(InputError, match="has 32 learned positions, no more"):
        check_context(gpt2, 33, extrapolate=True)
    with pytest.raises(InputError, match="has no rotary positions to scale"):
        with_rope_scaling(gpt2, "linear:2")


@pytest.mark.parametrize("scaling", ["linear", "linear:x", "linear:0.5", "cubic:2", "linear:nan"])
def test_scalings_that_mean_nothing(scaling: str) -> None:
    with pytest.raises(InputError, match="write one of linear, ntk, dynamic, yarn and a factor"):
        with_rope_scaling(to_hf(PrismLM(small_config())), scaling)


def frequencies(scaling: str, **shape: object) -> dict[int, torch.Tensor]:
    """Of each head width, in radians per position; the table's factor aside."""
    model = with_rope_scaling(to_hf(PrismLM(small_config("2x1 6x1 12x1", **shape))), scaling)
    return {width: each for width, (each, _) in model.model.rotary_frequencies(None).items()}


def plain(width: int, base: float = 10_000.0) -> list[float]:
    return [base ** (-2 * pair / width) for pair in range(width // 2)]


def test_ntk_raises_the_base_of_each_width_by_itself() -> None:
    """The fastest pair as it was, the slowest interpolated, in heads 48, 16 and 8 wide alike."""
    for width, found in frequencies("ntk:4").items():
        base = 10_000.0 * 4 ** (width / (width - 2))
        assert found.tolist() == pytest.approx(plain(width, base), rel=1e-5)
        assert found[0].item() == 1.0
        assert found[-1].item() == pytest.approx(plain(width)[-1] / 4, rel=1e-4)


def test_yarn_spares_pairs_that_turn_often_and_interpolates_those_that_hardly_do() -> None:
    """By turns in the context of 64: each width has its own, and all are held to one rule."""
    for width, found in frequencies("yarn:4").items():
        for was, now in zip(plain(width), found.tolist(), strict=True):
            turns = 64 * was / (2 * math.pi)
            assert was / 4 * (1 - 1e-5) <= now <= was * (1 + 1e-5)
            if turns < 0.5:
                assert now == pytest.approx(was / 4, rel=1e-5)
        assert found[0].item() == pytest.approx(1.0)


@pytest.mark.parametrize("scaling", ["linear:2", "ntk:2", "yarn:2"])
def test_controls_deal_out_the_scaled_frequencies_of_their_own_width(scaling: str) -> None:
    narrow = frequencies(scaling)[8]
    for width, found in frequencies(scaling, rope_frequencies="tiled").items():
        repeated = narrow.repeat(width // 8)
        torch.testing.assert_close(found, repeated)
    own = with_rope_scaling(to_hf(PrismLM(small_config("1x3", h_base=1))), scaling)
    whole = own.model.rotary_frequencies(None)[96][0]
    for width, found in frequencies(scaling, rope_frequencies="split").items():
        queries = found[: 96 // width, 0]  # together those of one head as wide as all
        torch.testing.assert_close(queries.T.flatten(), whole)


@pytest.mark.parametrize("scaling", ["linear:2", "ntk:2", "yarn:2"])
def test_uniform_heads_are_scaled_as_a_llama_is(scaling: str) -> None:
    ours = with_rope_scaling(to_hf(PrismLM(small_config("6x2", h_base=6))), scaling)
    shape = {"hidden_size": 96, "num_attention_heads": 6, "num_hidden_layers": 2}
    shape |= {"vocab_size": 30, "intermediate_size": 16, "max_position_embeddings": 64}
    llama = with_rope_scaling(tf.LlamaForCausalLM(tf.LlamaConfig(**shape)), scaling)
    found, factor = ours.model.rotary_frequencies(None)[16]
    torch.testing.assert_close(found, llama.model.rotary_emb.inv_freq)
    assert factor == pytest.approx(llama.model.rotary_emb.attention_scaling)


SHAPE = {
    "vocab_size": 30, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1,
    "intermediate_size": 16, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["linear", "ntk", "yarn"])
@pytest.mark.parametrize("config", [tf.GPTNeoXConfig, tf.PhiConfig])
def test_channels_that_do_not_turn_stay_as_they_are(kind: str, config: type) -> None:
    """Of a quarter or half of each head alone, in Pythia and Phi, whose configs say so."""
    model = tf.AutoModelForCausalLM.from_config(config(**SHAPE)).eval()
    tokens = torch.randint(30, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        same = with_rope_scaling(model, f"{kind}:1")(tokens).logits
        torch.testing.assert_close(same, model(tokens).logits, rtol=0, atol=1e-5)
    inner = with_rope_scaling(model, "ntk:2").base_model
    found = inner.rotary_emb.inv_freq
    width = 2 * len(found)
    assert width == 16 * model.config.rope_parameters["partial_rotary_factor"]
    expected = plain(width, 10_000.0 * 2 ** (width / (width - 2)))
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_positions_that_are_scaled_or_differ_by_layer_are_not_scaled() -> None:
    once = with_rope_scaling(to_hf(PrismLM(small_config())), "linear:2")
    with pytest.raises(InputError, match=r"positions are scaled already \(linear\)"):
        with_rope_scaling(once, "yarn:2")
    gemma = tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(
            head_dim=16, num_key_value_heads=2, layer_types=["full_attention"], **SHAPE
        )
    )
    with pytest.raises(InputError, match="has other rotary positions in other layers"):
        with_rope_scaling(gemma, "linear:2")
