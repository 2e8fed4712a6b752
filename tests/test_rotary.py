from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_transformer.model import (
    Attention,
    PrismLM,
    rotary_frequencies,
    rotary_table,
    rotate,
)
from prism_transformer.models.sampling import sample
from tests.conftest import small_config


def frequencies_of(width: int, **changes: Any) -> torch.Tensor:
    """Those of a layer whose heads are that wide, in a model of d_model 96."""
    return rotary_frequencies(small_config("1x1", **changes), 96 // width)


def test_frequencies_closed_form() -> None:
    expected = [10_000.0 ** (-2 * i / 48) for i in range(24)]
    assert frequencies_of(48).tolist() == pytest.approx(expected, rel=1e-6)


def test_rotation_against_complex_numbers() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 50, 16, generator=draw, dtype=torch.float64)
    frequencies = frequencies_of(16)
    turned = rotate(x, rotary_table(torch.arange(50), frequencies))
    angles = torch.outer(torch.arange(50, dtype=torch.float32), frequencies)
    turns = torch.polar(torch.ones_like(angles, dtype=torch.float64), angles.double())
    product = torch.complex(x[..., :8], x[..., 8:]) * turns
    torch.testing.assert_close(
        turned, torch.cat((product.real, product.imag), dim=-1), rtol=1e-6, atol=1e-6
    )


@settings(deadline=None)
@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 400))
def test_scores_depend_on_distance_alone(m: int, n: int, shift: int) -> None:
    draw = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 1, 32, generator=draw, dtype=torch.float64)
    frequencies = frequencies_of(32)

    def turned(x: torch.Tensor, position: int) -> torch.Tensor:
        return rotate(x, rotary_table(torch.tensor([position]), frequencies))

    here = (turned(q, m) * turned(k, n)).sum()
    there = (turned(q, m + shift) * turned(k, n + shift)).sum()
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-4)  # angles are float32


def test_angles_survive_bfloat16_models() -> None:
    model = PrismLM(small_config("1x1 12x1")).bfloat16()
    tables = model.rotary_tables(torch.arange(1024))
    assert {table.dtype for table in tables.values()} == {torch.float32}
    turned = rotate(torch.ones(1, 1, 1024, 96, dtype=torch.bfloat16), tables[96])
    exact = [math.cos(1023 * f) - math.sin(1023 * f) for f in frequencies_of(96).tolist()]
    assert (turned[0, 0, -1, :48].float() - torch.tensor(exact)).abs().max() < 0.02


def test_tables_follow_the_device_of_the_positions() -> None:
    model = PrismLM(small_config("2x1 12x1"))
    for table in model.rotary_tables(torch.arange(8, device="meta")).values():
        assert table.device.type == "meta"
    shapes = {w: tuple(t.shape) for w, t in model.rotary_tables(torch.arange(8)).items()}
    assert shapes == {48: (2, 8, 24), 8: (2, 8, 4)}


@pytest.mark.parametrize("width", [8, 16, 24, 32, 96])
def test_tiled_frequencies_are_the_base_widths_repeated(width: int) -> None:
    base = frequencies_of(16)
    tiled = frequencies_of(width, rope_frequencies="tiled", h_base=6)
    assert tiled.tolist() == [base[i % 8].item() for i in range(width // 2)]
    assert torch.equal(tiled, frequencies_of(width)) == (width == 16)


@torch.no_grad()
def test_tiling_changes_wide_heads_and_only_them() -> None:
    text = torch.randint(300, (1, 32), generator=torch.Generator().manual_seed(0))

    def logits(schedule: str, rope_frequencies: str) -> torch.Tensor:
        return PrismLM(small_config(schedule, rope_frequencies=rope_frequencies))(text)

    assert torch.equal(logits("12x3", "tiled"), logits("12x3", "per-width"))
    assert not torch.allclose(logits("2x1 12x2", "tiled"), logits("2x1 12x2", "per-width"))


@pytest.mark.parametrize(("n_heads", "queries_per_kv"), [(1, 1), (4, 1), (12, 1), (8, 2), (12, 4)])
def test_split_frequencies_are_those_of_one_wide_head(n_heads: int, queries_per_kv: int) -> None:
    config = small_config("12x1", rope_frequencies="split", queries_per_kv=queries_per_kv)
    found = rotary_frequencies(config, n_heads)[:, 0]
    n_kv_heads, d_kv = n_heads // queries_per_kv, 96 // queries_per_kv
    wide = [10_000.0 ** (-2 * i / d_kv) for i in range(d_kv // 2)]
    queries, keys = found.split((n_heads, n_kv_heads))
    # Together the keys turn at every speed of the wide head, each at one of every n_kv_heads.
    for head, mine in enumerate(keys.tolist()):
        assert mine == pytest.approx(wide[head::n_kv_heads], rel=1e-6)
    for head, mine in enumerate(queries):  # a query turns as the keys it meets
        assert torch.equal(mine, keys[head // queries_per_kv])


@torch.no_grad()
@pytest.mark.parametrize("queries_per_kv", [1, 2])
def test_a_split_layer_against_head_by_head(queries_per_kv: int) -> None:
    """Each head by itself, turned by complex numbers at its own speeds."""
    config = small_config("4x1", h_base=4, rope_frequencies="split", queries_per_kv=queries_per_kv)
    model = PrismLM(config).double()
    x = torch.randn(1, 10, 96, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    attention = model.layers[0].get_submodule("attention")
    assert isinstance(attention, Attention)
    q, k, _ = attention.project(x, model.rotary_tables(torch.arange(10))[24])
    plain = attention.qkv(x)[0].unflatten(-1, (-1, 24)).transpose(0, 1)  # (heads, T, K)
    speeds = rotary_frequencies(config, 4)[:, 0].double()
    for head, turned in enumerate([*q[0], *k[0]]):
        angles = torch.outer(torch.arange(10, dtype=torch.float64), speeds[head])
        pairs = torch.complex(plain[head, :, :12], plain[head, :, 12:])
        expected = pairs * torch.polar(torch.ones_like(angles), angles)
        torch.testing.assert_close(
            turned, torch.cat((expected.real, expected.imag), -1), rtol=1e-5, atol=1e-6
        )


@torch.no_grad()
def test_splitting_changes_narrow_heads_and_only_them() -> None:
    text = torch.randint(300, (1, 32), generator=torch.Generator().manual_seed(0))

    def logits(schedule: str, rope_frequencies: str) -> torch.Tensor:
        return PrismLM(small_config(schedule, rope_frequencies=rope_frequencies))(text)

    torch.testing.assert_close(logits("1x2", "split"), logits("1x2", "per-width"))
    assert not torch.allclose(logits("1x1 12x2", "split"), logits("1x1 12x2", "per-width"))


@torch.no_grad()
def test_split_decoding_equals_reading_it_all_at_once() -> None:
    model = PrismLM(small_config("2x1 12x2", rope_frequencies="split", init_std=0.2)).double()
    text = torch.randint(300, (2, 9), generator=torch.Generator().manual_seed(0))
    written = sample(model, text, 12, temperature=0.0)
    for end in range(9, 21):
        best = model(written[:, :end])[:, -1, :300].argmax(-1)
        assert torch.equal(best, written[:, end])
