"""Profiles: streaming, ragged heads, JSON, frames, figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from prism_transformer import PrismLM
from prism_transformer.analysis.chart import check_comparable, profile_rows
from prism_transformer.analysis.profile import Profile, attention_profile
from prism_transformer.errors import InputError
from prism_transformer.model import causal_attention
from prism_transformer.train.device import compile_layers
from tests.conftest import small_config

RAGGED = "1x1 2x1 3x1 12x2"


def some_tokens(n: int, length: int = 48) -> Tensor:
    return torch.randint(300, (n, length), generator=torch.Generator().manual_seed(0))


def model_of(schedule: str = RAGGED) -> PrismLM:
    model = PrismLM(small_config(schedule)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    return model


@pytest.fixture(scope="module")
def profile() -> Profile:
    tokens = some_tokens(6)
    return attention_profile(model_of(), [tokens[:4], tokens[4:]], effective_rank=True)


def test_heads_are_ragged_and_every_statistic_is_there(profile: Profile) -> None:
    assert profile.schedule == (1, 2, 3, 12, 12)
    assert profile.widths == small_config(RAGGED).head_dims
    assert profile.n_sequences == 6
    assert profile.n_progressive == 3
    frame = profile.to_frame()
    assert len(frame) == sum(profile.schedule)
    assert list(frame[frame.layer == 2]["head"]) == [0, 1, 2]
    for statistic in profile.statistics:
        means = frame.groupby("layer")[statistic].mean().to_numpy()
        assert profile.means(statistic) == pytest.approx(means, rel=1e-9)


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


def test_json_comes_back_whole(profile: Profile, tmp_path: Path) -> None:
    file = tmp_path / "attention.json"
    file.write_text(json.dumps({"profile": profile.to_json()}, allow_nan=False))
    again = Profile.read(file)
    assert again.to_json() == profile.to_json()
    file.write_text("{}")
    with pytest.raises(InputError, match="is no attention profile"):
        Profile.read(file)


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


def test_rows_of_one_arm_and_of_two(profile: Profile) -> None:
    rows = profile_rows([profile], [], "distance")
    assert [row["heads"] for row in rows] == [1, 2, 3, 12, 12]
    assert all(row["+-"] > 0 for row in rows)
    uniform = attention_profile(model_of("12x5"), [some_tokens(6)])
    rows = profile_rows([uniform], [profile], "entropy")
    gap = profile.means("entropy") - uniform.means("entropy")
    assert [row["difference"] for row in rows] == pytest.approx(list(gap))
    assert rows[0]["heads"] == "12 / 1"
    seeds = profile_rows([uniform, uniform], [profile, profile], "distance")
    assert all(row["+-"] == 0 for row in seeds)  # the same twice has no spread
    short = attention_profile(model_of(), [some_tokens(1, 16)])
    with pytest.raises(InputError, match="seq_len is 48 and 16"):
        check_comparable([profile, short])


def test_a_profile_draws_itself(profile: Profile) -> None:
    ax = profile.plot("entropy").axes[0]
    assert ax.get_ylabel() == "entropy of attention, nats"
    assert len(ax.collections) == 5  # a cloud of heads for each layer
