"""How a study shares a machine, and how long it says that takes."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.models.cost import parameters
from prism_transformer.study.api import run_study, work_on
from prism_transformer.study.folder import StudyFolder, load_study
from prism_transformer.study.forecast import forecast
from prism_transformer.study.sharing import Crew
from prism_transformer.training import device
from prism_transformer.training.run import read_metrics
from tests.study.files import STAGES, STUDY, tiny_plan, write_study


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"workers": 3}, "--workers 3: with 1 GPU for each that is 3, there are 2; give at most 2"),
        ({"workers": 2, "processes": 2}, "that is 4, there are 2; give at most 1"),
        ({"workers": "auto", "processes": 4}, "processes = 4: a run needs 4 GPUs, there are 2"),
    ],
)
def test_more_gpus_than_there_are_is_said_before_anything_starts(
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    reason: str,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)  # pretended
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda *_, **__: True)
    study = load_study(write_study(tmp_path, data), tmp_path / "here")
    with pytest.raises(InputError, match=reason):
        run_study(study, device="cuda", **options)
    with pytest.raises(InputError, match=reason):
        work_on(study, Crew("cuda", **options))
    assert not study.folder.exists()


def test_a_forecast_counts_workers(
    finished: StudyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished.folder, tmp_path / "tiny")
    study = StudyFolder(finished.plan, tmp_path / "tiny")
    for run in study.runs:
        shutil.rmtree(run.folder / "checkpoints")
    alone = forecast(study, Crew("cpu")).training_seconds
    assert forecast(study, Crew("cpu", 2)).training_seconds == pytest.approx(alone / 2)
    assert forecast(study, Crew("cpu", 9)).training_seconds == pytest.approx(alone / 4)  # cells
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)  # pretended
    assert forecast(study, Crew("cuda", "auto", 2)).training_seconds == pytest.approx(alone / 2)


def test_runs_that_are_there_say_how_fast_the_others_will_be(
    finished: StudyFolder, tmp_path: Path
) -> None:
    assert forecast(finished, Crew("cpu")).training_seconds == 0
    shutil.copytree(finished.folder, tmp_path / "tiny")
    study = StudyFolder(finished.plan, tmp_path / "tiny")
    shutil.rmtree(study.runs[0].folder)
    rates = [
        row["tokens_per_second"]
        for run in study.runs[1:]
        for row in read_metrics(run.folder)
        if row["kind"] == "train"
    ]
    tokens = study.plan.base.n_steps * study.plan.base.train.batch_tokens
    left = forecast(study, Crew("cpu"))
    assert left.training_seconds == pytest.approx(tokens / median(rates))
    assert left.why == "by the runs that are there"


def test_a_first_guess_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        pytest.fail("a plan must not change the process or try the compiler")

    monkeypatch.setattr(device, "_compiler_problem", refused)
    monkeypatch.setattr(device, "keep_memory", refused)
    left = forecast(load_study("large", tmp_path / "large"), Crew("cpu", "auto"))
    assert left.training_seconds > 0
    assert left.why == "a guess from matrix products"
    assert not (tmp_path / "large").exists()


def test_disk_and_the_papers_machine(finished: StudyFolder, tmp_path: Path) -> None:
    assert forecast(finished, Crew("cpu")).disk_bytes == 0
    shutil.copytree(finished.folder, tmp_path / "tiny")
    study = StudyFolder(finished.plan, tmp_path / "tiny")
    run = study.runs[0]
    files = [file for file in run.folder.rglob("*") if file.is_file() and "eval" not in str(file)]
    taken = sum(file.stat().st_size for file in files)
    shutil.rmtree(run.folder)
    left = forecast(study, Crew("cpu", "auto"))
    assert left.disk_bytes == pytest.approx(taken, rel=0.5)
    # 6 N + 12 L d T operations a token, on eight H100 of 989 TFLOP/s at 40 %.
    model, train = run.cell.recipe.model, run.cell.recipe.train
    n = parameters(model).active
    flops = 6 * n + 12 * model.n_layers * model.d_model * model.seq_len
    tokens = run.cell.recipe.n_steps * train.batch_tokens
    expected = tokens * flops / (8 * 989e12 * 0.4)
    assert left.h100_training_seconds == pytest.approx(expected, rel=0.01)


def test_milestones_of_training_are_counted(tmp_path: Path, data: Path) -> None:
    """Measured at two milestones more: thrice the tokens that go forward, two checkpoints more."""
    often = STAGES.replace("[loss]", "[loss]\nat = [0.25, 0.5, 1]").partition("[inference]")[0]
    once = often.replace("at = [0.25, 0.5, 1]\n", "").replace("[analyze]\nsequences = 2", "")
    often = often.replace("[analyze]\nsequences = 2", "")
    few, many = (
        forecast(StudyFolder(tiny_plan(tmp_path, data, STUDY + text), tmp_path / name), Crew("cpu"))
        for name, text in (("once", once), ("often", often))
    )
    assert many.h100_evaluation_seconds == pytest.approx(3 * few.h100_evaluation_seconds)
    assert many.disk_bytes > 1.5 * few.disk_bytes
