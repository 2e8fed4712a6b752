"""The two ways to the loss: all logits at once, for a GPU's compiler, and in chunks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from prism_transformer.core.loss import IGNORED, chunked_loss, recomputed_loss
from prism_transformer.model import Loss, PrismLM
from prism_transformer.training.device import plain_loss
from tests.conftest import small_config

Found = tuple[Tensor, Tensor, Tensor]


def some_states() -> Found:
    """Hidden states of more than two chunks, a scoring matrix, targets of which some do not count.

    Logits of a few units, as a model in training has them.
    """
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1300, 48, generator=draw)
    weight = torch.randn(640, 48, generator=draw) * 0.4
    targets = torch.randint(640, (1300,), generator=draw)
    targets[:7] = IGNORED
    return x, weight, targets


def loss_and_gradients(loss: Loss, dtype: torch.dtype, mixed: bool) -> Found:
    x, weight, targets = some_states()
    x, weight = (each.to(dtype).requires_grad_() for each in (x, weight))
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        found = loss(x, weight, targets)
    of_x, of_weight = torch.autograd.grad(found, (x, weight))
    return found, of_x, of_weight


def in_small_chunks(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return recomputed_loss(x, weight, targets, rows=32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [chunked_loss, in_small_chunks])
def test_all_ways_agree_to_rounding(loss: Loss, dtype: torch.dtype) -> None:
    plain, other = (loss_and_gradients(each, dtype, False) for each in (plain_loss, loss))
    for one, two in zip(plain, other, strict=True):
        assert one.dtype == two.dtype == dtype
        torch.testing.assert_close(one, two)


def off(loss: Loss) -> list[float]:
    """Relative error of loss and gradients in mixed precision."""
    exact = loss_and_gradients(plain_loss, torch.float64, False)
    found = loss_and_gradients(loss, torch.float32, True)
    assert {each.dtype for each in found} == {torch.float32}
    pairs = zip(found, exact, strict=True)
    return [((one.double() - two).norm() / two.norm()).item() for one, two in pairs]


@pytest.mark.parametrize("loss", [plain_loss, chunked_loss, in_small_chunks])
def test_mixed_precision_is_near(loss: Loss) -> None:
    value, *gradients = off(loss)
    assert value < 1e-3
    assert max(gradients) < 1e-2


def test_gradients_of_many_chunks_are_added_up_in_float32() -> None:
    """41 chunks, yet no further off than one product; in bfloat16 it would be twice as far."""
    assert off(in_small_chunks)[2] < 1.1 * off(plain_loss)[2]


def test_a_model_trains_with_the_one_it_was_given_and_validates_in_chunks() -> None:
    calls: list[str] = []

    def told(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        calls.append("training")
        return plain_loss(x, weight, targets)

    model = PrismLM(small_config())
    model.training_loss = told
    tokens = torch.randint(300, (2, 33), generator=torch.Generator().manual_seed(0))
    trained = model(tokens[:, :-1], tokens[:, 1:])
    assert calls == ["training"]
    torch.testing.assert_close(model.eval()(tokens[:, :-1], tokens[:, 1:]), trained)
    assert calls == ["training"]
