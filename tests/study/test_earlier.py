"""A study goes on from what was collected before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
from optuna.trial import TrialState

from prism_transformer.core.errors import InputError
from prism_transformer.study.api import collected_of, run_study
from prism_transformer.study.collected import (
    Collected,
    RunHashes,
    read_collected,
    write_collected,
)
from prism_transformer.study.compare import compare
from prism_transformer.study.folder import StudyFolder, load_study
from prism_transformer.study.halving import search_study
from prism_transformer.study.sharing import Crew
from tests.study.files import STAGES, STUDY, learnt, write_study

# What `finished` is of, begun as it might have been: other names, fewer arms, and swept.
OTHER = """
base = "{base}"
baseline = "flat"
seeds = [1, 0]
[arms]
flat = "8x3"
[sweep]
optim.lr = [0.001, 0.003]
"""


def kept(finished: StudyFolder, tmp_path: Path, *, seeds: str, arms: str = "uniform,prism") -> Path:
    """A part of the finished study, collected."""
    part = load_study(finished, seeds=seeds, arms=arms)
    part.collect(out=tmp_path / "kept", note="Beside other work.")
    return tmp_path / "kept"


def changed(folder: Path, found: Collected, **facts: object) -> None:
    update = found.facts.model_copy(update=facts)
    write_collected(folder, Collected(update, found.table, found.items))


@pytest.mark.slow
def test_half_a_study_collected_and_continued_gives_the_whole_table(
    finished: StudyFolder, tmp_path: Path
) -> None:
    half = kept(finished, tmp_path, seeds="0")
    study = load_study(finished.plan.file, tmp_path / "there", with_=[half])
    assert [run.cell.name for run in study.runs] == ["uniform-seed1", "prism-seed1"]
    assert study.status().values("state")[0] == f"done: collected in {half}"
    assert study.status().values("step") == [20, 20, 0, 0]

    result = run_study(study, device="cpu")
    there = sorted(each.name for each in (tmp_path / "there" / "runs").iterdir() if each.is_dir())
    assert there == ["prism-seed1", "uniform-seed1"]  # nothing was run again

    wanted = read_collected(finished.folder / "collected")
    found = read_collected(tmp_path / "there" / "collected")
    pd.testing.assert_frame_equal(learnt(found), learnt(wanted))
    pd.testing.assert_frame_equal(found.items, wanted.items)
    rest = {"command", "note", "runs", "looked", "plans"}
    assert found.facts.model_dump(exclude=rest) == wanted.facts.model_dump(exclude=rest)
    assert found.facts.looked == (1, 2)  # half of it was seen before, wherever that was
    assert found.facts.complete
    assert found.facts.command == f"prism study run tiny --with {half}"
    assert found.facts.note == "Beside other work."
    again = study.collect(out=tmp_path / "whole", note="All of it.")
    assert again.facts.note == "All of it."
    assert [run.hashes for run in found.facts.runs] == [run.hashes for run in wanted.facts.runs]
    ours, theirs = (each.rows[0].difference for each in (result.comparison, compare(wanted)))
    assert ours == theirs

    # Without the folder its cells are to do again: no queue remembers them as done.
    alone = load_study(study.plan.file, tmp_path / "there")
    assert str(alone.status().values("state")[0]).startswith("to do: train")
    assert collected_of(alone).facts.runs[0].state == "missing"
    queue = alone.queue()
    alone.begin(queue)
    assert queue.counts()[TrialState.WAITING] == 2


def test_a_cell_that_is_in_both_comes_from_the_run_folder(
    finished: StudyFolder, tmp_path: Path
) -> None:
    folder = kept(finished, tmp_path, seeds="0")
    shutil.copytree(
        finished.run_of(finished.plan.cells[0]).folder, tmp_path / "x/runs/uniform-seed0"
    )
    found = read_collected(folder)
    found.table["value"] += 1
    write_collected(folder, found)
    study = load_study(finished.plan.file, tmp_path / "x", with_=[folder])
    assert [each.cell.name for each in study.earlier] == ["prism-seed0"]
    losses = collected_of(study).final_loss()
    wanted = read_collected(finished.folder / "collected").final_loss()
    assert losses["uniform"][0] == wanted["uniform"][0]
    assert losses["prism"][0] == wanted["prism"][0] + 1


def test_cells_are_known_by_what_they_are_and_not_by_their_names(
    finished: StudyFolder, tmp_path: Path, data: Path
) -> None:
    """The recipe's own learning rate is a point of the sweep now."""
    folder = kept(finished, tmp_path, seeds="0,1")
    file = write_study(tmp_path, data, OTHER, "other")
    study = load_study(file, tmp_path / "other", with_=[folder])
    assert [each.cell.name for each in study.earlier] == ["flat-point1-seed1", "flat-point1-seed0"]
    found = collected_of(study)
    assert set(found.table["arm"]) == {"flat"}
    assert set(found.table["point"]) == {1}
    wanted = read_collected(finished.folder / "collected").final_loss()["uniform"]
    assert found.final_loss(1)["flat"].to_dict() == wanted.to_dict()

    # And back: what was collected with a sweep stands for a study without.
    study.collect(out=tmp_path / "swept")
    again = load_study(finished.plan.file, tmp_path / "again", with_=[tmp_path / "swept"])
    assert [each.cell.name for each in again.earlier] == ["uniform-seed0", "uniform-seed1"]


