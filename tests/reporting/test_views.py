from __future__ import annotations

import json
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.models.cost import parameters
from prism_transformer.recipes.files import load_recipe
from prism_transformer.reporting.views import read_views
from prism_transformer.study.collected import write_collected
from tests.older import without_sums
from tests.reporting.studies import at_scale, drawn


def test_a_study_its_collected_folder_and_a_folder_of_both(tmp_path: Path) -> None:
    write_collected(tmp_path / "results" / "a", drawn("a"))
    write_collected(tmp_path / "results" / "b" / "collected", drawn("b"))
    for place, names in (
        ("results/a", ["a"]),
        ("results/b", ["b"]),
        ("results/b/collected", ["b"]),
        ("results", ["a", "b"]),
    ):
        assert [view.name for view in read_views([tmp_path / place])] == names


def test_every_point_is_a_view_and_keys_do_not_clash(tmp_path: Path) -> None:
    swept = drawn("Nano <1>", points=[{"optim.lr": 0.001}, {"optim.lr": 0.003}])
    write_collected(tmp_path / "a", swept)
    write_collected(tmp_path / "b", swept)
    views = read_views([tmp_path])
    assert [view.key for view in views] == ["nano-1-0", "nano-1-1", "nano-1-0-2", "nano-1-1-2"]
    assert views[1].name == "Nano <1>, optim.lr=0.003"
    assert views[0].scalar("final_val_loss").ne(views[1].scalar("final_val_loss")).all(axis=None)


def test_a_point_of_a_sweep_has_its_own_recipe(tmp_path: Path) -> None:
    points = [{"model.d_model": 128, "train.tokens": 8192}, {"model.d_model": 256}]
    write_collected(tmp_path, drawn(points=points))
    first, second = read_views([tmp_path])
    assert (first.d_model, second.d_model) == (128, 256)
    assert first.tokens == 8192 < second.tokens
    wide = load_recipe("baseline-micro", ["model.d_model=256"]).model
    assert second.parameters == parameters(wide).total > first.parameters


def test_what_is_no_study_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place, message in (("nowhere", "no such folder"), ("empty", r"no study\.json")):
        with pytest.raises(InputError, match=message):
            read_views([tmp_path / place])


def test_a_damaged_table_is_an_error_of_the_input(tmp_path: Path) -> None:
    write_collected(tmp_path, drawn())
    (tmp_path / "table.parquet").write_bytes(b"no parquet")
    with pytest.raises(InputError, match=r"table\.parquet: is not the table"):
        read_views([tmp_path])
    facts = json.loads((tmp_path / "study.json").read_text("utf-8"))
    (tmp_path / "study.json").write_text(json.dumps(facts | {"format": 99}), "utf-8")
    write_collected(tmp_path / "other", drawn())
    facts["format"] = 99
    (tmp_path / "other" / "study.json").write_text(json.dumps(facts), "utf-8")
    without_sums(tmp_path / "other" / "study.json")
    with pytest.raises(InputError, match="format 99"):
        read_views([tmp_path / "other"])
    for text, message in (
        ("[]", "holds list"),
        ('{"format": 1}', r"study\.json: name: "),
    ):
        (tmp_path / "other" / "study.json").write_text(text, "utf-8")
        with pytest.raises(InputError, match=message):
            read_views([tmp_path / "other"])


def test_the_main_arm(tmp_path: Path) -> None:
    arms = {"uniform": "12x12", "other": "6x12", "ours": "3x2 6x2 8x2 12x6"}
    for place, study in enumerate(
        (
            at_scale("small", arms=arms),  # the paper's schedule, whatever it is called
            drawn(arms={"uniform": "8x8", "b": "4x8", "Prism": "2x2 8x6"}),  # by name
            drawn(arms={"uniform": "8x8", "b": "4x8"}),  # the first
            drawn(arms={"uniform": "8x8"}),  # none
        )
    ):
        write_collected(tmp_path / str(place), study)
    assert [view.main for view in read_views([tmp_path])] == ["ours", "Prism", "b", None]
