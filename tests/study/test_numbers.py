"""What a run's files say, number by number: here what longer sequences add."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.sealed import read_sealed
from prism_transformer.eval.loss import text_loss
from prism_transformer.study.collect import collect_runs
from prism_transformer.study.earlier import find_earlier
from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.worker import Worker
from tests.study.files import STUDY, tiny_plan

LONG = """
[recipe]
data.boundaries = "isolate"
[loss]
sequences = 8
times = [2, 4]
scalings = ["none", "yarn"]
"""


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
