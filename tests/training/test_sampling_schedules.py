"""One-shot training: a schedule drawn for every step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prism_transformer.core.errors import InputError
from prism_transformer.model import PrismLM
from prism_transformer.models.reslice import under
from prism_transformer.recipes.files import load_recipe, recipe_toml
from prism_transformer.schedule import HeadSchedule
from prism_transformer.training.api import resume, train
from prism_transformer.training.loop import validation_loss
from prism_transformer.training.run import Run, read_environment, read_metrics
from tests.training.runs import assert_same_end, command, run_command, tiny, torchrun

SPACE = "train.schedule_sampling=sandwich 2/4/8x3"


def test_a_one_shot_run_is_a_hand_written_loop_over_its_schedules(
    tmp_path: Path, data: Path
) -> None:
    recipe = tiny(data, SPACE)
    run = train(recipe, tmp_path / "run", until=3, device="cpu")
    rows = [row for row in run.metrics() if row["kind"] == "train"]
    assert [row["schedule"] for row in rows] == [str(recipe.schedule_at(n)) for n in range(3)]
    # The first update, by hand, with a model that is built for the schedule of that step.
    config = recipe.model.model_copy(update={"schedule": recipe.schedule_at(0)})
    assert config.schedule != recipe.model.schedule
    model = PrismLM(config, recipe.train.seed)
    from prism_transformer.training.job import open_data

    windows, _ = open_data(recipe)
    tokens = torch.from_numpy(windows.batch(recipe.train.seed, 0, 16))
    losses = [model(part[:, :-1], part[:, 1:]) for part in tokens.split(4)]
    assert rows[0]["loss"] == pytest.approx(sum(each.item() for each in losses) / 4, rel=1e-6)


def test_checkpoints_and_validations_are_of_the_models_own_schedule(
    tmp_path: Path, data: Path
) -> None:
    from prism_transformer.models.weights import load_model
    from prism_transformer.training.checkpoint import newest_model
    from prism_transformer.training.device import begin, settle
    from prism_transformer.training.distributed import World
    from prism_transformer.training.job import open_data

    run = train(tiny(data, SPACE), tmp_path / "run", until=5, device="cpu")
    model = load_model(newest_model(run.folder))
    assert model.config.schedule == run.recipe.model.schedule
    settings = begin(settle(run.recipe, "cpu"))
    world = World(0, 1, settings.device, None)
    _, val = open_data(run.recipe)
    assert validation_loss(model, val, 50, 4, world, settings) == run.losses[5]
    with under(model, HeadSchedule.parse("2x3")):
        assert validation_loss(model, val, 50, 4, world, settings) != run.losses[5]


@pytest.mark.slow
def test_a_one_shot_run_resumes_exactly(tmp_path: Path, data: Path) -> None:
    half = train(tiny(data, SPACE), tmp_path / "half", until=7, device="cpu")
    resume(half, device="cpu")
    whole = train(tiny(data, SPACE), tmp_path / "whole", device="cpu")
    assert_same_end(half.folder, whole.folder)
    plain = train(tiny(data), tmp_path / "plain", device="cpu")
    assert plain.loss != whole.loss
    one, other = (read_environment(run.folder)["hashes"] for run in (plain, whole))
    assert one == other  # the same weights at first, the same data
    assert not any("schedule" in row for row in plain.metrics())
    with pytest.raises(InputError, match=r"this would change train\.schedule_sampling"):
        resume(whole, ["train.schedule_sampling=layers 2/4/8x3"])


def test_the_recipe_of_a_run_has_its_space(tmp_path: Path, data: Path) -> None:
    recipe = tiny(data, SPACE)
    assert 'schedule_sampling = "sandwich 2/4/8x3"' in recipe_toml(recipe)
    run = train(recipe, tmp_path / "run", until=1, device="cpu")
    assert Run.open(run.folder).recipe == recipe
    file = tmp_path / "plain.toml"
    file.write_text(recipe_toml(tiny(data)), "utf-8")
    assert load_recipe(file).train.schedule_sampling is None


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        ("sandwich 2/4x3", "schedule 2x1 4x1 8x1 is not in the space 2/4x3"),
        ("sandwich 2/4/8x4", "has 4 layers but the model has 3"),
        ("layers 2/3/4/8x3", "3 heads do not divide d_model=32"),
        ("layers", "is empty"),
        ("some 2/8x3", "write sandwich or layers"),
    ],
)
def test_spaces_that_do_not_fit_are_refused(data: Path, space: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as refused:
        tiny(data, f"train.schedule_sampling={space}")
    assert "schedule_sampling" in str(refused.value)


@pytest.mark.slow
def test_two_processes_draw_what_one_draws(tmp_path: Path, data: Path) -> None:
    line = ["train", str(data / "tiny.toml"), SPACE, "--device", "cpu", "--out"]
    assert run_command(command(*line, "one"), tmp_path).returncode == 0
    done = run_command(torchrun(*line, "two", "--until", "7"), tmp_path)
    assert done.returncode == 0, done.stderr
    done = run_command(torchrun("resume", "two", "--device", "cpu"), tmp_path)
    assert done.returncode == 0, done.stderr
    one, two = (
        [row for row in read_metrics(tmp_path / name) if row["kind"] == "train"]
        for name in ("one", "two")
    )
    assert [row["schedule"] for row in one] == [row["schedule"] for row in two]
    for ours, theirs in zip(one, two, strict=True):
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-4)
