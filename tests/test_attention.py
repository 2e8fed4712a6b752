"""``Attention`` on its own, as somebody's block has it; ``test_your_model.py`` puts it into one."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from transformers import DynamicCache, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from prism_transformer import Attention, InputError, PrismLM
from prism_transformer.model import remember_in
from prism_transformer.schedule import head_counts
from tests.conftest import small_config


def stream(length: int = 12, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, length, 96, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize("queries_per_kv", [1, 4])
@pytest.mark.parametrize("n_heads", [4, 12])
@torch.no_grad()
def test_it_is_a_layer_of_llama(n_heads: int, queries_per_kv: int) -> None:
    ours = Attention(96, n_heads, queries_per_kv, rope_base=500.0).double()
    config = LlamaConfig(
        hidden_size=96,
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads // queries_per_kv,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    config._attn_implementation = "sdpa"
    theirs = LlamaAttention(config, layer_idx=0).double()
    kv = 96 // queries_per_kv
    for matrix, weight in zip(
        (theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.o_proj),
        (*ours.qkv.weight.split((96, kv, kv)), ours.out.weight),
        strict=True,
    ):
        matrix.weight.copy_(weight)
    x = 5 * stream(40, torch.float64)
    angles = LlamaRotaryEmbedding(config)(x, torch.arange(40)[None])
    expected = theirs(x, position_embeddings=angles, attention_mask=None)[0]
    torch.testing.assert_close(ours(x), expected)


@torch.no_grad()
def test_it_is_sensible_at_initialisation_for_every_head_count() -> None:
    """One position attends to itself alone, whatever the heads: then every count is the same."""
    sizes, alone = {}, []
    for n_heads in head_counts(96):
        torch.manual_seed(3)
        attention = Attention(96, n_heads)
        y = attention(stream(64))
        assert y.isfinite().all()
        sizes[n_heads] = y.std().item()
        alone.append(attention(stream(1)))
        torch.testing.assert_close(alone[-1], alone[0])
    # Torch draws entries of variance 1 / 3D, so each matrix takes a unit stream to a third of its
    # variance; the mean over many positions makes it smaller still.
    assert alone[0].std().item() == pytest.approx(1 / 3, rel=0.15)
    assert max(sizes.values()) < 1 / 3
    assert max(sizes.values()) < 1.5 * min(sizes.values())


def test_its_weights_come_from_torchs_generator_unless_a_model_draws_them() -> None:
    torch.manual_seed(1)
    one, other = Attention(96, 3), Attention(96, 3)
    torch.manual_seed(1)
    again = Attention(96, 12)  # weights do not depend on the number of heads
    assert torch.equal(one.qkv.weight, again.qkv.weight)
    assert torch.equal(one.out.weight, again.out.weight)
    assert not torch.equal(one.qkv.weight, other.qkv.weight)


@torch.no_grad()
def test_alone_it_does_what_it_does_in_the_model() -> None:
    model = PrismLM(small_config(rope_base=700.0, init_std=0.2))
    tables = model.rotary_tables(torch.arange(12))
    for layer, width in zip(model.layers, model.head_dims, strict=True):
        attention = layer.get_submodule("attention")
        assert torch.equal(attention(stream()), attention(stream(), tables[width]))


@pytest.mark.parametrize("queries_per_kv", [1, 3])
@torch.no_grad()
def test_pieces_behind_a_cache_are_the_whole(queries_per_kv: int) -> None:
    attention, cache, x = Attention(96, 6, queries_per_kv), DynamicCache(), stream()
    pieces = [
        attention(
            x[:, start:stop],
            attention.rotary_table(torch.arange(start, stop)),
            remember=remember_in(cache, 0),
        )
        for start, stop in ((0, 5), (5, 6), (6, 12))
    ]
    torch.testing.assert_close(torch.cat(pieces, 1), attention(x))
    late = attention(x[:, 5:], attention.rotary_table(torch.arange(5, 12).expand(2, 7)))
    torch.testing.assert_close(late, attention(x[:, 5:]))  # rotary positions are relative


@torch.no_grad()
def test_no_position_sees_the_future() -> None:
    attention, x = Attention(96, 4), stream()
    changed = x.clone()
    changed[:, 7] += 1
    before, after = attention(x), attention(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@torch.no_grad()
def test_bfloat16_follows_float32() -> None:
    attention = Attention(96, 3).bfloat16()
    rounded = attention(stream(512).bfloat16())
    assert rounded.dtype == torch.bfloat16
    exact = attention.float()(stream(512).bfloat16().float())
    assert (rounded.float() - exact).abs().max() / exact.abs().max() < 0.02


@torch.no_grad()
def test_exported_for_any_batch_and_length() -> None:
    attention = Attention(96, 6, queries_per_kv=2).eval()
    sizes = {0: Dim("batch"), 1: Dim("length", min=2, max=4096)}
    program = torch.export.export(attention, (stream(),), dynamic_shapes={"x": sizes}).module()
    x = stream(31)[:1].expand(3, -1, -1)
    torch.testing.assert_close(program(x), attention(x))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
@torch.no_grad()
def test_compiled_by_inductor() -> None:
    attention = Attention(96, 4, queries_per_kv=2)
    compiled = torch.compile(attention, fullgraph=True)
    torch.testing.assert_close(compiled(stream()), attention(stream()), rtol=1e-4, atol=1e-5)


def test_it_says_its_heads() -> None:
    assert "12 heads of 8, 4 of keys and values" in repr(Attention(96, 12, 3))
    text = repr(PrismLM(small_config("2x1 3x1 12x3")))
    assert "2x1 3x1 12x3 heads, 0.45M parameters" in text
    assert "(0): Layer(" in text
    assert "2 heads of 48" in text
    assert "(2-4): 3 x Layer(" in text
    assert "12 heads of 8\n" in text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((96, 5), "5 heads do not divide d_model=96; the nearest counts that fit: 4 and 6"),
        ((96, 32), "width 3, which is odd"),
        ((96, 6, 4), "queries_per_kv = 4: does not divide n_heads=6"),
    ],
)
def test_heads_that_do_not_fit_are_refused(arguments: tuple[int, ...], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Attention(*arguments)
