"""Statistics of attention against the explicit softmax, closed forms and a hand-computed case."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prism_transformer.analysis.observe import STATISTICS, observe


def explicit(q: Tensor, k: Tensor, window: int | None = None) -> dict[str, Tensor]:
    """The same in float64, from all T x T weights."""
    q, k = q.double(), k.double()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    t = torch.arange(q.shape[-2])
    back = t[:, None] - t
    hidden = back < 0
    if window is not None:
        hidden |= back >= window
    weights = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    uniform = (~hidden).double() / (~hidden).sum(-1, keepdim=True)
    weights, half = weights[..., len(t) // 2 :, :], slice(len(t) // 2, None)
    back, uniform = back[half], uniform[half]
    rest = weights[..., 1:]
    return {
        "distance": (weights * back).sum(-1).mean(-1),
        "sink": weights[..., 0].mean(-1),
        "distance_without_sink": (rest * back[:, 1:]).sum((-1, -2)) / rest.sum((-1, -2)),
        "second_moment": (weights * back**2).sum(-1).mean(-1),
        "excess": ((weights - uniform) * back).sum(-1).mean(-1),
        "entropy": torch.special.entr(weights).sum(-1).mean(-1),
    }


def test_a_case_by_hand() -> None:
    # Three positions of width 1; the last half is queries 1 and 2.
    q = torch.tensor([0.0, math.log(3), 0.0]).view(1, 1, 3, 1)
    k = torch.tensor([1.0, 0.0, 5.0]).view(1, 1, 3, 1)
    found = observe(q, k, scale=1.0)
    # Query 1: scores log 3 and 0, weights 3/4, 1/4. Query 2: scores 0, weights 1/3 each.
    expected = {
        "distance": (3 / 4 + (2 + 1) / 3) / 2,
        "sink": (3 / 4 + 1 / 3) / 2,
        "distance_without_sink": (1 / 3) / (1 / 4 + 2 / 3),
        "second_moment": (3 / 4 + (4 + 1) / 3) / 2,
        "excess": ((3 / 4 - 1 / 2) + 0) / 2,
        "entropy": (math.log(4) - 3 / 4 * math.log(3) + math.log(3)) / 2,
    }
    assert set(found) == set(STATISTICS) == set(expected)
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value, abs=1e-6), name


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(2, 70),
    width=st.sampled_from([2, 6, 16, 33]),
    groups=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
    sharpness=st.sampled_from([0.0, 1.0, 6.0]),
    window=st.sampled_from([None, 1, 5, 1000]),
    seed=st.integers(0, 1000),
)
def test_equals_the_explicit_softmax(
    length: int,
    width: int,
    groups: tuple[int, int],
    sharpness: float,
    window: int | None,
    seed: int,
) -> None:
    draw = torch.Generator().manual_seed(seed)
    q = torch.randn(2, groups[0], length, width, generator=draw) * sharpness
    k = torch.randn(2, groups[1], length, width, generator=draw) * sharpness
    found, expected = observe(q, k, window=window), explicit(q, k, window)
    for name in STATISTICS:
        if name == "distance_without_sink" and expected["sink"].max() > 0.9999:
            continue  # nothing else is looked at: 0 / 0
        torch.testing.assert_close(found[name], expected[name], rtol=2e-5, atol=2e-4, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_over_several_blocks_at_the_papers_length(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 3, 1024, 64, generator=draw, dtype=torch.float32) * 1.5 for _ in "qk")
    q, k = q.to(dtype), k.to(dtype)
    found, expected = observe(q, k), explicit(q, k)
    assert (found["distance"] - expected["distance"]).abs().max() < 1e-3
    for name in STATISTICS:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-4, msg=name)


@pytest.mark.parametrize("mean", [2.0, 50.0])
def test_second_moments_hold_at_sixteen_thousand_positions(mean: float) -> None:
    # A head whose weights fall off geometrically: every moment is known.
    length, ratio = 16384, mean / (1 + mean)
    s = torch.arange(length, dtype=torch.float64)
    q, k = torch.zeros(2, 1, 1, length, 8)
    q[..., :2] = 1.0
    # In two columns: one float32 number cannot hold a slope over so many positions.
    k[..., 0] = (-math.log(ratio) * (s // 64 * 64)).float()
    k[..., 1] = (-math.log(ratio) * (s % 64)).float()
    found = observe(q, k, scale=1.0)
    assert found["distance"].item() == pytest.approx(mean, rel=1e-3)
    second = ratio * (1 + ratio) / (1 - ratio) ** 2
    assert found["second_moment"].item() == pytest.approx(second, rel=1e-2)
    entropy = -(math.log(1 - ratio) + mean * math.log(ratio))
    assert found["entropy"].item() == pytest.approx(entropy, rel=1e-3)


def test_entropy_survives_scores_far_apart() -> None:
    # The diagonal scores -300, the first key +300: no exponential in sight is representable.
    q = torch.ones(1, 1, 64, 1)
    k = torch.full((1, 1, 64, 1), -300.0)
    k[..., 0, 0] = 300.0
    found = observe(q, k, scale=1.0)
    assert found["sink"].item() == pytest.approx(1.0)
    assert found["entropy"].item() == pytest.approx(0.0, abs=1e-4)


def test_uniform_attention_has_no_excess() -> None:
    q = torch.zeros(1, 2, 100, 4)
    found = observe(q, q)
    assert found["excess"].abs().max() < 1e-5
    expected = sum(math.log(t + 1) for t in range(50, 100)) / 50
    torch.testing.assert_close(found["entropy"], torch.full((1, 2), expected, dtype=torch.float64),
                               rtol=1e-6, atol=0)  # fmt: skip
