from __future__ import annotations

from math import log2
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from prism_transformer.core.errors import InputError
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.hardware import (
    UNKNOWN,
    Alignment,
    check_hardware,
    degrees,
    layer_backends,
)
from prism_transformer.schedules.paper import presets


@pytest.mark.parametrize(
    ("width", "tile", "native", "text"),
    [
        (256, 256, True, "power of two, flash tile"),
        (96, 96, True, "flash tile"),
        (192, 192, True, "flash tile"),
        (80, 96, False, "padded to flash tile 96"),
        (16, 32, False, "padded to flash tile 32"),
        (100, 128, False, "no multiple of 8: copied and padded to flash tile 128"),
        (384, None, False, "beyond 256: no flash kernel"),
        (512, None, False, "beyond 256: no flash kernel"),
    ],
)
def test_alignment(width: int, tile: int | None, native: bool, text: str) -> None:
    kind = Alignment(width)
    assert (kind.tile, kind.native, str(kind)) == (tile, native, text)


def test_penalties_are_in_order() -> None:
    penalties = [Alignment(width).penalty for width in (128, 96, 80, 100, 384)]
    assert penalties == sorted(set(penalties))
    assert penalties[-1] > sum(penalties[:-1])


@given(st.integers(1, 4096))
def test_power_of_two_against_logarithm(width: int) -> None:
    assert Alignment(width).power_of_two == log2(width).is_integer()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("small", (1,)), ("medium", (1, 2, 4)), ("large", (1, 2)), ("baseline", (1, 2, 3, 4, 6, 12))],
)
def test_degrees_that_every_layer_admits(name: str, expected: tuple[int, ...]) -> None:
    assert degrees(presets()[name].schedule) == expected


@given(st.lists(st.integers(1, 64), min_size=1, max_size=8))
def test_degrees_against_brute_force(heads: list[int]) -> None:
    admitted = [n for n in range(1, 65) if all(h % n == 0 for h in heads)]
    assert list(degrees(HeadSchedule(tuple(heads)))) == admitted


def test_findings_name_the_layers() -> None:
    findings = {f.rule: f for f in check_hardware(presets()["config-7"].schedule, 768)}
    assert findings["flash"].layers == (0, 1)
    assert "384" in findings["flash"].reason
    assert findings["power-of-two"].layers == (0, 1, 2, 3, 4, 5)
    assert all(f.kind == "hardware" for f in findings.values())


def test_small_says_that_it_cannot_be_sharded_or_grouped() -> None:
    sharding = check_hardware(presets()["small"].schedule, 768)[-1]
    assert not sharding.ok
    assert "no tensor parallelism above 1, no constant GQA" in sharding.reason
    medium = check_hardware(presets()["medium"].schedule, 1024)[-1]
    assert medium.ok
    assert "may be 1, 2, 4 in every layer" in medium.reason


def test_the_answer_is_torchs_own() -> None:
    schedule = HeadSchedule.parse("2x1 12x1")
    assert layer_backends(schedule, 768, seq_len=64) == ("flash_attention", "flash_attention")
    with sdpa_kernel(SDPBackend.MATH):
        assert layer_backends(schedule, 768, seq_len=64) == ("math", "math")


def test_the_kernel_is_that_of_the_models_own_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch is asked is what a layer hands it: fewer keys where queries share them."""
    asked, choose = [], torch._fused_sdp_choice

    def listen(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> int:
        asked.append((tuple(q.shape), tuple(k.shape), how))
        return choose(q, k, v, **how)

    monkeypatch.setattr(torch, "_fused_sdp_choice", listen)
    schedule = HeadSchedule.parse("4x1 12x2")
    found = layer_backends(schedule, 768, seq_len=8, queries_per_kv=4, causal=False)
    assert found == ("flash_attention",) * 3
    how = {"is_causal": False, "enable_gqa": True}
    assert sorted(asked) == [
        ((1, 4, 8, 192), (1, 1, 8, 192), how),
        ((1, 12, 8, 64), (1, 3, 8, 64), how),
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device that is absent")
def test_a_device_that_is_not_here_is_unknown() -> None:
    small = presets()["small"].schedule
    assert layer_backends(small, 768, "cuda", "bfloat16") == (UNKNOWN,) * 12
    assert layer_backends(small, 768, "meta") == (UNKNOWN,) * 12


@pytest.mark.parametrize(
    ("device", "dtype"), [("abacus", "float32"), ("cpu", "int8"), ("cpu", "nn")]
)
def test_unknown_names_are_refused(device: str, dtype: str) -> None:
    with pytest.raises(InputError):
        layer_backends(HeadSchedule.parse("2x2"), 768, device, dtype)
