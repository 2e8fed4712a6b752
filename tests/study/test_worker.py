"""Doing cells: every stage once, alone or together."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from prism_transformer.analysis.profile import Profile, attention_profile
from prism_transformer.core.progress import Advance, Begun, Event, Measured, Note, Of
from prism_transformer.models.cost import utilisation_flops
from prism_transformer.study.collected import read_collected
from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.plan import Plan
from prism_transformer.study.runs import CellFailed
from prism_transformer.study.worker import Worker, shared_compiler
from prism_transformer.training.device import compiling_pays
from prism_transformer.training.neighbours import COMPILE
from prism_transformer.training.run import (
    METRICS_FILE,
    checkpoints,
    read_environment,
    read_metrics,
)
from prism_transformer.training.stopping import Stopped
from tests.study.files import STUDY, finish_study, tiny_plan


def test_every_stage_of_every_cell_is_done(finished: StudyFolder) -> None:
    for cell in finished.plan.cells:
        run = finished.run_of(cell)
        assert run.step == 20
        assert run.to_do(20) == []
        assert run.values(20)[0] == read_metrics(run.folder)[-2]["loss"]
    facts = read_collected(finished.folder / "collected").facts
    assert facts.complete
    assert facts.scale is None


def test_a_second_call_trains_nothing(finished: StudyFolder) -> None:
    before = {
        cell.name: (finished.run_of(cell).folder / METRICS_FILE).stat().st_mtime_ns
        for cell in finished.plan.cells
    }
    finish_study(finished.plan, finished.folder)
    after = {
        cell.name: (finished.run_of(cell).folder / METRICS_FILE).stat().st_mtime_ns
        for cell in finished.plan.cells
    }
    assert before == after


def test_a_lost_stage_is_done_again_and_nothing_else(finished: StudyFolder, tmp_path: Path) -> None:
    """As is one that the study did not have before, whatever the queue remembers."""
    copy = tmp_path / "tiny"
    shutil.copytree(finished.folder, copy)
    home = StudyFolder(finished.plan, copy)
    run = home.run_of(finished.plan.cells[1])
    lost = run.analysis_folder / "attention.json"
    kept = json.loads(lost.read_text("utf-8"))
    lost.unlink()
    assert run.to_do(20) == ["analyze"]
    told: list[Event] = []
    queue = home.queue()
    home.begin(queue)
    queue.work(Worker(finished.plan, copy, device="cpu", tell=told.append).do)
    parts = [each for each in told if isinstance(each, Of)]
    assert parts == told
    assert {each.part for each in parts} == {run.cell.name}
    events = [each.event for each in parts]
    assert [each.what for each in events if isinstance(each, Begun)] == ["analyze"]
    assert events[0] == Advance("run", 0, 1, "stages")
    assert events[-1] == Advance("run", 1, 1, "stages")
    assert not [each for each in events if isinstance(each, Measured)]
    again = json.loads(lost.read_text("utf-8"))
    assert again["profile"] == kept["profile"]
    assert again["text"] == kept["text"]


MILESTONES = """
[recipe]
run.keep_checkpoints = 1
[analyze]
sequences = 2
at = [0.25, 0.5, 1]
[loss]
sequences = 2
at = [0.5, 1]
"""


@pytest.mark.slow
def test_milestones_are_measured_from_checkpoints_that_are_kept(tmp_path: Path, data: Path) -> None:
    plan = tiny_plan(tmp_path, data, STUDY.replace("[0, 1]", "[0]") + MILESTONES)
    home = finish_study(plan, tmp_path / "tiny")
    run = home.runs[1]
    assert run.cell.recipe.run.milestones == [5, 10]
    assert [int(each.name[-2:]) for each in checkpoints(run.folder)] == [5, 10, 20]
    assert run.to_do(20) == []
    table = home.collect().table
    mine = table[table["arm"] == "prism"].set_index("metric")
    for share, step in ((0.25, 5), (0.5, 10)):
        model = attention_profile(run.folder, checkpoint=f"step-{step}", sequences=2)
        rows = mine.loc[f"attention.distance@{share:g}"]
        assert set(rows["step"]) == {step}
        assert rows["value"].tolist() == [layer["distance"].layer for layer in model.layers]
    names = set(mine.index)
    assert "loss_at_position@0.5" in names
    assert "loss_at_position@0.25" not in names
    lost = run.folder / "analysis" / "step-00000010" / "loss.json"
    lost.unlink()
    assert (run.to_do(20), run.lacking("loss"), run.lacking("analyze")) == (["loss"], [10], [])


@pytest.mark.slow
def test_training_that_fails_is_a_failed_cell(tmp_path: Path, data: Path) -> None:
    text = STUDY + 'hot = { schedule = "prism", optim.lr = 1e30 }\n'
    plan = tiny_plan(tmp_path, data, text)
    home = finish_study(plan, tmp_path / "tiny")
    failures = home.failures()
    assert set(failures) == {"hot-seed0", "hot-seed1"}
    assert "stopped before the update" in failures["hot-seed0"]
    states = {run.run: run.state for run in home.collect().facts.runs}
    assert states["hot-seed0"] == "failed"
    assert states["prism-seed1"] == "complete"


@pytest.mark.slow
def test_processes_train_a_cell_together(tmp_path: Path, data: Path) -> None:
    plan: Plan = tiny_plan(tmp_path, data, STUDY.replace("[0, 1]", "[0]\nprocesses = 2"))
    home = finish_study(plan, tmp_path / "tiny")
    alone = finish_study(
        tiny_plan(tmp_path, data, STUDY.replace("[0, 1]", "[0]")), tmp_path / "alone"
    )
    for cell in plan.cells:
        together, single = home.run_of(cell).values(20)[0], alone.run_of(cell).values(20)[0]
        assert together == pytest.approx(single, abs=1e-4)
        sessions = home.collect().facts.runs[0].sessions
        assert [session["processes"] for session in sessions] == [2]


MEASURED = (
    STUDY
    + """
