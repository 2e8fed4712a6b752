"""What run folders say is done, and whether they may be compared."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.study.folder import StudyFolder
from tests.older import without_sums
from tests.study.files import STAGES, STUDY, tiny_plan


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
    finished: StudyFolder, tmp_path: Path, file: str, old: str, new: str, stage: str
) -> None:
    shutil.copytree(finished.folder / "runs", tmp_path / "runs")
    run = StudyFolder(finished.plan, tmp_path).run_of(finished.plan.cells[0])
    place = run.analysis_folder / file
    text = place.read_text("utf-8")
    assert old in text
    place.write_text(text.replace(old, new), "utf-8")
    assert run.to_do(20) == [stage]


def test_unequal_starts_are_refused_with_the_difference(
    finished: StudyFolder, tmp_path: Path
) -> None:
    copy = tmp_path / "tiny"
    shutil.copytree(finished.folder, copy)
    file = copy / "runs" / "prism-seed1" / "environment.json"
    text = file.read_text("utf-8")
    at = text.index('"initial_weights": "') + len('"initial_weights": "')
    file.write_text(text[:at] + "0123456789ab" + text[at + 12 :], "utf-8")
    with pytest.raises(InputError, match=r"environment.json: is damaged or was changed"):
        StudyFolder(finished.plan, copy).check()
    without_sums(file)
    with pytest.raises(InputError, match=r"initial weights differ: .* and 0123456789ab"):
        StudyFolder(finished.plan, copy).check()


def test_a_changed_recipe_is_refused_before_anything_runs(
    finished: StudyFolder, tmp_path: Path, data: Path
) -> None:
    text = STUDY.replace("[arms]", "[recipe]\noptim.lr = 0.004\n[arms]") + STAGES
    changed = tiny_plan(tmp_path, data, text)
    with pytest.raises(InputError, match=r"optim.lr: 0.003 -> 0.004"):
        StudyFolder(changed, finished.folder).check()
