from __future__ import annotations

import math
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from prism_transformer import model as model_module
from prism_transformer.model import Attention, PrismLM, causal_attention, make_norm
from prism_transformer.models.sampling import KVCache
from prism_transformer.models.weights import fingerprint
from prism_transformer.recipes.files import load_recipe
from prism_transformer.schedules.paper import presets
from tests.conftest import small_config

PAPER_PARAMETERS = {"small": 123_587_328, "medium": 353_944_576, "large": 756_819_456}


def tokens(length: int = 32, batch: int = 2) -> Tensor:
    return torch.randint(300, (batch, length), generator=torch.Generator().manual_seed(0))


def explicit_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention written out, heads of keys repeated for their queries."""
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(k.shape[-2] - q.shape[-2] + 1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("scale", PAPER_PARAMETERS)
def test_parameters_of_the_paper_on_the_meta_device(scale: str) -> None:
    for name in ("baseline", "prism"):
        with torch.device("meta"):
            model = PrismLM(load_recipe(f"{name}-{scale}").model)
        assert sum(weight.numel() for weight in model.parameters()) == PAPER_PARAMETERS[scale]


def test_every_preset_of_a_scale_has_the_same_shapes() -> None:
    shapes = set()
    for preset in presets().values():
        if preset.d_model == 768:
            config = load_recipe("base/small", [f"model.schedule={preset.schedule}"]).model
            with torch.device("meta"):
                model = PrismLM(config)
            shapes.add(tuple((name, weight.shape) for name, weight in model.named_parameters()))
    assert len(shapes) == 1


def test_parameter_names_are_an_interface() -> None:
    names = list(PrismLM(small_config("12x1")).state_dict())
    assert names == [
        "embedding.weight",
        "layers.0.attention_norm.weight",
        "layers.0.attention.qkv.weight",
        "layers.0.attention.out.weight",
        "layers.0.mlp_norm.weight",
        "layers.0.mlp.gate_up.weight",
        "layers.0.mlp.down.weight",
        "norm.weight",
    ]


def test_an_untied_model_has_one_matrix_more_and_else_the_same_bits() -> None:
    tied, untied = PrismLM(small_config(), 5), PrismLM(small_config(tied_embeddings=False), 5)
    mine, others = dict(tied.named_parameters()), dict(untied.named_parameters())
    assert list(others) == [*mine, "lm_head.weight"]
    for name, weight in mine.items():
        assert torch.equal(weight, others[name]), name
    head = others["lm_head.weight"]
    assert head.shape == untied.embedding.weight.shape
    assert head.std().item() == pytest.approx(untied.config.init_std, rel=0.05)
    assert not torch.equal(head, untied.embedding.weight)


def test_an_untied_model_scores_with_its_own_matrix() -> None:
    model = PrismLM(small_config(tied_embeddings=False)).double()
    tokens = torch.randint(100, (2, 9), generator=torch.Generator().manual_seed(1))
    x = model.hidden(model.embedding(tokens[:, :-1]))
    logits = x @ dict(model.named_parameters())["lm_head.weight"].T
    torch.testing.assert_close(model(tokens[:, :-1]), logits)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    found = model(tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(found, loss)
    loss.backward()
    wanted = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    found.backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, wanted[name])


def test_the_bits_of_the_papers_models_stay() -> None:
    """Runs of one seed are compared across versions: their initial weights may never change."""
    nano = fingerprint(PrismLM(load_recipe("prism-micro").model, seed=3))
    assert nano == "903c3aee33a904ce63f1fe2e5d3e3ac6de758827e0bc200d3755091ed1c4eb5d"


def test_initial_weights_are_bit_identical_across_schedules() -> None:
    schedules = ["12x5", "2x1 3x1 6x1 12x2", "12x2 6x1 3x1 2x1", "1x5"]
    prints = {fingerprint(PrismLM(small_config(text), seed=7)) for text in schedules}
    assert len(prints) == 1
    assert fingerprint(PrismLM(small_config(), seed=8)) not in prints


def test_initialisation_follows_the_table() -> None:
    model = PrismLM(small_config("12x2", d_model=384, d_ff=1024))
    residual = 0.02 / math.sqrt(2 * 2)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            assert (weight == 1).all()
            continue
        expected = residual if name.endswith(("out.weight", "down.weight")) else 0.02
        assert weight.std().item() == pytest.approx(expected, rel=0.02), name
        assert abs(weight.mean().item()) < 0.001


def test_building_a_model_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    PrismLM(small_config())
    assert torch.equal(before, torch.get_rng_state())


def test_fingerprint_sees_one_changed_bit() -> None:
    model = PrismLM(small_config())
    before = fingerprint(model)
    with torch.no_grad():
        model.norm.weight[3] = math.nextafter(1.0, 2.0) + 1e-6
    assert fingerprint(model) != before


@torch.no_grad()
def test_meta_construction_then_init_equals_direct_construction() -> None:
    direct = PrismLM(small_config(), seed=3)
    with torch.device("meta"):
        model = PrismLM(small_config())
    model.to_empty(device="cpu")
    model.init_weights(seed=3)
    assert fingerprint(model) == fingerprint(direct)
    assert torch.equal(model(tokens()), direct(tokens()))


@torch.no_grad()
def test_attend_is_the_only_seam_and_sdpa_equals_the_written_out_softmax() -> None:
    model = PrismLM(small_config("2x1 4x1 8x1 12x2", queries_per_kv=2))
    shapes = []

    def measured(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shapes.append((tuple(q.shape), tuple(k.shape)))
        return explicit_attention(q, k, v)

    torch.testing.assert_close(model(tokens()), model(tokens(), attend=measured))
    assert shapes == [((2, h, 32, 96 // h), (2, h // 2, 32, 96 // h)) for h in (2, 4, 8, 12, 12)]


@torch.no_grad()
def test_no_position_sees_the_future() -> None:
    model = PrismLM(small_config())
    text = tokens(length=32)
    changed = text.clone()
    changed[:, 20] = (changed[:, 20] + 1) % 300
    before, after = model(text), model(changed)
    torch.testing.assert_close(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20], after[:, 20])


def large_weights(model: PrismLM) -> PrismLM:
    """Weights at which attention is far from even, so that positions matter."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(8.0)
    return model


