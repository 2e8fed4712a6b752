"""Losses under a run's weights against models that are built and tuned by hand."""

from __future__ import annotations

import pytest
import torch

from prism_transformer.core.errors import InputError
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import WEIGHTS_FILE, read_tensors
from prism_transformer.schedule import HeadSchedule
from prism_transformer.search.scores import Settings
from prism_transformer.search.shared import Shared
from prism_transformer.training.checkpoint import OPTIMIZER_FILE, newest_model
from prism_transformer.training.job import make_optimizer, open_data
from prism_transformer.training.run import Run


def built(run: Run, schedule: str) -> PrismLM:
    """A model made for that schedule, with the run's weights."""
    model = PrismLM(run.recipe.model.model_copy(update={"schedule": HeadSchedule.parse(schedule)}))
    weights = read_tensors(newest_model(run.folder) / WEIGHTS_FILE)
    weights.pop("head_schedule")
    model.load_state_dict(weights)
    return model


def plain_loss(run: Run, model: PrismLM, n: int) -> float:
    _, val = open_data(run.recipe)
    rows = torch.from_numpy(val.read(range(n)))
    with torch.no_grad():
        logits = model(rows[:, :-1]).double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


@pytest.mark.parametrize("schedule", ["2x3", "8x3", "8x1 2x1 4x1"])
def test_a_loss_is_that_of_a_model_so_built(shared_run: Run, schedule: str) -> None:
    shared = Shared.open(shared_run, "cpu")
    found = shared.loss(HeadSchedule.parse(schedule), Settings(windows=10))
    assert found == pytest.approx(plain_loss(shared_run, built(shared_run, schedule), 10), rel=1e-6)


@pytest.mark.parametrize("layer", [None, 1])
def test_a_tuned_loss_is_that_of_steps_by_hand(uniform_run: Run, layer: int | None) -> None:
    run, schedule, n_steps = uniform_run, "8x1 4x1 8x1", uniform_run.recipe.n_steps
    model = built(run, schedule)
    part = model if layer is None else model.layers[layer]
    model.requires_grad_(False)
    part.requires_grad_(True)
    optimizer = make_optimizer(part, run.recipe.optim)
    moments = read_tensors(newest_model(run.folder) / OPTIMIZER_FILE)
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            both = {kind: moments[f"{kind}.{name}"].clone() for kind in ("exp_avg", "exp_avg_sq")}
            optimizer.state[weight] = {"step": torch.tensor(float(n_steps)), **both}
    for group in optimizer.param_groups:
        group["lr"] = 0.5 * run.recipe.optim.lr
    train, _ = open_data(run.recipe)
    for step in range(n_steps, n_steps + 2):
        rows = torch.from_numpy(train.batch(run.recipe.train.seed, step * 16, 16))
        model(rows[:, :-1], rows[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(part.parameters(), run.recipe.optim.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
    shared = Shared.open(run, "cpu")
    asked = Settings(windows=10, steps=2, rate=0.5)
    found = shared.loss(HeadSchedule.parse(schedule), asked, layer=layer)
    assert found == pytest.approx(plain_loss(run, model, 10), rel=1e-5)
    assert found != pytest.approx(plain_loss(run, built(run, schedule), 10), rel=1e-5)


def test_one_question_leaves_nothing_for_the_next(shared_run: Run) -> None:
    shared = Shared.open(shared_run, "cpu")
    first = shared.loss(HeadSchedule.parse("8x3"), Settings(windows=5))
    tuned = Settings(windows=5, steps=2, rate=1.0)
    shared.loss(HeadSchedule.parse("2x3"), tuned, how="matched")
    shared.loss(HeadSchedule.parse("2x3"), tuned, layer=0)
    assert shared.loss(HeadSchedule.parse("8x3"), Settings(windows=5)) == first
    assert all(weight.requires_grad for weight in shared.model.parameters())


def test_slices_that_are_not_there_are_refused(shared_run: Run) -> None:
    shared = Shared.open(shared_run, "cpu")
    assert shared.windows(None) == 50
    for asked in (0, 51):
        with pytest.raises(InputError, match=f"--windows {asked}: the run's validation slice"):
            shared.windows(asked)
