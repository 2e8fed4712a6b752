from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from prism_transformer.core.errors import InputError
from prism_transformer.core.loss import IGNORED
from prism_transformer.data.loader import open_windows
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import load_model
from prism_transformer.recipe import Recipe
from prism_transformer.recipes.files import RecipeError
from prism_transformer.training.api import train
from prism_transformer.training.distributed import World
from prism_transformer.training.job import Job
from prism_transformer.training.loop import batches, validation_loss
from prism_transformer.training.objective import NEXT_TOKEN, objective_of
from prism_transformer.training.run import checkpoints, read_environment, read_metrics
from tests.training.runs import assert_same_end, finish, tiny
from tests.training.test_loop import CPU, SETTINGS

MASKED = ("model.attention=bidirectional", "train.objective=masked", "model.vocab_size=258")


def encoder(data: Path, *overrides: str) -> Recipe:
    return tiny(data, *MASKED, *overrides)


def test_the_next_token_is_the_same_row_one_on() -> None:
    rows = np.arange(10).reshape(2, 5)
    question = NEXT_TOKEN.question(rows, 0, 0)
    assert question.tokens.tolist() == [[0, 1, 2, 3], [5, 6, 7, 8]]
    assert question.targets.tolist() == [[1, 2, 3, 4], [6, 7, 8, 9]]
    assert question.n_scored == 8


def test_rows_that_fill_up_a_batch_ask_nothing(data: Path) -> None:
    rows = np.full((2, 33), IGNORED)
    for recipe in (tiny(data), encoder(data, "data.boundaries=isolate")):
        question = objective_of(recipe).question(rows, 0, 0)
        assert question.n_scored == 0
        assert question.tokens.min() >= 0


@pytest.mark.parametrize("boundaries", ["cross", "isolate"])
def test_masked_loss_against_a_plain_loop(data: Path, boundaries: str) -> None:
    """Every window by itself, every masked token by itself, from the logits."""
    recipe = encoder(data, f"data.boundaries={boundaries}", "train.mask_share=0.2")
    model = PrismLM(recipe.model)
    windows = open_windows(data, "val", 32, 258)
    objective = objective_of(recipe)
    losses = []
    for window in range(9):
        question = objective.question(windows.read([window]), window, 0)
        pieces = [0]
        if question.positions is not None:
            pieces = (question.positions[0] == 0).nonzero().flatten().tolist()
        stops = [*pieces[1:], 32]
        with torch.no_grad():
            for start, stop in zip(pieces, stops, strict=True):
                logits = model(question.tokens[:, start:stop])[0].double()
                for place, target in enumerate(question.targets[0, start:stop].tolist()):
                    if target != IGNORED:
                        losses.append(-logits[place].log_softmax(-1)[target].item())
    assert len(losses) == 9 * round(0.2 * 32)
    for micro_batch in (1, 4, 16):
        alone = World(0, 1, CPU, None)
        found = validation_loss(model, windows, 9, micro_batch, alone, SETTINGS, objective)
        assert found == pytest.approx(sum(losses) / len(losses), abs=1e-6)


def test_processes_are_asked_what_one_would_be(data: Path) -> None:
    """The questions of one step, in whatever number of processes, are the same ones."""
    recipe = encoder(data)
    windows = open_windows(data, "train", 32, 258)

    def asked(size: int) -> list[tuple[object, ...]]:
        found = []
        for rank in range(size):
            world = World(rank, size, CPU, None)
            job = Job.__new__(Job)
            job.recipe, job.world, job.train, job.step = recipe, world, windows, 3
            for question in next(iter(batches(job))):
                pairs = zip(question.tokens.tolist(), question.targets.tolist(), strict=True)
                found += [(tuple(seen), tuple(wanted)) for seen, wanted in pairs]
        return sorted(found)

    assert asked(1) == asked(2) == asked(4)


def test_a_masked_run_learns_and_goes_on_in_the_same_bits(tmp_path: Path, data: Path) -> None:
    recipe = encoder(data, "data.boundaries=isolate")
    finish(tmp_path / "whole", recipe)
    train(recipe, tmp_path / "parts", until=8)
    finish(tmp_path / "parts", recipe, resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")
    losses = [row["loss"] for row in read_metrics(tmp_path / "whole") if row["kind"] == "val"]
    assert losses[-1] < losses[0] - 0.5
    assert load_model(checkpoints(tmp_path / "whole")[-1]).config.attention == "bidirectional"


def test_arms_prove_that_their_masks_are_alike(tmp_path: Path, data: Path) -> None:
    def order(name: str, *overrides: str) -> str:
        train(encoder(data, *overrides), tmp_path / name, until=1)
        return read_environment(tmp_path / name)["hashes"]["data_order"]

    uniform = order("uniform", "model.schedule=8x3")
    assert order("prism") == uniform
    assert order("other", "train.mask_share=0.3") != uniform


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (MASKED[:1], 'train.objective = "next" needs model.attention = "causal"'),
        (MASKED[1:], 'train.objective = "masked" needs model.attention = "bidirectional"'),
        ((*MASKED, "train.mask_share=0.01"), "is not one token of model.seq_len = 32"),
        ((*MASKED, "train.mask_random=0.3"), "are more than all masked tokens"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    data: Path, overrides: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(RecipeError) as error:
        tiny(data, *overrides)
    assert problem in str(error.value)


def test_the_mask_needs_a_token_of_its_own(tmp_path: Path, data: Path) -> None:
    recipe = tiny(data, *MASKED[:2])
    with pytest.raises(InputError, match="the mask needs one more; set it to 258"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