[recipe]
model.seq_len = 128
data.val_tokens = 1536
train.micro_batch = 2
[analyze]
sequences = 3
[loss]
sequences = 12
times = [2]
scalings = ["none", "yarn"]
[eval]
tasks = ["diagnostic"]
limit = 3
"""
)


@pytest.mark.slow
def test_processes_measure_a_cell_together(tmp_path: Path, data: Path) -> None:
    """And find what one finds, to the rounding of sums."""
    plan = tiny_plan(tmp_path, data, MEASURED)
    alone = StudyFolder(plan, tmp_path / "alone")
    Worker(plan, alone.folder, device="cpu").do("prism-seed0", 20)
    cell = plan.cell("prism", plan.cells[0].point, 0)
    one = alone.run_of(cell)
    shutil.copytree(alone.folder, tmp_path / "two")
    two = StudyFolder(plan, tmp_path / "two").run_of(cell)
    for folder in ("analysis", "eval"):
        shutil.rmtree(two.folder / folder)
    assert two.to_do(20) == ["eval", "loss", "analyze"]
    Worker(plan, tmp_path / "two", processes=2, device="cpu").do("prism-seed0", 20)
    assert two.to_do(20) == []
    for name, count in (("loss", 12), ("loss-256", 6), ("loss-256-yarn-2", 6)):
        files = [run.analysis_folder / f"{name}.json" for run in (one, two)]
        losses = [json.loads(file.read_text()) for file in files]
        assert losses[1]["sequences"] == losses[0]["sequences"] == count
        assert losses[1]["loss"] == pytest.approx(losses[0]["loss"], rel=1e-12)
    profiles = [Profile.read(run.analysis_folder / "attention.json") for run in (one, two)]
    assert [profile.n_sequences for profile in profiles] == [3, 3]
    for statistic in profiles[0].statistics:
        assert profiles[1].means(statistic) == pytest.approx(profiles[0].means(statistic), rel=1e-9)
    (scored,) = two.folder.rglob("diagnostic.json")
    assert json.loads(scored.read_text())["processes"] == 2


AUTO = STUDY.replace("[arms]", '[recipe]\ntrain.compile = "auto"\ntrain.tokens = {tokens}\n[arms]')


def test_whether_to_compile_is_a_matter_of_the_whole_study(tmp_path: Path, data: Path) -> None:
    short, long = (
        tiny_plan(tmp_path, data, AUTO.replace("{tokens}", tokens))
        for tokens in ("51_200", "51_200_000")
    )
    for plan, choice in ((short, "off: "), (long, "on: ")):
        told = [shared_compiler(plan, tmp_path / "new", cell, "cpu") for cell in plan.cells]
        assert told == [told[0]] * 4  # all arms alike
        assert told[0][COMPILE].startswith(f"{choice}the study's 4 runs of ")
    flops = long.base.train.tokens * utilisation_flops(long.base.model, 32)
    assert not compiling_pays(flops, "cpu")  # one of them alone would not be worth it
    fixed = tiny_plan(tmp_path, data, AUTO.replace('"auto"', '"off"').replace("{tokens}", "51_200"))
    assert shared_compiler(fixed, tmp_path / "new", fixed.cells[0], "cpu") == {}


def test_a_study_that_goes_on_compiles_as_its_first_run_did(tmp_path: Path, data: Path) -> None:
    short, long = (
        tiny_plan(tmp_path, data, AUTO.replace("{tokens}", tokens))
        for tokens in ("10_240", "51_200_000")
    )
    Worker(short, tmp_path / "tiny", device="cpu").do("uniform-seed0", 20)
    home = StudyFolder(short, tmp_path / "tiny")
    (session,) = read_environment(home.runs[0].folder)["sessions"]
    assert not session["compiled"]
    assert session["compile_reason"].startswith("the study's 4 runs of ")
    told = shared_compiler(long, home.folder, long.cells[3], "cpu")
    assert told == {COMPILE: "off: as uniform-seed0, the first run of this study"}


def test_a_worker_with_another_study_file_says_so(finished: StudyFolder) -> None:
    worker = Worker(finished.plan, finished.folder, device="cpu")
    with pytest.raises(CellFailed, match="do all workers have the same"):
        worker.do("nobody-seed0", 20)


def test_a_signal_is_no_failure(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Stopped("stopped at step 3, saved", signal.SIGTERM)

    monkeypatch.setattr("prism_transformer.study.worker.train", stopped)
    plan, told = tiny_plan(tmp_path, data), list[Event]()
    worker = Worker(plan, tmp_path / "tiny", device="cpu", tell=told.append)
    with pytest.raises(Stopped, match="the same command goes on") as caught:
        worker.do("uniform-seed0", 20)
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert not [event for event in told if isinstance(event, Note)]
