"""The folder of a study, before and after its runs."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.study.api import run_study
from prism_transformer.study.collected import (
    CONTRASTS_FILE,
    STUDY_FILE,
    read_collected,
    write_collected,
)
from prism_transformer.study.compare import compare
from prism_transformer.study.folder import StudyFolder, collect_anew, load_study
from tests.older import without_sums
from tests.study.files import write_study
from tests.study.frames import make_collected


def test_a_study_is_loaded_by_name_by_file_or_as_it_is(tmp_path: Path, data: Path) -> None:
    assert load_study("demo").folder == Path("studies/demo")
    study = load_study(write_study(tmp_path, data), tmp_path / "here")
    assert load_study(study) == study
    assert [run.cell.name for run in study.runs] == [cell.name for cell in study.plan.cells]
    assert not study.folder.exists()  # nothing is written by looking


def test_rates_are_taken_out_of_what_was_collected_and_nothing_else(
    finished: StudyFolder, tmp_path: Path
) -> None:
    before = finished.collect(out=tmp_path / "first")
    assert all(row.throughput for row in compare(before).rows)
    again = load_study(finished.plan.file, tmp_path / "none", with_=[tmp_path / "first"])
    again.collect(out=tmp_path / "first", rates_compare=False)
    after = read_collected(tmp_path / "first")
    assert all(run.beside_others for run in after.facts.runs)
    assert after.facts.command == before.facts.command  # nothing was run since
    assert [run.hashes for run in after.facts.runs] == [run.hashes for run in before.facts.runs]
    assert after.table["value"].tolist() == before.table["value"].tolist()
    (row,) = compare(after).rows
    assert (row.throughput, row.rates_beside_others) == (None, 2)
    assert row.difference == compare(before).rows[0].difference


def test_another_recipe_in_the_same_folder_is_refused(
    finished: StudyFolder, tmp_path: Path
) -> None:
    changed = load_study(finished.plan.file, finished.folder, overrides=["optim.lr=0.004"])
    with pytest.raises(InputError, match=r"optim.lr: 0.003 -> 0.004; .* another --out"):
        run_study(changed)
    with pytest.raises(InputError, match="overrides go with the file of a study"):
        load_study(finished, overrides=["optim.lr=0.004"])


def test_the_status_says_what_is_to_do(finished: StudyFolder, tmp_path: Path, data: Path) -> None:
    assert finished.status().values("state") == ["done"] * 4
    fresh = load_study(write_study(tmp_path, data), tmp_path / "tiny").status()
    assert fresh.values("state") == ["to do: train"] * 4
    assert fresh.values("step") == [0] * 4
    assert not (tmp_path / "tiny").exists()


def test_the_status_follows_metrics_and_not_checkpoints(
    finished: StudyFolder, tmp_path: Path
) -> None:
    shutil.copytree(finished.folder, tmp_path / "tiny")
    study = StudyFolder(finished.plan, tmp_path / "tiny")
    shutil.rmtree(study.runs[0].folder / "checkpoints")
    before, after = finished.status().rows[0], study.status().rows[0]
    assert (after["step"], after["loss"]) == (before["step"], before["loss"]) != (0, None)
    assert after["loss"] == finished.runs[0].values(finished.plan.base.n_steps)[0]
    assert str(after["state"]).startswith("to do: train")


def test_the_queue_can_be_made_again_from_the_run_folders(
    finished: StudyFolder, tmp_path: Path
) -> None:
    copy = tmp_path / "tiny"
    shutil.copytree(finished.folder, copy)
    (copy / "queue.db").unlink()
    home = StudyFolder(finished.plan, copy)
    queue = home.queue()
    home.begin(queue)
    queue.work(lambda name, until: pytest.fail(f"{name} again"))


def test_a_damaged_run_is_named_before_anything_runs(finished: StudyFolder, tmp_path: Path) -> None:
    copy = tmp_path / "tiny"
    shutil.copytree(finished.folder, copy)
    (copy / "runs" / "prism-seed0" / "environment.json").write_text("{", "utf-8")
    home = StudyFolder(finished.plan, copy)
    queue = home.queue()
    with pytest.raises(InputError, match=r"prism-seed0.environment\.json"):
        home.begin(queue)


def test_every_contrast_with_every_seed_is_collected_too(
    finished: StudyFolder, tmp_path: Path
) -> None:
    finished.collect(out=tmp_path)
    lines = pd.read_csv(tmp_path / CONTRASTS_FILE)
    losses = read_collected(tmp_path).final_loss()
    assert lines["contrast"].tolist() == ["prism against uniform"] * 2
    assert lines["seed"].tolist() == [0, 1]
    assert lines["seed_difference"].tolist() == pytest.approx(
        (losses["prism"] - losses["uniform"]).tolist()
    )
    sums = json.loads((tmp_path / STUDY_FILE).read_text("utf-8"))["sums"]
    content = (tmp_path / CONTRASTS_FILE).read_bytes()
    assert sums[CONTRASTS_FILE] == hashlib.sha256(content).hexdigest()


def test_an_older_folder_gets_what_it_lacks_and_keeps_what_it_has(tmp_path: Path) -> None:
    whole = make_collected()
    write_collected(tmp_path, whole)
    without_sums(tmp_path / STUDY_FILE)
    assert collect_anew(tmp_path) == ("its sums", "its contrasts")
    assert collect_anew(tmp_path) == ()
    found = read_collected(tmp_path)
    assert found.facts == whole.facts
    assert found.table.equals(whole.table.astype(found.table.dtypes))
    (tmp_path / CONTRASTS_FILE).unlink()
    assert collect_anew(tmp_path) == ("its contrasts",)
    assert (tmp_path / CONTRASTS_FILE).is_file()
