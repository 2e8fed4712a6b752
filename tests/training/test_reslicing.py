"""Runs that go on under another schedule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prism_transformer.core.errors import InputError
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import WEIGHTS_FILE, load_model, read_tensors
from prism_transformer.training.api import resume, train
from prism_transformer.training.checkpoint import OPTIMIZER_FILE, newest_model
from prism_transformer.training.job import make_optimizer, open_data
from prism_transformer.training.loop import validation_loss
from prism_transformer.training.rate import learning_rate
from prism_transformer.training.reslicing import RESLICE, reslice
from prism_transformer.training.run import Run, checkpoint_folder, read_environment
from tests.training.runs import assert_same_end, finish, tiny
from tests.training.test_objective import MASKED

KEPT = "run.milestones=[8]"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Run:
    folder = tmp_path_factory.mktemp("sources") / "uniform"
    return train(tiny(data, "model.schedule=8x3", KEPT), folder, device="cpu")


def test_it_goes_on_as_training_by_hand_does(tmp_path: Path, source: Run) -> None:
    """The ninth update of a resliced run, by a plain loop over its checkpoint."""
    made = reslice(source, "2x1 8x2", tmp_path / "new", step=8, how="reshape", device="cpu")
    old, new = checkpoint_folder(source.folder, 8), checkpoint_folder(tmp_path / "new", 8)
    moments = read_tensors(old / OPTIMIZER_FILE)
    for name, tensor in moments.items():
        assert read_tensors(new / OPTIMIZER_FILE)[name].equal(tensor)
    recipe = made.run.recipe
    model = PrismLM(recipe.model)
    weights = read_tensors(old / WEIGHTS_FILE)
    weights.pop("head_schedule")
    model.load_state_dict(weights)
    optimizer = make_optimizer(model, recipe.optim)
    for name, weight in model.named_parameters():
        both = {kind: moments[f"{kind}.{name}"].clone() for kind in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {"step": torch.tensor(8.0), **both}
    windows, _ = open_data(recipe)
    tokens = torch.from_numpy(windows.batch(recipe.train.seed, 8 * 16, 16))
    for part in tokens.split(4):
        (model(part[:, :-1], part[:, 1:]) / 4).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.optim.grad_clip)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(recipe, 8)
    optimizer.step()
    resume(tmp_path / "new", until=9, device="cpu")
    after = load_model(newest_model(tmp_path / "new"))
    assert after.config.schedule.heads == (2, 8, 8)
    for name, weight in model.named_parameters():
        assert weight.allclose(after.state_dict()[name], rtol=1e-5, atol=1e-7), name


def test_it_ends_like_a_run_and_compares_like_one(tmp_path: Path, source: Run) -> None:
    made = reslice(source, "2x1 8x2", tmp_path / "new", step=8, device="cpu")
    run = resume(resume(tmp_path / "new", until=11, device="cpu"), device="cpu")
    reslice(source, "2x1 8x2", tmp_path / "again", step=8, device="cpu")
    assert_same_end(run.folder, resume(tmp_path / "again", device="cpu").folder)
    assert run.complete
    assert run.loss != source.loss
    rows = [row for row in run.metrics() if row["kind"] == "train"]
    before = [row for row in source.metrics() if row["kind"] == "train"]
    assert [row["step"] for row in rows] == list(range(1, 21))
    assert rows[:8] == before[:8]
    ours, theirs = read_environment(run.folder), read_environment(source.folder)
    assert ours["hashes"] == theirs["hashes"]
    assert ours["identity"] != theirs["identity"]
    assert ours["start"]["source"] == str(checkpoint_folder(source.folder, 8))
    (row,) = [row for row in run.metrics() if row["kind"] == RESLICE]
    assert (row["step"], row["from"], row["map"]) == (8, "8x3", "matched")
    assert row["loss_matched"] == made.losses["matched"]
    assert [each["map"] for each in made.table.rows] == ["before", "reshape", "matched"]


def test_losses_right_after_the_change_are_those_of_a_model_so_built(
    tmp_path: Path, source: Run
) -> None:
    from prism_transformer.training.device import begin, settle
    from prism_transformer.training.distributed import World

    made = reslice(source, "2x1 8x2", tmp_path / "new", step=8, device="cpu")
    settings = begin(settle(source.recipe, "cpu"))
    world = World(0, 1, settings.device, None)
    _, val = open_data(source.recipe)
    model = load_model(checkpoint_folder(tmp_path / "new", 8))
    assert validation_loss(model, val, 50, 4, world, settings) == made.losses["matched"]
    model = load_model(checkpoint_folder(source.folder, 8))
    assert validation_loss(model, val, 50, 4, world, settings) == made.loss_before


@pytest.mark.parametrize(
    "changes", [MASKED, ("data.boundaries=isolate",)], ids=["masked", "isolate"]
)
def test_the_loss_before_is_the_runs_own_whatever_it_is_asked(
    tmp_path: Path, data: Path, changes: tuple[str, ...]
) -> None:
    recipe = tiny(
        data, "model.schedule=8x3", *changes, "train.tokens=4096", "run.val_every=1", KEPT
    )
    source = train(recipe, tmp_path / "source", device="cpu", until=4)
    made = reslice(source, "2x1 8x2", tmp_path / "new", device="cpu")
    assert made.loss_before == source.losses[4]


def test_a_one_shot_run_goes_on_with_one_schedule(tmp_path: Path, data: Path) -> None:
    recipe = tiny(data, "train.schedule_sampling=layers 2/4/8x3", KEPT)
    run = train(recipe, tmp_path / "shared", until=8, device="cpu")
    made = reslice(run, recipe.model.schedule, tmp_path / "one", device="cpu")
    assert made.run.recipe.train.schedule_sampling is None
    assert made.losses["reshape"] == made.losses["matched"] == made.loss_before
    rows = resume(made.run, until=9, device="cpu").metrics()
    steps = [row for row in rows if row["kind"] == "train"]
    assert ["schedule" in row for row in steps] == [True] * 8 + [False]


def test_without_its_checkpoints_it_does_not_begin_anew(tmp_path: Path, source: Run) -> None:
    made = reslice(source, "2x1 8x2", tmp_path / "new", step=8, device="cpu")
    weights = checkpoint_folder(made.run.folder, 8) / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(InputError, match="has no sound checkpoint left"):
        resume(made.run, device="cpu")


def test_what_is_refused_leaves_nothing_behind(tmp_path: Path, source: Run) -> None:
    place = tmp_path / "new"
    with pytest.raises(InputError, match=r"has no checkpoint of step 9; it has checkpoints of 8, "):
        reslice(source, "2x1 8x2", place, step=9, device="cpu")
    with pytest.raises(InputError, match="is the last of its run"):
        reslice(source, "2x1 8x2", place, device="cpu")
    with pytest.raises(InputError, match="has schedule 8x3 already"):
        reslice(source, "8x3", place, step=8, device="cpu")
    with pytest.raises(InputError, match="3 heads do not divide"):
        reslice(source, "3x3", place, step=8, device="cpu")
    with pytest.raises(InputError, match="has 2 layers but the model has 3"):
        reslice(source, "2x2", place, step=8, device="cpu")
    with pytest.raises(InputError, match="is not a run"):
        reslice(tmp_path, "2x3", place, device="cpu")
    with pytest.raises(InputError, match="map 'rotate': write reshape or matched"):
        reslice(source, "2x3", place, step=8, how="rotate", device="cpu")  # type: ignore[arg-type]
    other = source.recipe.model_copy(
        update={"optim": source.recipe.optim.model_copy(update={"lr": 1.0})}
    )
    with pytest.raises(InputError, match="differs from its own in more than schedule"):
        reslice(source, "2x3", place, step=8, recipe=other, device="cpu")
    assert not place.exists()
    place.mkdir()
    (place / "mine").touch()
    with pytest.raises(InputError, match=str(place)):
        reslice(source, "2x1 8x2", place, step=8, device="cpu")


def test_damaged_sources_are_refused(tmp_path: Path, data: Path) -> None:
    recipe = tiny(data, KEPT)
    finish(tmp_path / "run", recipe)
    weights = checkpoint_folder(tmp_path / "run", 8) / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(InputError, match="sha256 differs"):
        reslice(tmp_path / "run", "8x3", tmp_path / "new", step=8, device="cpu")
