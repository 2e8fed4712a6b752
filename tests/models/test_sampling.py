from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from prism_transformer.model import Cache, PrismLM
from prism_transformer.models import sampling
from prism_transformer.models.sampling import KVCache, row_product, sample, stream
from prism_transformer.recipe import ModelConfig
from tests.conftest import small_config
from tests.test_model import large_weights

CONFIGS = [small_config(), small_config("2x1 4x1 8x1 12x2", queries_per_kv=2)]


def prompt(length: int) -> torch.Tensor:
    return torch.randint(300, (2, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("config", CONFIGS, ids=["mha", "gqa"])
@pytest.mark.parametrize("theirs", [False, True], ids=["our cache", "hugging face cache"])
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward(config: ModelConfig, theirs: bool) -> None:
    model = PrismLM(config)
    text = prompt(24)
    cache: Cache = DynamicCache() if theirs else KVCache(config, 2, 24)
    pieces, start = [], 0
    for length in (7, 1, 1, 5, 1, 9):  # prefill, single tokens, and chunks behind a filled cache
        positions = torch.arange(start, start + length)
        pieces.append(model(text[:, start : start + length], positions=positions, cache=cache))
        start += length
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(text), rtol=1e-5, atol=1e-5)


def test_cache_bytes_do_not_know_the_schedule() -> None:
    sizes = {KVCache(small_config(s), 3, 50).n_bytes for s in ("12x5", "2x1 3x1 6x1 12x2", "1x5")}
    assert sizes == {2 * 5 * 3 * 50 * 96 * 4}


def test_a_full_cache_says_so() -> None:
    model = PrismLM(small_config())
    with pytest.raises(IndexError, match="position 8 is beyond the cache's 8"):
        model(prompt(9), cache=KVCache(model.config, 2, 8))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@torch.no_grad()
def test_greedy_generation_equals_the_loop_without_a_cache(tied: bool, batch: int) -> None:
    model = large_weights(PrismLM(small_config(tied_embeddings=tied), seed=5))
    text = prompt(6)[:batch]
    expected = text
    for _ in range(12):
        likeliest = model(expected)[:, -1, :300].argmax(-1, keepdim=True)
        expected = torch.cat((expected, likeliest), dim=1)
    assert torch.equal(sample(model, text, 12, temperature=0.0), expected)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((4,), {}),
        ((2, 0), {}),
        ((2, 4), {"n_new": -1}),
        ((2, 4), {"temperature": -1.0}),
        ((2, 4), {"top_k": 0}),
    ],
)
def test_senseless_requests_are_refused(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"shape|cannot sample"):
        sample(PrismLM(small_config()), torch.zeros(shape), **({"n_new": 1} | options))


def test_padding_rows_are_never_drawn() -> None:
    model = PrismLM(small_config(vocab_size=130))  # 256 rows
    with torch.no_grad():
        model.embedding.weight[130:] *= 50  # make them loud
    drawn = sample(model, prompt(4) % 130, 60, temperature=1.5)
    assert drawn.max() < 130


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (0.5, None), (2.0, 7)])
def test_samples_follow_the_softmax(temperature: float, top_k: int | None) -> None:
    model = large_weights(PrismLM(small_config("12x1", vocab_size=20), seed=5))
    with torch.no_grad():
        model.embedding.weight.mul_(0.15)  # an even enough distribution to count
        text = (prompt(6)[:1] % 20).expand(20_000, -1)
        logits = model(text[:1])[0, -1, :20] / temperature
        if top_k is not None:
            logits[logits < logits.topk(top_k).values[-1]] = -torch.inf
    drawn = sample(model, text, 1, temperature=temperature, top_k=top_k)[:, -1]
    share = drawn.bincount(minlength=20) / len(drawn)
    assert (share - logits.softmax(-1)).abs().max() < 0.02
    assert share.max() < 0.9


def test_sampling_is_a_function_of_the_seed_and_top_k_one_is_greedy() -> None:
    model = PrismLM(small_config())
    first, again, other = (sample(model, prompt(4), 20, seed=s) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    greedy = sample(model, prompt(4), 20, temperature=0.0)
    assert torch.equal(sample(model, prompt(4), 20, top_k=1), greedy)


def test_one_row_in_slabs_is_the_same_product() -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(1024, 256, generator=draw, dtype=torch.float64)
    for shape in ((1, 256), (1, 1, 256), (256,)):
        x = torch.randn(shape, generator=draw, dtype=torch.float64)
        with torch.inference_mode():
            y = row_product(weight)(x)
        assert y.shape == (*shape[:-1], 1024)
        torch.testing.assert_close(y, x @ weight.T, rtol=1e-12, atol=1e-12)


def test_while_sampling_every_matrix_multiplies_in_slabs_and_afterwards_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampling, "MIN_SLABBED", 0)
    model = PrismLM(small_config()).double()
    expected = sample(model, prompt(4)[:1], 1, temperature=0.0)
    calls: list[int] = []
    bmm = torch.bmm

    def counted(*each: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return bmm(*each)

    monkeypatch.setattr(torch, "bmm", counted)
    drawn = stream(model, prompt(4)[:1], 2, temperature=0.0)
    first = next(drawn)
    assert torch.equal(first, expected[:, -1:])
    before = len(calls)  # the prompt has four rows: only its scores are a single one
    assert before == 1
    next(drawn)
    assert len(calls) - before == 4 * model.config.n_layers + 1
    assert not any("forward" in module.__dict__ for module in model.modules())
