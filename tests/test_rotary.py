from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_transformer.model import PrismLM, rotary_frequencies, rotary_table, rotate
from tests.conftest import small_config


def test_frequencies_closed_form() -> None:
    expected = [10_000.0 ** (-2 * i / 64) for i in range(32)]
    assert rotary_frequencies(64, 10_000.0).tolist() == pytest.approx(expected, rel=1e-6)


def test_rotation_against_complex_numbers() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 50, 16, generator=draw, dtype=torch.float64)
    frequencies = rotary_frequencies(16, 10_000.0)
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
    frequencies = rotary_frequencies(32, 10_000.0)

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
    exact = [math.cos(1023 * f) - math.sin(1023 * f) for f in rotary_frequencies(96, 1e4).tolist()]
    assert (turned[0, 0, -1, :48].float() - torch.tensor(exact)).abs().max() < 0.02


def test_tables_follow_the_device_of_the_positions() -> None:
    model = PrismLM(small_config("2x1 12x1"))
    for table in model.rotary_tables(torch.arange(8, device="meta")).values():
        assert table.device.type == "meta"
    shapes = {w: tuple(t.shape) for w, t in model.rotary_tables(torch.arange(8)).items()}
    assert shapes == {48: (2, 8, 24), 8: (2, 8, 4)}


@pytest.mark.parametrize("width", [8, 16, 24, 32, 96])
def test_tiled_frequencies_are_the_base_widths_repeated(width: int) -> None:
    base = rotary_frequencies(16, 10_000.0)
    tiled = rotary_frequencies(width, 10_000.0, period=16)
    assert tiled.tolist() == [base[i % 8].item() for i in range(width // 2)]
    per_width = rotary_frequencies(width, 10_000.0)
    assert torch.equal(tiled, per_width) == (width == 16)


@torch.no_grad()
def test_tiling_changes_wide_heads_and_only_them() -> None:
    text = torch.randint(300, (1, 32), generator=torch.Generator().manual_seed(0))

    def logits(schedule: str, rope_frequencies: str) -> torch.Tensor:
        return PrismLM(small_config(schedule, rope_frequencies=rope_frequencies))(text)

    assert torch.equal(logits("12x3", "tiled"), logits("12x3", "per-width"))
    assert not torch.allclose(logits("2x1 12x2", "tiled"), logits("2x1 12x2", "per-width"))
