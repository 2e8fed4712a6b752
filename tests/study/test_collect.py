"""One table of everything that run folders say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.sealed import read_sealed, write_sealed
from prism_transformer.eval.loss import text_loss
from prism_transformer.eval.results import write_result
from prism_transformer.study.collect import collect
from prism_transformer.study.collected import read_collected
from prism_transformer.study.compare import compare
from prism_transformer.study.earlier import find_earlier
from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.plan import make_plan
from prism_transformer.study.sentences import sentence
from prism_transformer.study.single_runs import collect_runs
from prism_transformer.study.worker import Worker
from prism_transformer.training.run import read_metrics
from tests.study.files import STUDY, finish_study, learnt, tiny_plan

LONG = """
[recipe]
data.boundaries = "isolate"
[loss]
sequences = 8
times = [2, 4]
scalings = ["none", "yarn"]
"""


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


@pytest.mark.slow
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


# -- sequences longer than trained


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, data: Path) -> StudyFolder:
    """A study with one run done, which is read at 32, 64 and 128 tokens."""
    folder = tmp_path_factory.mktemp("long")
    study = StudyFolder(tiny_plan(folder, data, STUDY + LONG), folder / "tiny")
    Worker(study.plan, study.folder, device="cpu").do("prism-seed0", 20)
    return study


def by_metric(table: pd.DataFrame) -> dict[str, dict[int, float]]:
    long = table[table["metric"].str.startswith("loss_at_")]
    return {
        str(name): dict(zip(rows["index"].astype(int), rows["value"], strict=True))
        for name, rows in long.groupby("metric")
    }


def test_longer_sequences_are_the_same_text_read_by_prism_loss(home: StudyFolder) -> None:
    run = home.run_of(home.plan.cell("prism", 0, 0))
    assert run.to_do(20) == []
    found = by_metric(home.collect().table)
    ways: dict[str, list[tuple[int, str | None]]] = {
        "none": [(32, None), (64, None), (128, None)],
        "yarn": [(64, "yarn:2"), (128, "yarn:4")],
    }
    for kind, keys in ways.items():
        curve = found[f"loss_at_length.{kind}"]
        assert sorted(curve) == [length for length, _ in keys]
        for length, scaling in keys:
            each = text_loss(
                run.folder, sequences=8 * 32 // length, length=length, rope_scaling=scaling,
                extrapolate=scaling is None,
            )  # fmt: skip
            assert each.loss.n_tokens == 8 * 32  # each token once, at every length
            assert curve[length] == pytest.approx(each.loss.mean, rel=1e-6)
    last = found["loss_at_position.yarn.128"]
    assert sorted(last) == [1, 2, 4, 8, 16, 32, 64, 128]
    rows = each.loss.by_position
    assert last[128] == pytest.approx(rows[64:].mean(), rel=1e-6)
    assert found["loss_at_length.none"][128] != found["loss_at_length.yarn"][128]


def test_the_loss_of_another_run_is_refused_and_measured_anew(
    home: StudyFolder, tmp_path: Path
) -> None:
    shutil.copytree(home.folder / "runs", tmp_path / "runs")
    study = StudyFolder(home.plan, tmp_path)
    ours = study.run_of(home.plan.cell("prism", 0, 0))
    file = ours.analysis_folder / "loss-64.json"
    facts = read_sealed(file)
    write_sealed(file, facts | {"model": facts["model"] | {"model.safetensors": "of another"}})
    with pytest.raises(InputError, match=r"prism-seed0/\S+/loss-64.json: was measured of another"):
        study.collect()
    assert ours.to_do(20) == ["loss"]
    Worker(home.plan, tmp_path, device="cpu").do("prism-seed0", 20)
    assert by_metric(study.collect().table) == by_metric(home.collect().table)
    shutil.copy(file, ours.analysis_folder / "loss.json")
    with pytest.raises(InputError, match=r"loss.json: is of sequences of 64 tokens, not of 32"):
        study.collect()


def test_what_was_collected_counts_as_read(home: StudyFolder, tmp_path: Path, data: Path) -> None:
    home.collect()
    folder = home.folder / "collected"
    assert list(find_earlier(home.plan, [folder])) == ["prism-seed0"]
    longer = tiny_plan(tmp_path, data, STUDY + LONG.replace("[2, 4]", "[2, 4, 8]"))
    with pytest.raises(InputError, match="prism-seed0 has no loss, which"):
        find_earlier(longer, [folder])


def test_only_what_is_missing_is_read_again(home: StudyFolder, tmp_path: Path) -> None:
    shutil.copytree(home.folder / "runs", tmp_path / "runs")
    run = StudyFolder(home.plan, tmp_path).run_of(home.plan.cell("prism", 0, 0))
    stage = home.plan.study.loss
    assert stage is not None
    (run.analysis_folder / "loss-64-yarn-2.json").unlink()
    assert run.to_do(20) == ["loss"]
    assert [(each.times, each.scaling) for each in run.unread(stage, 20)] == [(2, "yarn")]
    before = (run.analysis_folder / "loss-128.json").stat().st_mtime_ns
    Worker(home.plan, tmp_path, device="cpu").do("prism-seed0", 20)
    assert run.to_do(20) == []
    assert (run.analysis_folder / "loss-128.json").stat().st_mtime_ns == before


def test_by_hand_only_what_compares_is_collected(home: StudyFolder, tmp_path: Path) -> None:
    """Another text, fewer sequences, and a factor that is not the length's."""
    folder = tmp_path / "prism-seed0"
    shutil.copytree(home.folder / "runs" / "prism-seed0", folder)
    for file in folder.glob("analysis/*/loss*.json"):
        file.unlink()

    def keep(**how: object) -> None:
        text_loss(folder, **how).write()  # type: ignore[arg-type]

    keep(sequences=8, text="sotu")
    assert by_metric(collect_runs([folder]).table) == {}
    keep(sequences=8)
    assert list(by_metric(collect_runs([folder]).table)) == ["loss_at_position"]
    keep(sequences=2, length=64, extrapolate=True)  # half of the text
    assert list(by_metric(collect_runs([folder]).table)) == ["loss_at_position"]
    keep(sequences=4, length=64, rope_scaling="linear:4")
    found = by_metric(collect_runs([folder]).table)
    assert list(found) == [
        "loss_at_length.linear:4", "loss_at_length.none", "loss_at_position",
        "loss_at_position.linear:4.64",
    ]  # fmt: skip
    assert sorted(found["loss_at_length.none"]) == [32]
    (kept,) = folder.glob("analysis/*/loss-64-linear-4.json")
    assert read_sealed(kept)["scaling"] == "linear:4"


def test_a_sweep_of_rates_is_of_the_papers_model_whatever_its_first_rate_is(tmp_path: Path) -> None:
    text = (
        'base = "base/small"\nbaseline = "uniform"\nseeds = [0]\n[arms]\nuniform = "uniform:12"\n'
        "[sweep]\n"
    )
    scales = []
    for swept in ("optim.lr = [3e-4, 6e-4, 1.2e-3]", "train.tokens = [524_288]"):
        file = tmp_path / "mine.toml"
        file.write_text(f"{text}{swept}\n", encoding="utf-8")
        scales.append(collect(make_plan(file), [tmp_path], {}).facts.scale)
    assert scales == ["small", None]
