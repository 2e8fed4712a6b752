"""Doing cells: every stage once, killed or not, alone or together."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from prism_transformer.errors import InputError
from prism_transformer.study.cell import CellFailed
from prism_transformer.study.collect import collect
from prism_transformer.study.plan import Plan
from prism_transformer.study.queue import Queue
from prism_transformer.study.study import Home
from prism_transformer.study.table import Collected, read_collected
from prism_transformer.study.work import Worker
from prism_transformer.train.run import METRICS_FILE, read_metrics
from tests.study.files import STAGES, STUDY, Deaf, finish_study, tiny_plan

CLOCK = ["tokens_per_second", "seconds", "memory_bytes"]


def learnt(found: Collected) -> pd.DataFrame:
    """What no clock decides."""
    metric = found.table["metric"]
    timed = metric.isin(CLOCK) | metric.str.startswith("inference.")
    return found.table[~timed].reset_index(drop=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Home:
    folder = tmp_path_factory.mktemp("study")
    home = finish_study(tiny_plan(folder, data, STUDY + STAGES), folder / "tiny")
    home.collect()
    return home


def test_every_stage_of_every_cell_is_done(finished: Home) -> None:
    for cell in finished.plan.cells:
        run = finished.run_of(cell)
        assert run.step == 20
        assert run.to_do(20) == []
        assert run.values(20)[0] == read_metrics(run.folder)[-2]["loss"]
    facts = read_collected(finished.folder / "collected").facts
    assert facts["complete"]
    assert facts["scale"] is None


def test_the_table_says_what_the_run_folders_say(finished: Home) -> None:
    found = read_collected(finished.folder / "collected")
    assert len(pd.read_csv(finished.folder / "collected" / "table.csv")) == len(found.table)
    for cell in finished.plan.cells:
        run = finished.run_of(cell)
        rows = read_metrics(run.folder)
        mine = found.table[(found.table["arm"] == cell.arm) & (found.table["seed"] == cell.seed)]
        by = dict(list(mine.groupby("metric")))
        losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "val"}
        assert dict(zip(by["val_loss"]["step"], by["val_loss"]["value"], strict=True)) == losses
        assert by["final_val_loss"]["value"].item() == losses[20]
        steps = [row for row in rows if row["kind"] == "train"]
        assert by["train_loss"]["value"].tolist() == [row["loss"] for row in steps]
        assert by["seconds"]["value"].item() == sum(row["seconds"] for row in steps)
        assert by["attention.distance"]["index"].tolist() == [0, 1, 2]
        assert by["loss_at_position"]["index"].tolist() == [1, 2, 4, 8, 16, 32]
        speed = json.loads((run.analysis_folder / "inference.json").read_text("utf-8"))["kinds"]
        assert {kind: each["tokens"] for kind, each in speed.items()} == {
            "prefill": 32, "decoding": 4,
        }  # fmt: skip
        for kind, each in speed.items():
            ours, theirs = each["seconds"], each["baseline_seconds"]
            assert len(ours) == len(theirs) == 3
            rate = each["tokens"] / sorted(ours)[1]
            assert by[f"inference.{kind}"]["value"].item() == pytest.approx(rate)
            middle = sorted(np.divide(theirs, ours))[1]
            assert by[f"inference.{kind}.ratio"]["value"].item() == pytest.approx(middle)


def test_a_second_call_trains_nothing(finished: Home) -> None:
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


def test_the_queue_can_be_made_again_from_the_run_folders(finished: Home, tmp_path: Path) -> None:
    copy = tmp_path / "tiny"
    shutil.copytree(finished.folder, copy)
    (copy / "queue.db").unlink()
    home = Home(finished.plan, copy)
    queue = Queue(finished.plan, copy)
    home.begin(queue)
    queue.work(lambda name, until: pytest.fail(f"{name} again"))


def test_a_lost_stage_is_done_again_and_nothing_else(finished: Home, tmp_path: Path) -> None:
    """As is one that the study did not have before, whatever the queue remembers."""
    copy = tmp_path / "tiny"
    shutil.copytree(finished.folder, copy)
    home = Home(finished.plan, copy)
    run = home.run_of(finished.plan.cells[1])
    lost = run.analysis_folder / "attention.json"
    kept = lost.read_text("utf-8")
    lost.unlink()
    assert run.to_do(20) == ["analyze"]
    done: list[str] = []

    class Listening(Deaf):
        def stage(self, what: str) -> None:
            done.append(what)

    queue = Queue(finished.plan, copy)
    home.begin(queue)
    queue.work(Worker(finished.plan, copy, Listening(), device="cpu").do)
    assert done == ["analyze"]
    assert lost.read_text("utf-8") == kept


@pytest.mark.parametrize(
    ("file", "old", "new", "stage"),
    [
        ("attention.json", '"n_sequences": 2', '"n_sequences": 3', "analyze"),
        ("attention.json", "validation slice", "corpus other.txt", "analyze"),
        ("attention.json", '"profile"', "half", "analyze"),
        ("loss.json", '"sequences": 2', '"sequences": 3', "loss"),
        ("inference.json", '"rounds": 3', '"rounds": 4', "inference"),
    ],
)
def test_what_was_measured_otherwise_is_not_done(
    finished: Home, tmp_path: Path, file: str, old: str, new: str, stage: str
) -> None:
    shutil.copytree(finished.folder / "runs", tmp_path / "runs")
    run = Home(finished.plan, tmp_path).run_of(finished.plan.cells[0])
    place = run.analysis_folder / file
    text = place.read_text("utf-8")
    assert old in text
    place.write_text(text.replace(old, new), "utf-8")
    assert run.to_do(20) == [stage]


def test_runs_alone_say_what_their_study_says(finished: Home) -> None:
    """Read as a report reads them: without torch."""
    folders = [str(finished.run_of(cell).folder) for cell in reversed(finished.plan.cells)]
    code = (
        "import sys; from pathlib import Path\n"
        "from prism_transformer.study.runs import collect_runs\n"
        f"found = collect_runs([Path(each) for each in {folders}])\n"
        "print(found.baseline, found.arms, 'torch' in sys.modules)\n"
        "print(found.table.sort_values(['seed', 'arm'], kind='stable').to_csv(index=False))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    facts, _, table = done.stdout.partition("\n")
    assert facts == "uniform ['prism', 'uniform'] False"
    theirs = read_collected(finished.folder / "collected").table
    theirs = theirs.sort_values(["seed", "arm"], kind="stable").reset_index(drop=True)
    ours = pd.read_csv(StringIO(table)).astype({"step": "Int64", "index": "Int64"})
    pd.testing.assert_frame_equal(ours, theirs, check_dtype=False)


def test_a_damaged_run_is_named_before_anything_runs(finished: Home, tmp_path: Path) -> None:
    copy = tmp_path / "tiny"
    shutil.copytree(finished.folder, copy)
    (copy / "runs" / "prism-seed0" / "environment.json").write_text("{", "utf-8")
    with pytest.raises(InputError, match=r"prism-seed0.environment\.json"):
        Home(finished.plan, copy).begin(Queue(finished.plan, copy))


def test_training_that_fails_is_a_failed_cell(tmp_path: Path, data: Path) -> None:
    text = STUDY + 'hot = { schedule = "prism", optim.lr = 1e30 }\n'
    plan = tiny_plan(tmp_path, data, text)
    home = finish_study(plan, tmp_path / "tiny")
    failures = home.failures()
    assert set(failures) == {"hot-seed0", "hot-seed1"}
    assert "stopped before the update" in failures["hot-seed0"]
    states = {run["run"]: run["state"] for run in home.collect().facts["runs"]}
    assert states["hot-seed0"] == "failed"
    assert states["prism-seed1"] == "complete"


def test_runs_of_several_machines_are_brought_together(finished: Home, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for index, cell in enumerate(finished.plan.cells):
        place = (here, there)[index % 2] / "runs" / cell.name
        shutil.copytree(finished.run_of(cell).folder, place)
    together = collect(finished.plan, [here, there], {})
    alone = read_collected(finished.folder / "collected")
    assert together.facts["complete"]
    pd.testing.assert_frame_equal(learnt(together), learnt(alone), check_dtype=False)
    half = collect(finished.plan, [here], {})
    assert not half.facts["complete"]
    assert [run["state"] for run in half.facts["runs"]].count("missing") == 2


def test_unequal_starts_are_refused_with_the_difference(finished: Home, tmp_path: Path) -> None:
    copy = tmp_path / "tiny"
    shutil.copytree(finished.folder, copy)
    file = copy / "runs" / "prism-seed1" / "environment.json"
    text = file.read_text("utf-8")
    at = text.index('"initial_weights": "') + len('"initial_weights": "')
    file.write_text(text[:at] + "0123456789ab" + text[at + 12 :], "utf-8")
    with pytest.raises(InputError, match=r"initial weights differ: .* and 0123456789ab"):
        Home(finished.plan, copy).check()


def test_a_changed_recipe_is_refused_before_anything_runs(finished: Home, data: Path) -> None:
    text = STUDY.replace("[arms]", "[recipe]\noptim.lr = 0.004\n[arms]") + STAGES
    changed = tiny_plan(finished.folder.parent, data, text)
    with pytest.raises(InputError, match=r"optim.lr: 0.003 -> 0.004"):
        Home(changed, finished.folder).check()


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
        sessions = home.collect().facts["runs"][0]["sessions"]
        assert [session["processes"] for session in sessions] == [2]


def test_a_worker_with_another_study_file_says_so(finished: Home) -> None:
    worker = Worker(finished.plan, finished.folder, Deaf(), device="cpu")
    with pytest.raises(CellFailed, match="do all workers have the same"):
        worker.do("nobody-seed0", 20)
