"""Studies from Python, without a command or a terminal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Event, Note, Of
from prism_transformer.study.api import collected_of, compare_runs, run_study, work_on
from prism_transformer.study.collected import read_collected
from prism_transformer.study.compare import compare
from prism_transformer.study.folder import StudyFolder, load_study
from prism_transformer.study.sharing import Crew
from tests.study.files import STUDY, write_study


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"device": "gpu"}, "device 'gpu'"),
        ({"processes": 0}, "--processes 0: give at least 1"),
        ({"heartbeat": 0}, "--heartbeat 0: give at least 1"),
        ({"workers": 0}, "--workers 0: give 'auto' or a number"),
        ({"workers": "many"}, "--workers 'many': give 'auto' or a number"),
    ],
)
def test_what_no_worker_can_use_is_refused_before_anything_is_written(
    tmp_path: Path, data: Path, options: dict[str, Any], reason: str
) -> None:
    study = load_study(write_study(tmp_path, data), tmp_path / "here")
    with pytest.raises(InputError, match=reason):
        run_study(study, **options)
    with pytest.raises(InputError, match=reason):
        work_on(study, Crew(**options))
    assert not study.folder.exists()


def test_asking_what_was_found_writes_nothing(tmp_path: Path, data: Path) -> None:
    study = load_study(write_study(tmp_path, data))
    moved = load_study(study, tmp_path / "elsewhere")
    assert moved.folder == tmp_path / "elsewhere"
    with pytest.raises(InputError, match=r"begin with: prism study run .*tiny\.toml$"):
        collected_of(moved)
    with pytest.raises(InputError, match=r"begin with: prism study run demo$"):
        collected_of("demo", tmp_path / "elsewhere")
    assert not moved.folder.exists()


def test_a_study_that_is_done_is_compared_and_nothing_runs(
    finished: StudyFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished.folder, tmp_path / "tiny")
    told: list[Event] = []
    result = run_study(StudyFolder(finished.plan, tmp_path / "tiny"), tell=told.append)
    assert not told
    assert result.failures == {}
    losses = result.collected.final_loss()
    (row,) = result.comparison.rows
    assert row.difference is not None
    assert row.difference.mean == pytest.approx((losses["prism"] - losses["uniform"]).mean())
    sentence, rate = result.sentences
    assert "tuned for none" in rate
    assert sentence.startswith("prism against uniform: ")
    assert sentence in str(result)
    assert ">prism</td>" in result._repr_html_()
    assert compare(collected_of(tmp_path / "tiny" / "collected")) == result.comparison
    assert capsys.readouterr().out == ""


def test_a_smaller_selection_reuses_what_the_bigger_study_finished(
    finished: StudyFolder, tmp_path: Path
) -> None:
    shutil.copytree(finished.folder, tmp_path / "tiny")
    told: list[Event] = []
    few = load_study(finished.plan.file, tmp_path / "tiny", seeds=[1], arms="uniform,prism")
    result = run_study(few, tell=told.append)
    assert not told
    assert result.collected.facts.complete
    assert result.comparison.seeds == (1,)
    (row,) = result.comparison.rows
    losses = read_collected(finished.folder / "collected").final_loss()
    assert row.difference
    assert row.difference.mean == pytest.approx(losses["prism"][1] - losses["uniform"][1])
    # And the bigger study is as it was.
    assert load_study(finished, tmp_path / "tiny").status().values("state") == ["done"] * 4


def test_an_override_is_trained_with(tmp_path: Path, data: Path) -> None:
    file = write_study(tmp_path, data)
    study = load_study(
        file, tmp_path / "tiny", overrides=["train.tokens=1_024", "run.val_every=1"], seeds="0"
    )
    result = run_study(study, device="cpu")
    assert {run.seed for run in result.collected.facts.runs} == {0}
    assert result.collected.facts.recipe.train.tokens == 1024
    assert result.collected.facts.command == (
        "prism study run tiny train.tokens=1_024 run.val_every=1 --seeds 0"
    )
    (row,) = result.comparison.rows
    assert row.seeds == (0,)
    # The same runs as if they had been trained one by one.
    alone = compare_runs([study.run_of(cell).folder for cell in study.plan.cells])
    assert alone.comparison.to_json()["rows"] == result.comparison.to_json()["rows"]
    assert alone.sentences == result.sentences


def test_a_study_tells_what_its_runs_do_and_which_failed(tmp_path: Path, data: Path) -> None:
    text = STUDY.replace("[0, 1]", "[0]") + 'hot = { schedule = "prism", optim.lr = 1e30 }\n'
    told: list[Event] = []
    study = load_study(write_study(tmp_path, data, text), tmp_path / "tiny")
    result = run_study(study, device="cpu", tell=told.append)
    assert set(result.failures) == {"hot-seed0"}
    assert "FAILED  hot-seed0" in result._repr_html_()
    names = [cell.name for cell in study.plan.cells]
    parts = [event.part for event in told if isinstance(event, Of)]
    assert list(dict.fromkeys(parts)) == names
    (failed,) = [event for event in told if isinstance(event, Note)]
    assert failed.line.startswith("FAILED  hot-seed0: ")


def test_helping_needs_a_study_that_was_begun(tmp_path: Path, data: Path) -> None:
    study = load_study(
        write_study(tmp_path, data, STUDY.replace("[0, 1]", "[0]")), tmp_path / "tiny"
    )
    with pytest.raises(InputError, match="no such study"):
        work_on(study)
    study.begin(study.queue())
    assert work_on(study, Crew("cpu")) == {}
    assert [run.to_do(20) for run in study.runs] == [[], []]
