from __future__ import annotations

import pytest
import torch
from torch import Tensor

from prism_transformer.analysis.both_ways import observe_both_ways
from prism_transformer.analysis.observe import STATISTICS
from prism_transformer.analysis.profile import attention_profile, layer_table
from prism_transformer.analysis.record import record
from prism_transformer.core.errors import InputError
from prism_transformer.hf.export import to_hf
from prism_transformer.model import PrismLM
from tests.conftest import small_config


def explicit(q: Tensor, k: Tensor) -> dict[str, Tensor]:
    """From the whole matrix of weights, in float64."""
    q, k = q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    length = q.shape[-2]
    t, s = torch.arange(length)[:, None], torch.arange(length)
    apart = (t - s).abs().double()

    def mean(of: Tensor) -> Tensor:
        return (weights * of).sum(-1).mean(-1)

    back, ahead, rest = (each.double().expand(length, -1) for each in (s <= t, s > t, s > 0))
    return {
        "distance": mean(apart),
        "sink": mean((s == 0).double()),
        "distance_without_sink": mean(apart * rest) / mean(rest),
        "second_moment": mean(apart.square()),
        "excess": mean(apart) - apart.mean(),
        "entropy": torch.special.entr(weights).sum(-1).mean(-1),
        "ahead": mean(ahead),
        "distance_back": mean(apart * back) / mean(back),
        "distance_ahead": mean(apart * ahead) / mean(ahead),
    }


@pytest.mark.parametrize("sharp", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("length", [2, 37, 700])  # 700 is more than one block
def test_every_statistic_against_explicit_softmax(length: int, sharp: float) -> None:
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, length, 16, generator=draw) * sharp
    k = torch.randn(2, 2, length, 16, generator=draw)
    found, exact = observe_both_ways(q, k), explicit(q, k)
    assert set(found) == set(exact) >= set(STATISTICS)
    for name, values in exact.items():
        torch.testing.assert_close(found[name], values, rtol=2e-5, atol=2e-5, msg=name)


def test_even_attention_is_where_it_should_be() -> None:
    length = 11
    found = observe_both_ways(torch.zeros(1, 1, length, 8), torch.zeros(1, 1, length, 8))
    assert found["distance"].item() == pytest.approx((length**2 - 1) / (3 * length))
    assert found["excess"].item() == pytest.approx(0, abs=1e-6)
    assert found["ahead"].item() == pytest.approx((length - 1) / (2 * length))
    assert found["entropy"].item() == pytest.approx(torch.tensor(length).log().item())


def test_an_encoder_is_measured_natively_and_as_its_export() -> None:
    model = PrismLM(small_config(attention="bidirectional"))
    tokens = torch.randint(300, (3, 40), generator=torch.Generator().manual_seed(0))
    native = record(model, [tokens]).layers()
    exported = record(to_hf(model), [tokens]).layers()
    seen: list[tuple[Tensor, Tensor]] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.append((q, k))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    with torch.no_grad():
        model(tokens, attend=attend)
    for layer, (one, two) in enumerate(zip(native, exported, strict=True)):
        exact = explicit(*seen[layer])
        for name in one:
            mean = exact[name].mean(0).numpy()
            assert one[name].heads == pytest.approx(mean, abs=1e-4)
            assert two[name].heads == pytest.approx(mean, abs=1e-4)


def test_an_encoders_table_and_figure_show_both_directions() -> None:
    tokens = torch.randint(300, (2, 20), generator=torch.Generator().manual_seed(0))
    encoder = attention_profile(PrismLM(small_config(attention="bidirectional")), [tokens])
    table = encoder.table()
    for heading, statistic in (
        ("ahead", "ahead"), ("back by", "distance_back"), ("ahead by", "distance_ahead")
    ):  # fmt: skip
        assert [float(str(x)) for x in table.values(heading)] == pytest.approx(
            encoder.means(statistic)
        )
    (ax,) = encoder.plot("distance_ahead").axes
    assert "all of 20 tokens" in ax.get_title()
    assert "ahead" in ax.get_ylabel()
    decoder = attention_profile(PrismLM(small_config()), [tokens])
    assert decoder.queries == "last half"
    with pytest.raises(InputError, match="'ahead' was not measured of causal attention"):
        layer_table([decoder], [], "ahead")
    with pytest.raises(InputError, match="attention is bidirectional and causal"):
        layer_table([encoder], [decoder], "distance")
