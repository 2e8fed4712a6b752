"""Every schedule of a space under one run's weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Advance, Event
from prism_transformer.recipes.files import changed
from prism_transformer.schedules.design import RULES
from prism_transformer.search.one_shot import one_shot
from prism_transformer.search.scores import OneShot, find_scores, read_scores, write_scores
from prism_transformer.training.api import resume, train
from prism_transformer.training.run import Run
from tests.training.runs import tiny
from tests.training.test_objective import MASKED


def test_the_whole_space_and_a_part_of_it(shared_run: Run, tmp_path: Path) -> None:
    run = tmp_path / "shared"
    shutil.copytree(shared_run.folder, run)
    found = one_shot(run, windows=2, device="cpu")
    assert len(found.losses) == 27
    assert len(set(found.losses.values())) == 27
    told: list[Event] = []
    part = one_shot(run, space="2/8x1 8x2", schedules=["4x3"], windows=2, tell=told.append)
    assert list(part.losses) == ["2x1 8x2", "8x3", "4x3"]
    assert part.losses.items() <= found.losses.items()
    assert [each.total for each in told if isinstance(each, Advance)][:1] == [0]  # all were known
    kept = read_scores(run / "search" / "one-shot.json")
    assert isinstance(kept, OneShot)
    assert kept == found
    other = one_shot(run, schedules=["4x3"], windows=3, device="cpu")  # asked otherwise: anew
    assert list(other.losses) == ["4x3"]
    tuned = one_shot(run, schedules=["4x3"], windows=3, steps=1, device="cpu")
    assert tuned.losses["4x3"] != other.losses["4x3"]
    names = {file.name for file in (run / "search").iterdir()}  # and nothing is lost
    assert names == {
        "one-shot.json", "one-shot-3-windows.json", "one-shot-3-windows-1-steps-at-0.1.json",
    }  # fmt: skip
    assert find_scores([run]) == [found, tuned, other]
    again = one_shot(run, schedules=["4x3"], windows=3, rate=0.5, tell=told.append)
    assert again == other  # without steps a rate means nothing


def test_losses_of_a_run_on_other_data_are_measured_anew(shared_run: Run, tmp_path: Path) -> None:
    run = tmp_path / "shared"
    shutil.copytree(shared_run.folder, run)
    found = one_shot(run, schedules=["8x3"], windows=1, device="cpu")
    (file,), recipe = (run / "search").iterdir(), found.recipe
    assert recipe is not None
    for changes, kept in (({"data.folder": "moved"}, True), ({"data.corpus": "other"}, False)):
        other = changed(recipe, changes, "a test")
        write_scores(file, found.model_copy(update={"recipe": other, "losses": {"8x3": 1.0}}))
        again = one_shot(run, schedules=["8x3"], windows=1, device="cpu")
        assert (again.losses == {"8x3": 1.0}, again.recipe) == (kept, recipe)


def test_the_papers_rules_choose_among_a_space(shared_run: Run, tmp_path: Path) -> None:
    shutil.copytree(shared_run.folder, tmp_path / "run")
    found = one_shot(tmp_path / "run", rules=RULES, windows=1, device="cpu")
    assert list(found.losses) == ["8x3"]


ASKED = [MASKED, ("data.boundaries=isolate",), (*MASKED, "data.boundaries=isolate")]


@pytest.mark.parametrize("changes", ASKED, ids=["masked", "isolate", "both"])
def test_a_run_is_asked_what_it_was_trained_for(
    tmp_path: Path, data: Path, changes: tuple[str, ...]
) -> None:
    """Its own schedule, as it is and one step on, against what the run's own loop went through."""
    recipe = tiny(
        data, *changes, "model.schedule=8x3", "train.schedule_sampling=layers 8x3",
        "train.tokens=3072", "run.val_every=1", "optim.lr_schedule=constant",
    )  # fmt: skip
    run = train(recipe, tmp_path / "run", device="cpu", until=5)
    assert list(run.losses) == list(range(6))
    assert one_shot(run, device="cpu").losses == {"8x3": run.loss}
    tuned = one_shot(run, steps=1, rate=1.0, device="cpu")
    went_on = resume(run.folder, device="cpu")
    assert tuned.losses["8x3"] == pytest.approx(went_on.losses[6], rel=1e-6)
    assert tuned.losses["8x3"] != pytest.approx(went_on.losses[5], rel=1e-4)


def test_what_is_refused(shared_run: Run, uniform_run: Run) -> None:
    with pytest.raises(InputError, match=r"was trained under 8x3 alone.*schedule_sampling"):
        one_shot(uniform_run)
    with pytest.raises(InputError, match="schedule 1x3 is not in the space 2/4/8x3"):
        one_shot(shared_run, schedules=["1x3"])
    with pytest.raises(InputError, match="is not in the space 2/4/8x3"):
        one_shot(shared_run, space="1/2x3")
    with pytest.raises(InputError, match="the space of schedules is empty"):
        one_shot(shared_run, space="")
    with pytest.raises(InputError, match=r"none of its 8 schedules keeps"):
        one_shot(shared_run, space="2/4x3", rules=RULES)
    with pytest.raises(InputError, match="space 2/4/8x1 has 1 layer but the model has 3"):
        one_shot(shared_run, space="2/4/8")
    with pytest.raises(InputError, match="schedule 2x1 has 1 layers but the model has 3"):
        one_shot(shared_run, schedules=["2x1"])
    with pytest.raises(InputError, match="--steps -1"):
        one_shot(shared_run, steps=-1)
    with pytest.raises(InputError, match="--rate 0"):
        one_shot(shared_run, rate=0)
