"""``prism search`` and ``prism reslice`` as a user types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from prism_transformer.schedule import HeadSchedule
from prism_transformer.training.api import train
from tests.conftest import Prism
from tests.search.studies import factorial_study, study, written
from tests.search.test_judge import oracle
from tests.training.runs import tiny


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A one-shot run and a uniform one."""
    folder = tmp_path_factory.mktemp("runs")
    short = ("train.tokens=5120", "run.milestones=[5]")
    train(tiny(data, "train.schedule_sampling=layers 2/8x3", "model.schedule=8x3", *short),
          folder / "shared", device="cpu")  # fmt: skip
    train(tiny(data, "model.schedule=8x3", *short), folder / "uniform", device="cpu")
    return folder


@pytest.mark.slow
def test_one_shot_blocks_and_solve(prism_inside: Prism, runs: Path) -> None:
    shared, uniform = str(runs / "shared"), str(runs / "uniform")
    done = prism_inside("search", "one-shot", shared, "--windows", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["losses"]) == 8
    done = prism_inside("search", "one-shot", shared, "--schedule", "2x1 8x2", "--windows", "2")
    assert "2x1 8x2" in done.stdout
    done = prism_inside("search", "blocks", uniform, "--space", "2/8x3", "--windows", "2")
    assert done.returncode == 0, done.stderr
    done = prism_inside("search", "solve", uniform, "--free", "--json")
    rows = json.loads(done.stdout)
    assert rows[-1]["score"] == min(row["score"] for row in rows) <= 0
    done = prism_inside("search", "solve", uniform, "--within", "1e-9")
    assert (done.returncode, "the fastest takes" in done.stderr) == (2, True)


def test_what_is_refused_exits_with_2(prism_inside: Prism, runs: Path) -> None:
    for arguments, problem in (
        (["one-shot", str(runs / "uniform")], "was trained under 8x3 alone"),
        (["one-shot", str(runs / "shared"), "--space", "2/8"], "has 1 layer but the model has 3"),
        (["one-shot", str(runs / "shared"), "--schedule", "4x3"], "is not in the space 2/8x3"),
        (["solve"], "name runs"),
        (["solve", "nope"], "no blocks there; `prism search blocks RUN` makes some"),
        (["evaluate", "--truth", "nothing"], "nothing collected there"),
    ):
        done = prism_inside("search", *arguments)
        assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_evaluate_writes_and_prints(prism_inside: Prism, tmp_path: Path) -> None:
    truth = written(tmp_path / "truth", factorial_study(0.01))
    scores = oracle(tmp_path / "scores", 1.0)
    done = prism_inside("search", "evaluate", str(scores), "--truth", str(truth), "--out", "found")
    assert done.returncode == 0, done.stderr
    assert "one-shot" in done.stdout
    assert (tmp_path / "found" / "predictors.svg").is_file()
    again = prism_inside("search", "evaluate", "--truth", str(truth), "--out", "found", "--json")
    assert json.loads(again.stdout)["predictors"][0]["predictor"] == "one-shot"


def test_a_study_that_judges_nothing_exits_with_2(prism_inside: Prism, tmp_path: Path) -> None:
    arms = {str(n): HeadSchedule.uniform(n, 8) for n in (1, 2)}
    few = study(arms, {"1": [3.0], "2": [3.1]}, factorial=False)
    line = ["search", "evaluate", "--truth", str(written(tmp_path / "few", few)), "--out", "found"]
    done = prism_inside(*line)
    assert done.returncode == 2
    assert "nothing could be judged: known: fewer than 4 schedules" in " ".join(done.stderr.split())
    assert not (tmp_path / "found").exists()


def test_reslice_then_resume(prism_inside: Prism, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "uniform", tmp_path / "uniform")
    line = ["reslice", "uniform", "--schedule", "2x1", "8x2", "--at", "5", "--out", "new"]
    done = prism_inside(*line)
    assert done.returncode == 0, done.stderr
    assert "reshape" in done.stdout
    assert prism_inside("resume", "new", "--device", "cpu").returncode == 0
    again = prism_inside("reslice", "uniform", "--schedule", "2x1 8x2", "--at", "5", "--json")
    assert json.loads(again.stdout)["run"] == "uniform-2x1-8x2"
    assert prism_inside(*line).returncode == 2
    shutil.rmtree(tmp_path / "uniform-2x1-8x2")
    inside = ["reslice", "uniform/checkpoints/..", "--schedule", "2x1 8x2", "--at", "5"]
    assert prism_inside(*inside).returncode == 0
    assert (tmp_path / "uniform-2x1-8x2" / "recipe.toml").is_file()  # though ".." is no name
    nothing = prism_inside("reslice", "/", "--schedule", "2x1 8x2")
    assert nothing.returncode == 2
    assert nothing.stderr.startswith("error: /: ")


def test_learned_designs_say_where_they_come_from(prism_inside: Prism) -> None:
    shape = ["--d-model", "512", "--layers", "12", "--h-base", "8"]
    done = prism_inside("schedule", "design", *shape, "--learned", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["source"] == "the paper's rule"
    assert "the paper's rule" in prism_inside("schedule", "design", *shape, "--learned").stdout