@torch.no_grad()
def test_each_sequence_may_have_positions_of_its_own() -> None:
    model = large_weights(PrismLM(small_config()))
    near, gapped = torch.arange(32), torch.arange(32) * 3
    together = model(tokens(), positions=torch.stack((near, gapped)))
    alone = [model(tokens()[[row]], positions=p) for row, p in enumerate((near, gapped))]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-4)
    assert not torch.allclose(together[1:], model(tokens()[[1]], positions=near))


def test_loss_equals_cross_entropy_of_all_logits_with_gradients() -> None:
    text = tokens(length=64, batch=20)  # more than two chunks of 512
    targets = text[:, 1:].clone()
    targets[0, :5] = -100
    chunked, plain = PrismLM(small_config()), PrismLM(small_config())
    ours = chunked(text[:, :-1], targets)
    theirs = F.cross_entropy(plain(text[:, :-1]).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(ours, theirs)
    ours.backward()
    theirs.backward()
    for one, other in zip(chunked.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_loss_refuses_targets_of_another_shape() -> None:
    with pytest.raises(ValueError, match="tokens"):
        PrismLM(small_config())(tokens(length=4), tokens(length=5))


def test_initial_loss_is_that_of_guessing() -> None:
    model = PrismLM(small_config())
    text = tokens(length=65, batch=8)
    assert model(text[:, :-1], text[:, 1:]).item() == pytest.approx(math.log(384), abs=0.1)


def test_activation_checkpointing_changes_no_gradient() -> None:
    text = tokens(length=33)
    plain, frugal = PrismLM(small_config()), PrismLM(small_config())
    frugal.activation_checkpointing = True
    for model in (plain, frugal):
        model(text[:, :-1], text[:, 1:]).backward()
    for one, other in zip(plain.parameters(), frugal.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_exactly_one_rotary_table_per_distinct_width(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = model_module.rotary_table

    def counted(positions: Tensor, frequencies: Tensor) -> Tensor:
        made.append(2 * len(frequencies))
        return original(positions, frequencies)

    monkeypatch.setattr(model_module, "rotary_table", counted)
    model = PrismLM(small_config("2x2 3x1 6x2 12x3"))
    model(tokens())
    assert sorted(made) == [8, 16, 32, 48]
    assert list(model.buffers()) == []


@torch.no_grad()
def test_bfloat16_follows_float32() -> None:
    exact = PrismLM(small_config(seq_len=1024)).bfloat16().float()
    rounded = PrismLM(small_config(seq_len=1024)).bfloat16()
    text = tokens(length=1024, batch=1)
    difference = (rounded(text).float() - exact(text)).abs().max()
    assert difference / exact(text).abs().max() < 0.03


def test_autocast_loss_is_a_float32_mean_with_bfloat16_gradients() -> None:
    exact, mixed = (large_weights(PrismLM(small_config())) for _ in range(2))
    text = tokens(length=65, batch=8)
    loss = exact(text[:, :-1], text[:, 1:])
    loss.backward()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = mixed(text[:, :-1], text[:, 1:])
    rounded.backward()
    assert rounded.dtype == torch.float32
    assert rounded.item() == pytest.approx(loss.item(), rel=0.01)
    assert rounded.item() != rounded.bfloat16().item()  # it has digits that bfloat16 has not
    for one, other in zip(exact.parameters(), mixed.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        cosine = F.cosine_similarity(one.grad.flatten(), other.grad.flatten(), dim=0)
        assert cosine > 0.97


@torch.no_grad()
def test_checkpointing_does_not_lose_a_cache() -> None:
    model = large_weights(PrismLM(small_config()))
    expected = model(tokens())
    model.activation_checkpointing = True
    cache = KVCache(model.config, 2, 32)
    first = model(tokens()[:, :20], cache=cache)
    second = model(tokens()[:, 20:], positions=torch.arange(20, 32), cache=cache)
    torch.testing.assert_close(torch.cat((first, second), 1), expected, rtol=1e-4, atol=1e-4)


def compiled_logits(backend: str) -> tuple[Tensor, Tensor]:
    torch._dynamo.reset()
    model = PrismLM(small_config())
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        return compiled(tokens()), model(tokens())


def test_traced_as_one_graph() -> None:
    torch.testing.assert_close(*compiled_logits("aot_eager"))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_compiled_by_inductor() -> None:
    torch.testing.assert_close(*compiled_logits("inductor"), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_base_scale_is_a_smaller_softmax_scale_for_wide_heads() -> None:
    """Against attention written out, whose scale is sqrt(base width) / width in every layer."""
    config = small_config("2x1", h_base=12, attention_scale="base", init_std=0.3)
    attention = PrismLM(config).layers[0].get_submodule("attention").double()
    assert isinstance(attention, Attention)
    x = torch.randn(1, 7, 96, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    still = torch.stack((torch.ones(7, 24), torch.zeros(7, 24))).double()  # turns nothing
    q, k, v = attention.qkv(x)[0].unflatten(-1, (3, 2, 48)).permute(1, 2, 0, 3)  # each (H, T, K)
    logits = q @ k.mT * 8**0.5 / 48
    weights = logits.masked_fill(~torch.ones(7, 7).tril().bool(), -torch.inf).softmax(-1)
    expected = attention.out((weights @ v).transpose(0, 1).flatten(-2))
    torch.testing.assert_close(attention(x, still, causal_attention)[0], expected)


def test_base_scale_takes_away_the_faster_logits_of_wide_heads() -> None:
    """One step of Adam moves a logit in proportion to sqrt(K), and alike under the base scale."""

    def moved(n_heads: int, scale: str) -> float:
        config = small_config(f"{n_heads}x1", h_base=12, attention_scale=scale)
        attention = PrismLM(config, seed=1).layers[0].get_submodule("attention")
        assert isinstance(attention, Attention)
        x = torch.randn(4, 16, 96, generator=torch.Generator().manual_seed(2))
        width = 96 // n_heads
        still = torch.stack((torch.ones(16, width // 2), torch.zeros(16, width // 2)))

        def logits() -> torch.Tensor:
            q, k, _ = attention.project(x, still)
            return q @ k.mT / width**0.5

        before = logits()
        before[..., 5, 3].sum().backward()  # make one position look harder at another
        torch.optim.Adam([attention.qkv.weight], lr=1e-4).step()
        return float((logits() - before)[..., 5, 3].detach().abs().mean())

    assert moved(1, "per-width") / moved(12, "per-width") == pytest.approx(12**0.5, rel=0.15)
    assert moved(1, "base") / moved(12, "base") == pytest.approx(1, rel=0.15)


@torch.no_grad()
def test_layernorm_is_the_rmsnorm_of_centred_inputs() -> None:
    config = small_config("2x1 12x1", norm="layernorm")
    norm, other = make_norm(config), make_norm(small_config("2x1 12x1"))
    x = torch.randn(3, 5, 96, generator=torch.Generator().manual_seed(0)) + 2
    torch.testing.assert_close(norm(x), other(x - x.mean(-1, keepdim=True)))
    names = [dict(PrismLM(each).named_parameters()) for each in (config, small_config("2x1 12x1"))]
    assert names[0].keys() == names[1].keys()  # no biases: one set of weights serves both
    assert all(torch.equal(names[0][name], names[1][name]) for name in names[0])
