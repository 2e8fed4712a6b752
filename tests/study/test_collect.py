"""One table of everything that run folders say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.eval.results import write_result
from prism_transformer.recipes.files import load_recipe
from prism_transformer.study.collect import collect, collect_runs
from prism_transformer.study.collected import read_collected
from prism_transformer.study.compare import compare
from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.sentences import sentence
from prism_transformer.training.run import create_run, read_metrics
from tests.study.files import STUDY, finish_study, learnt, tiny_plan

HASHES = {"initial_weights": "w", "data_order": "o", "shards": {"a": "b"}}


def test_the_table_says_what_the_run_folders_say(finished: StudyFolder) -> None:
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


def test_runs_of_several_machines_are_brought_together(
    finished: StudyFolder, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for index, cell in enumerate(finished.plan.cells):
        place = (here, there)[index % 2] / "runs" / cell.name
        shutil.copytree(finished.run_of(cell).folder, place)
    together = collect(finished.plan, [here, there], {})
    alone = read_collected(finished.folder / "collected")
    assert together.facts.complete
    pd.testing.assert_frame_equal(learnt(together), learnt(alone), check_dtype=False)
    half = collect(finished.plan, [here], {})
    assert not half.facts.complete
    assert [run.state for run in half.facts.runs].count("missing") == 2


# -- runs of no study


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
        "from prism_transformer.study.collect import collect_runs\n"
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


def test_items_keep_the_subtask_or_template_that_they_share(
    finished: StudyFolder, tmp_path: Path
) -> None:
    home = StudyFolder(finished.plan, tmp_path / "tiny")
    shutil.copytree(finished.folder, home.folder)
    groups = {"diagnostic_pairs": ["diagnostic_b", "diagnostic_a"]}
    rows = [
        {"task": task, "metric": "acc", "value": 0.5, "items": 6, "stderr": None}
        for task in ("diagnostic_pairs", "diagnostic_cloze")
    ]
    sizes = {"diagnostic_a": 2, "diagnostic_b": 4, "diagnostic_cloze": 6}
    names = [(task, item) for task, size in sizes.items() for item in range(size)]
    items = pa.table({
        "task": [task for task, _ in names], "item": [item for _, item in names],
        "acc": [1.0] * len(names),
    })  # fmt: skip
    result = {"rows": rows, "metrics": {}, "harness": {"group_subtasks": groups}}
    write_result(home.runs[0].eval_folder, "diagnostic", result, items)
    found = collect(home.plan, [home.folder], {}).items
    assert found[found["task"] == "diagnostic_pairs"]["cluster"].tolist() == [
        *["diagnostic_a"] * 2, *["diagnostic_b"] * 4,
    ]  # fmt: skip
    assert found[found["task"] == "diagnostic_cloze"]["cluster"].tolist() == [*"000011"]


def test_both_accuracies_of_a_benchmark_are_collected(
    finished: StudyFolder, tmp_path: Path
) -> None:
    home = StudyFolder(finished.plan, tmp_path / "tiny")
    shutil.copytree(finished.folder, home.folder)
    row = {"task": "arc_easy", "metric": "acc", "value": 0.45, "items": 2, "stderr": 0.1}
    found = {"acc": 0.45, "acc_stderr": 0.1, "acc_norm": 0.4, "acc_norm_stderr": 0.2}
    items = pa.table(
        {"task": ["arc_easy"] * 2, "item": [0, 1], "acc": [1.0, 0], "acc_norm": [0.0, 0]}
    )
    result = {"rows": [row], "metrics": {"arc_easy": found}, "harness": {"group_subtasks": {}}}
    write_result(home.runs[0].eval_folder, "arc_easy", result, items)
    table = collect(home.plan, [home.folder], {}).table
    scores = table[table["metric"].str.startswith("eval.arc_easy")]
    assert dict(zip(scores["metric"], scores["value"], strict=True)) == {
        "eval.arc_easy.acc": 0.45, "eval.arc_easy.acc.items": 2, "eval.arc_easy.acc.stderr": 0.1,
        "eval.arc_easy.acc_norm": 0.4, "eval.arc_easy.acc_norm.items": 2,
        "eval.arc_easy.acc_norm.stderr": 0.2,
    }  # fmt: skip


def test_facts_have_contrasts_looks_and_the_stated_effect(tmp_path: Path, data: Path) -> None:
    head = "effect = 0.01\nlooks = [2, 4]\n" + STUDY
    plan = tiny_plan(tmp_path, data, head + '[contrasts]\ngain = ["prism", "uniform"]\n')
    facts = collect(plan, [tmp_path / "nothing"], {}).facts
    assert facts.effect == 0.01
    assert facts.looks is not None
    assert (facts.looks.seeds, facts.looks.spending) == ((2, 4), "obrien-fleming")
    assert [(each.name, each.weights) for each in facts.contrasts] == [
        ("gain", {"prism": 1, "uniform": -1})
    ]


def test_a_run_that_diverges_stays_in_the_account(tmp_path: Path, data: Path) -> None:
    wild = '{ schedule = "2x1 4x1 8x1", optim.lr = 1e30, optim.grad_clip = 1e30 }'
    plan = tiny_plan(tmp_path, data, STUDY.replace('"2x1 4x1 8x1"', wild))
    study = finish_study(plan, tmp_path / "tiny")
    comparison = compare(study.collect())
    assert [(each.arm, each.seed, each.diverged) for each in comparison.lost] == [
        ("prism", 0, True),
        ("prism", 1, True),
    ]
    assert comparison.table.values("seeds") == ["2", "0 of 2", "diverged", "diverged"]
    assert sentence(comparison.rows[0]) == (
        "prism against uniform: no seed is complete in both arms; 2 seeds are not in it: prism "
        "diverged in seed 0, prism diverged in seed 1."
    )