def test_a_search_judges_collected_runs(finished: StudyFolder, tmp_path: Path, data: Path) -> None:
    folder = kept(finished, tmp_path, seeds="0,1")
    text = STUDY + STAGES + "[search]\nrungs = [0.5]\nkeep = 0.9\n"
    study = load_study(write_study(tmp_path, data, text), tmp_path / "x", with_=[folder])
    standings = [each for rung in search_study(study, Crew("cpu")) for each in rung.standings]
    assert [(each.step, each.arm) for each in standings] == [
        (10, "uniform"), (10, "prism"), (20, "uniform"), (20, "prism"),
    ]  # fmt: skip
    for each in standings:
        mine = [finished.run_of(c) for c in finished.plan.cells if c.arm == each.arm]
        assert each.loss == pytest.approx(sum(run.values(each.step)[0] for run in mine) / 2)
    assert not (tmp_path / "x" / "runs").exists()

    found = read_collected(folder)
    early = found.table[found.table["step"].fillna(0) != 10]
    write_collected(folder, Collected(found.facts, early, found.items))
    blind = load_study(study, tmp_path / "y", with_=[folder])
    with pytest.raises(InputError, match="kept: uniform-seed0 has no loss at step 10"):
        next(search_study(blind, Crew("cpu")))
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            STUDY.replace("[arms]", "[recipe]\noptim.beta2 = 0.9\n[arms]"),
            r"optim.beta2: 0.95 -> 0.9",
        ),
        (STUDY.replace("[0, 1]", "[5]"), "none of its 4 complete runs is one of .*tiny.toml"),
        (STUDY + '[eval]\ntasks = ["diagnostic"]\n', "uniform-seed0 has no eval"),
        (STUDY + "[loss]\nsequences = 2\ntimes = [2]\n", "uniform-seed0 has no loss"),
    ],
)
def test_what_another_study_found_is_refused(
    finished: StudyFolder, tmp_path: Path, data: Path, text: str, reason: str
) -> None:
    folder = kept(finished, tmp_path, seeds="0,1")
    with pytest.raises(InputError, match=f"--with .*kept: .*{reason}"):
        load_study(write_study(tmp_path, data, text), tmp_path / "x", with_=[folder])
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("key", ["initial_weights", "data_order", "shards"])
def test_unequal_starts_are_refused_by_name(
    finished: StudyFolder, tmp_path: Path, key: str
) -> None:
    folder = kept(finished, tmp_path, seeds="0", arms="uniform")
    found = read_collected(folder)
    (run,) = found.facts.runs
    assert run.hashes
    hashes = RunHashes.model_validate(run.hashes.model_dump() | {key: "0123456789ab"})
    changed(folder, found, runs=(run.model_copy(update={"hashes": hashes}),))
    place = tmp_path / "x" / "runs" / "prism-seed0"
    shutil.copytree(finished.folder / "runs" / "prism-seed0", place)
    study = load_study(finished.plan.file, tmp_path / "x", with_=[folder])
    reason = "prism-seed0 and uniform-seed0 of .*kept cannot be compared: .* differ: .*0123456789ab"
    for ask in (study.check, lambda: collected_of(study)):
        with pytest.raises(InputError, match=reason):
            ask()


def test_runs_that_were_not_complete_are_to_do(
    finished: StudyFolder, tmp_path: Path, data: Path
) -> None:
    folder = kept(finished, tmp_path, seeds="0")
    found = read_collected(folder)
    first, second = found.facts.runs
    changed(folder, found, runs=(first.model_copy(update={"state": "incomplete"}), second))
    file = write_study(tmp_path, data, STUDY + STAGES)
    assert [e.cell.name for e in load_study(file, with_=[folder]).earlier] == ["prism-seed0"]


def test_a_folder_that_holds_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: nothing collected there"):
        load_study("demo", with_=[tmp_path / "nowhere"])
