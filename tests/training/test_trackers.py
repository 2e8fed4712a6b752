"""Trackers get every number, and none can stop a run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from prism_transformer.training.run import read_metrics
from prism_transformer.training.trackers import OPEN, Trackers
from tests.training.runs import finish, tiny


def test_tensorboard_has_what_metrics_have(tmp_path: Path, data: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    finish(tmp_path / "run", tiny(data, 'run.trackers=["tensorboard"]'))
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    for kind in ("train", "val"):
        rows = [row for row in read_metrics(tmp_path / "run") if row["kind"] == kind]
        scalars = events.Scalars(f"{kind}/loss")
        assert [scalar.step for scalar in scalars] == [row["step"] for row in rows]
        assert [scalar.value for scalar in scalars] == pytest.approx([row["loss"] for row in rows])


@pytest.mark.slow
def test_wandb_offline(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    finish(tmp_path / "run", tiny(data, 'run.trackers=["wandb"]'))
    wandb.finish()
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


def test_a_tracker_that_fails_is_dropped_and_the_run_goes_on(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_later(*_: object) -> object:
        def send(step: int, _values: dict[str, float]) -> None:
            if step > 3:
                raise ConnectionError("the service is down")

        return send

    monkeypatch.setitem(OPEN, "wandb", broken_later)
    monkeypatch.setitem(OPEN, "tensorboard", lambda *_: 1 / 0)
    recipe = tiny(data, 'run.trackers=["wandb", "tensorboard"]')
    finish(tmp_path / "run", recipe)
    assert read_metrics(tmp_path / "run")[-1]["step"] == 20
    trackers = Trackers(recipe.run.trackers, tmp_path, recipe, "id")
    for step in range(10):
        trackers.send(step, "train", {"loss": 1.0})
    assert trackers.problems == [
        "tensorboard: division by zero; the run goes on without it",
        "wandb: the service is down; the run goes on without it",
    ]


def test_project_entity_and_group_reach_the_tracker(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []
    for name in ("wandb", "trackio"):  # in the place of the real ones, which need an account
        library = SimpleNamespace(init=lambda **options: asked.append(options))
        monkeypatch.setitem(sys.modules, name, library)
    named = ("run.project=mine", "run.entity=lab", "run.group=pilot")
    for recipe in (tiny(data), tiny(data, *named)):
        assert not Trackers(["wandb", "trackio"], tmp_path, recipe, "id").problems
    keys = ("project", "entity", "group")
    assert [tuple(each.get(key) for key in keys) for each in asked] == [
        ("prism-transformer", None, None), ("prism-transformer", None, None),
        ("mine", "lab", "pilot"), ("mine", None, "pilot"),
    ]  # fmt: skip
