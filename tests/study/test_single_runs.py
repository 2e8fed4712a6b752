"""Runs of no study: which can be compared, and what they say together."""

from __future__ import annotations

import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Event, Note
from prism_transformer.recipes.files import load_recipe
from prism_transformer.study.collected import read_collected
from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.single_runs import collect_runs, group_runs
from prism_transformer.training.run import create_run
from tests.training.runs import finish, tiny

HASHES = {"initial_weights": "w", "data_order": "o", "shards": {"a": "b"}}


def test_runs_that_do_not_belong_together_are_told(
    finished: StudyFolder, tmp_path: Path, data: Path
) -> None:
    runs = [run.folder for run in finished.runs]
    events: list[Event] = []
    assert group_runs(runs, events.append) == [runs]
    assert not events
    again = shutil.copytree(runs[0], tmp_path / "again")
    other = tmp_path / "other"
    finish(other, tiny(data, "train.tokens=1024"))
    assert group_runs([*runs, again, other], events.append) == [runs]
    assert events == [
        Note(f"left out {again}: the same recipe and seed as {runs[0]}"),
        Note(f"left out {other}: no other run can be compared with it"),
    ]
    events.clear()
    assert group_runs([runs[0], other], events.append) == [[runs[0]], [other]]
    assert events[0] == Note("2 groups of runs that cannot be compared with each other:")


def run(folder: Path, name: str, recipe: str = "baseline-micro", *changes: str) -> Path:
    """The folder of a run that has not taken a step."""
    wanted = load_recipe(recipe, list(changes))
    facts = {"hashes": HASHES, "recipe": wanted.model_dump(mode="json")}
    create_run(folder / name, wanted, facts | {"hardware": {}, "software": {}, "sessions": []})
    return folder / name


def test_arms_are_schedules_and_changes_and_the_uniform_one_is_the_baseline(tmp_path: Path) -> None:
    found = collect_runs(
        [
            run(tmp_path, "prism-seed1", "prism-micro", "train.seed=1"),
            run(tmp_path, "prism-seed2", "prism-micro", "train.seed=2"),
            run(
                tmp_path, "tiled", "prism-micro", "model.rope_frequencies=tiled", "run.val_every=7"
            ),
            run(tmp_path, "wide", "baseline-micro", "model.schedule=4x8"),
            run(tmp_path, "flat_s2", "baseline-micro", "train.seed=2"),
        ]
    )
    arms = {arm.name: (arm.schedule, arm.changes) for arm in found.facts.arms}
    assert arms == {
        "prism": ("2x2 4x2 8x4", {}),
        "tiled": ("2x2 4x2 8x4", {"model.rope_frequencies": "tiled"}),
        "wide": ("4x8", {}),
        "flat": ("8x8", {}),
    }
    assert found.baseline == "flat"
    assert found.facts.seeds == (0, 1, 2)
    assert [each.state for each in found.facts.runs] == ["incomplete"] * 5
    assert found.facts.name == tmp_path.name


@pytest.mark.parametrize("name", ["prism-seed1", "prism", "2x2 4x2 8x4", "{folder}/prism-seed1"])
def test_the_baseline_can_be_named_in_several_ways(tmp_path: Path, name: str) -> None:
    runs = [
        run(tmp_path, "flat"),
        run(tmp_path, "prism-seed1", "prism-micro", "train.seed=1"),
        run(tmp_path, "hot", "prism-micro", "optim.lr=0.002"),
    ]
    found = collect_runs(runs, name.replace("{folder}", str(tmp_path)))
    assert found.baseline == "prism"
    assert [arm.changes for arm in found.facts.arms] == [{}, {}, {"optim.lr": 0.002}]
    with pytest.raises(InputError, match="--baseline back: is none of the runs: flat, prism, hot"):
        collect_runs(runs, "back")


def test_names_that_do_not_tell_arms_apart_give_way_to_schedules(tmp_path: Path) -> None:
    found = collect_runs(
        [
            run(tmp_path, "a/run", "prism-micro"),
            run(tmp_path, "b/run", "baseline-micro"),
            run(tmp_path, "c/run", "prism-micro", "optim.lr=0.002"),
        ]
    )
    assert found.arms == ["2x2 4x2 8x4", "8x8", "2x2 4x2 8x4 (2)"]
    assert found.facts.arms[2].changes == {"optim.lr": 0.002}


def test_a_run_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    one = run(tmp_path, "seed0")
    found = collect_runs([one, tmp_path / "." / "seed0", run(tmp_path, "heads2", "prism-micro")])
    assert found.arms == ["seed0", "heads2"]


def test_damaged_runs_are_named(tmp_path: Path) -> None:
    one = run(tmp_path, "one")
    (one / "metrics.jsonl").write_text('{"kind": "val"\n', "utf-8")
    with pytest.raises(InputError, match=r"one.metrics\.jsonl: has a line that is no JSON"):
        collect_runs([one])
    (one / "environment.json").write_text("{}", "utf-8")
    with pytest.raises(
        InputError, match=r"one.environment\.json: is damaged: has no hardware, hashes"
    ):
        collect_runs([one])


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    one = run(tmp_path, "one")
    with pytest.raises(InputError, match=r"two.*one.*train\.tokens: \d+ -> 4096"):
        collect_runs([one, run(tmp_path, "two", "prism-micro", "train.tokens=4096")])
    with pytest.raises(InputError, match=r"three and .*one: the same recipe and the same seed"):
        collect_runs([one, run(tmp_path, "three")])
    with pytest.raises(InputError, match=r"deep.*8 -> 12 layers"):
        collect_runs([one, run(tmp_path, "deep", "prism-micro", "model.schedule=2x4 8x8")])
    with pytest.raises(InputError, match="is not a run"):
        collect_runs([tmp_path])


def test_runs_alone_say_what_their_study_says(finished: StudyFolder) -> None:
    """Read as a report reads them: without torch."""
    folders = [str(finished.run_of(cell).folder) for cell in reversed(finished.plan.cells)]
    code = (
        "import sys; from pathlib import Path\n"
        "from prism_transformer.study.single_runs import collect_runs\n"
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
