from __future__ import annotations

import json
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.reporting.reading import read_views
from prism_transformer.study.collected import write_collected
from tests.older import without_sums
from tests.reporting.studies import drawn


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
