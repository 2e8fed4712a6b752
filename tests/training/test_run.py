"""A run as a value, read from its folder."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from prism_transformer.core.disk import file_sha256
from prism_transformer.core.errors import InputError
from prism_transformer.study.single_runs import collect_runs
from prism_transformer.training.run import (
    Covered,
    Run,
    checkpoint_folder,
    checkpoints,
    covered,
    read_environment,
    read_metrics,
    trained_recipe,
)
from tests.training.runs import finish, tiny


def test_a_run_is_what_its_folder_says(trained: Path) -> None:
    run = Run.open(str(trained))
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "val"}
    assert run.metrics() == rows
    assert run.losses == losses
    assert list(losses) == [0, 5, 10, 15, 20]
    assert run.loss == losses[20]
    assert checkpoint_folder(trained, run.step).is_dir()
    assert run.complete
    assert [row["tokens"] for row in run.table.rows] == [0, 2560, 5120, 7680, 10240]
    assert Path(run) == trained
    assert str(run) == (
        f"{trained}: 2x1 4x1 8x1 heads, 0.05M parameters, step 20 of 20, "
        f"validation loss {losses[20]:.4f} nats"
    )


def test_a_notebook_shows_the_curve(trained: Path) -> None:
    run = Run.open(trained)
    shown = run._repr_html_()
    assert shown.startswith("<p>")
    assert "validation loss" in shown
    assert shown.count("<svg") == 1
    (axes,) = run.plot().axes
    training, validation = axes.lines
    points = np.asarray(validation.get_data()).T.tolist()
    assert dict(points) == pytest.approx(run.losses)
    assert np.size(training.get_xdata()) == 20


def test_without_matplotlib_a_notebook_shows_a_line(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("prism_transformer.figures")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = Run.open(trained)._repr_html_()
    assert shown.startswith("<p>")
    assert "<svg" not in shown


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run; `prism train` makes one"):
        Run.open(tmp_path)


def test_metrics_that_were_changed_are_named(tmp_path: Path, data: Path) -> None:
    run = tmp_path / "run"
    finish(run, tiny(data))
    file = run / "metrics.jsonl"
    whole = file.read_bytes()
    rows = read_metrics(run)
    loss = str(rows[-2]["loss"]).encode()
    changed = {
        b"": "has 0 bytes, its checkpoint remembers",
        whole[:-40]: "its checkpoint remembers",
        whole.replace(loss, b"1." + loss[2:]): "sha256 differs, it was changed",
        whole + whole.splitlines(keepends=True)[-1]: "has lines of step 20 that its checkpoint has",
    }
    for content, reason in changed.items():
        file.write_bytes(content)
        with pytest.raises(InputError, match=reason):
            read_metrics(run)
        with pytest.raises(InputError, match=reason):
            collect_runs([run])
        if reason[:8] != "has line":  # what no checkpoint covers is dropped by whoever goes on
            with pytest.raises(InputError, match=reason):
                finish(run, tiny(data), resume=True)
    file.write_bytes(whole + b'{"step": 21, "kind": "train"}\n{"half a li')  # still being written
    assert read_metrics(run)[:-1] == rows


def test_a_checkpoint_of_before_sums_knows_the_length_alone(tmp_path: Path, data: Path) -> None:
    run = tmp_path / "run"
    finish(run, tiny(data))
    last = checkpoints(run)[-1]
    state = json.loads((last / "state.json").read_text("utf-8"))
    del state["metrics_sha256"]
    (last / "state.json").write_text(json.dumps(state), "utf-8")
    sums = json.loads((last / "sha256.json").read_text("utf-8"))
    sums["state.json"] = file_sha256(last / "state.json")
    (last / "sha256.json").write_text(json.dumps(sums), "utf-8")
    assert read_metrics(run)
    notes = finish(run, tiny(data), resume=True)
    assert any("carries no sum of metrics.jsonl" in note for note in notes)
    (run / "metrics.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="has 0 bytes"):
        read_metrics(run)


@pytest.mark.parametrize(
    ("keys", "value", "why"),
    [
        (("recipe", "train", "objective"), 10**40, "train.objective = 1000"),
        (("recipe", "optim"), 1, "optim"),
        (("sessions",), [1], "is damaged: has a session that is no table of values"),
    ],
)
def test_an_environment_of_another_shape_is_named(
    trained: Path, tmp_path: Path, keys: tuple[str, ...], value: object, why: str
) -> None:
    file = tmp_path / "environment.json"
    facts = part = read_environment(trained)
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    file.write_text(json.dumps(facts), "utf-8")  # without a sum, as older versions wrote it
    with pytest.raises(InputError, match=f"{re.escape(str(file))}: {why}"):
        trained_recipe(tmp_path)


@pytest.mark.parametrize("name", ["sha256.json", "state.json"])
def test_rows_that_no_sound_checkpoint_vouches_for_are_refused(
    trained: Path, tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    before, last = checkpoints(run)[-2:]
    (last / name).write_bytes(b"")
    with pytest.raises(InputError, match=f"{last}: has no sound state.json, .* goes on from step"):
        read_metrics(run)
    shutil.rmtree(last)  # as killed after the rows and before their checkpoint: nobody's fault
    assert read_metrics(run)[-1]["step"] > int(before.name.removeprefix("step-"))


def test_a_checkpoint_that_comes_while_rows_are_read_is_no_damage(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    last, aside = checkpoints(run)[-1], tmp_path / "last"
    last.rename(aside)

    def then_saved(folder: Path) -> Covered | None:
        known = covered(folder)
        aside.rename(last)
        return known

    monkeypatch.setattr("prism_transformer.training.run.covered", then_saved)
    assert read_metrics(run)
    assert last.is_dir()
