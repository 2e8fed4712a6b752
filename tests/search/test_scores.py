"""Files of scores: whole, their own, and found where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.sealed import write_sealed
from prism_transformer.recipes.files import changed, load_recipe
from prism_transformer.schedule import HeadSchedule
from prism_transformer.search.scores import (
    OneShot,
    Settings,
    blocks_apart,
    file_of,
    find_scores,
    marks,
    read_scores,
    write_scores,
)
from prism_transformer.training.run import create_run
from tests.search.test_solve import blocks
from tests.training.runs import tiny


def one_shot(run: str = "a", **losses: float) -> OneShot:
    return OneShot(
        run=run, seed=0, step=1, d_model=64, h_base=4, queries_per_kv=1, lr=0.1,
        asked=Settings(windows=1), sampling="layers 1/4x2",
        losses=losses or {"1x2": 3.0, "4x2": 2.5, "1x1 4x1": 2.75},
    )  # fmt: skip


def test_what_they_predict() -> None:
    shared = one_shot()
    assert shared.predicted(HeadSchedule.parse("1x1 4x1")) == 2.75
    assert shared.predicted(HeadSchedule.parse("4x1 1x1")) is None
    assert [row["schedule"] for row in shared.table.rows] == ["4x2", "1x1 4x1", "1x2"]
    layers = blocks("b", [{1: 3.0, 4: 3.1}, {1: 3.3, 4: 3.1}], {})
    assert layers.predicted(HeadSchedule((1, 1))) == pytest.approx(0.1)
    assert layers.predicted(HeadSchedule((4, 4))) == 0.0
    assert layers.predicted(HeadSchedule((2, 4))) is None
    assert layers.predicted(HeadSchedule((4, 4, 4))) is None
    assert [row["1"] for row in layers.table.rows] == pytest.approx([-0.1, 0.2])


def test_files_of_before_objectives_were_kept_read_as_the_next_token(tmp_path: Path) -> None:
    for kept in (one_shot(), blocks("b", [{1: 3.0, 4: 3.1}], {1: 0.5, 4: 0.25})):
        facts = kept.model_dump(mode="json")
        assert (facts.pop("objective"), facts.pop("boundaries")) == ("next", "cross")
        assert facts.pop("recipe") is None
        write_sealed(tmp_path / "old.json", facts)
        assert read_scores(tmp_path / "old.json") == kept


def test_runs_of_other_data_have_no_mean_and_seeds_may_differ() -> None:
    recipe = load_recipe("base/nano")
    one = blocks("a", [{1: 3.0, 4: 3.1}], {}).model_copy(update={"recipe": recipe})
    for changes, reason in (
        ({"train.seed": 7, "run.val_every": 5, "model.schedule": "1x8"}, ""),
        ({"data.corpus": "other"}, "data.corpus: sotu -> other"),
        ({"model.d_ff": 128}, "model.d_ff: 176 -> 128"),
    ):
        other = one.model_copy(update={"recipe": changed(recipe, changes, "a test")})
        assert blocks_apart(other, one) == reason
    assert blocks_apart(one.model_copy(update={"recipe": None}), one) == ""  # not known


def test_other_settings_have_a_file_of_their_own(tmp_path: Path) -> None:
    plain = one_shot()
    tuned = plain.model_copy(update={"asked": Settings(windows=1, steps=8)})
    for each in (plain, tuned, plain):
        write_scores(file_of(tmp_path, "one-shot", each.asked, "a-"), each)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "a-one-shot-1-windows-8-steps-at-0.1.json", "a-one-shot.json",
    ]  # fmt: skip
    assert find_scores([tmp_path]) == [plain, tuned]
    with pytest.raises(InputError, match="no blocks there; `prism search blocks RUN` makes some"):
        find_scores([tmp_path], "blocks")


def test_files_are_found_by_run_by_folder_and_by_name_each_once(tmp_path: Path) -> None:
    shared, layers = one_shot(), blocks("b", [{1: 3.0, 4: 3.1}], {1: 0.5, 4: 0.25})
    write_scores(tmp_path / "run" / "search" / "one-shot.json", shared)
    write_scores(tmp_path / "results" / "a-one-shot.json", shared)
    write_scores(tmp_path / "results" / "b-blocks.json", layers)
    assert find_scores([tmp_path / "run"]) == [shared]
    assert find_scores([tmp_path / "run", tmp_path / "results"]) == [shared, layers]
    assert find_scores([tmp_path / "results" / "b-blocks.json"]) == [layers]
    with pytest.raises(InputError, match="no scores there"):
        find_scores([tmp_path])


def test_scores_of_another_run_in_a_run_are_refused(tmp_path: Path, data: Path) -> None:
    recipe = tiny(data, "train.seed=3", "model.schedule=8x3")
    layers = blocks("a", [{8: 3.0}, {8: 3.0}, {8: 3.0}], {}).model_copy(update=marks(recipe))
    create_run(tmp_path / "a", recipe, {"recipe": recipe.model_dump()})
    file = tmp_path / "a" / "search" / "blocks.json"
    write_scores(file, layers.model_copy(update={"schedule": "8x3"}))
    (tmp_path / "a").rename(tmp_path / "b")  # a folder may have another name
    assert find_scores([tmp_path / "b"])
    file = tmp_path / "b" / "search" / "blocks.json"
    for change, why in (({"seed": 4}, "seed 4, not 3"), ({"schedule": "4x3"}, "schedule 4x3, not")):
        write_scores(file, layers.model_copy(update={"schedule": "8x3"} | change))
        with pytest.raises(InputError, match=f"{file}: is of another run, a: {why}"):
            find_scores([tmp_path / "b"])


def test_changed_and_foreign_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "one-shot.json"
    write_scores(file, one_shot())
    facts = json.loads(file.read_text("utf-8"))
    facts["losses"]["1x2"] = 0.0
    file.write_text(json.dumps(facts), "utf-8")
    with pytest.raises(InputError, match="sha256 differs"):
        read_scores(file)
    file.write_text("{}", "utf-8")
    with pytest.raises(InputError, match="holds no scores"):
        read_scores(file)
    file.write_text('{"kind": "one-shot"}', "utf-8")
    with pytest.raises(InputError, match="run"):
        read_scores(file)
