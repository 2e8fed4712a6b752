"""The folder of a collected study: written, read, and refused where it is not sound."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.study.collected import (
    CSV_FILE,
    ITEMS_FILE,
    STUDY_FILE,
    TABLE_FILE,
    is_collected,
    read_collected,
    write_collected,
)
from tests.older import without_sums
from tests.study.frames import make_collected


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    whole = make_collected(states={("prism", 0, 1): "failed"})
    write_collected(tmp_path, whole)
    found = read_collected(tmp_path)
    assert found.facts == whole.facts
    pd.testing.assert_frame_equal(found.table, whole.table, check_dtype=False)
    pd.testing.assert_frame_equal(found.items, whole.items, check_dtype=False)
    lines = pd.read_csv(tmp_path / CSV_FILE)
    assert lines["value"].tolist() == pytest.approx(whole.table["value"].tolist())


def test_a_metric_by_seed_has_a_place_for_what_is_missing() -> None:
    found = make_collected(states={("prism", 0, 1): "missing"}).final_loss()
    assert list(found.columns) == ["uniform", "prism"]
    assert found.index.tolist() == [0, 1, 2]
    assert found.isna().to_numpy().tolist() == [[False, False], [False, True], [False, False]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 9}, "format 9; this version reads 1"),
        ({"baseline": None}, "baseline"),
        ({"seeds": "all"}, "seeds"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_facts_that_nobody_wrote_are_refused(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    write_collected(tmp_path, make_collected())
    file = tmp_path / STUDY_FILE
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | change), "utf-8")
    with pytest.raises(InputError, match="sha256 differs"):
        read_collected(tmp_path)
    without_sums(file)
    with pytest.raises(InputError, match=reason):
        read_collected(tmp_path)


def test_a_folder_without_a_table_says_how_to_get_one(tmp_path: Path) -> None:
    assert not is_collected(tmp_path)
    with pytest.raises(InputError, match="`prism study collect` does it"):
        read_collected(tmp_path)


def test_a_table_without_a_column_is_refused(tmp_path: Path) -> None:
    whole = make_collected()
    write_collected(tmp_path, whole)
    whole.table.drop(columns="seed").to_parquet(tmp_path / TABLE_FILE)
    with pytest.raises(InputError, match=r"table.parquet: .* sha256 differs"):
        read_collected(tmp_path)
    without_sums(tmp_path / STUDY_FILE)
    with pytest.raises(InputError, match="no column seed"):
        read_collected(tmp_path)


def test_a_folder_of_before_contrasts_and_clusters_is_read(tmp_path: Path) -> None:
    whole = make_collected()
    write_collected(tmp_path, whole)
    file = tmp_path / STUDY_FILE
    facts = json.loads(file.read_text("utf-8"))
    for new in ("contrasts", "effect", "looks", "looked", "plans"):
        del facts[new]
    file.write_text(json.dumps(facts), "utf-8")
    without_sums(file)
    whole.items.drop(columns="cluster").to_parquet(tmp_path / ITEMS_FILE)
    found = read_collected(tmp_path)
    assert found.facts == whole.facts
    assert found.facts.effect == 0.007
    assert found.items["cluster"].tolist() == [str(item) for item in found.items["item"]]


def test_a_changed_number_is_named(tmp_path: Path) -> None:
    whole = make_collected()
    write_collected(tmp_path, whole)
    assert read_collected(tmp_path).doubts == whole.doubts
    table = bytearray((tmp_path / TABLE_FILE).read_bytes())
    for place in range(0, len(table), max(1, len(table) // 50)):
        (tmp_path / TABLE_FILE).write_bytes(
            table[:place] + b"%c" % (table[place] ^ 4) + table[place + 1 :]
        )
        with pytest.raises(InputError, match=r"table.parquet: is not the table"):
            read_collected(tmp_path)
    (tmp_path / TABLE_FILE).write_bytes(table)
    without_sums(tmp_path / STUDY_FILE)
    assert "without sums" in read_collected(tmp_path).doubts[0]


def test_files_that_follow_from_the_table_have_their_sums_too(tmp_path: Path) -> None:
    write_collected(tmp_path, make_collected(), {"more.csv": b"a\n1\n"})
    sums = json.loads((tmp_path / STUDY_FILE).read_text("utf-8"))["sums"]
    there = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.name in sums}
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in there.items()}
    assert sums.keys() == {TABLE_FILE, CSV_FILE, ITEMS_FILE, "more.csv"}


def test_fewer_items_than_a_task_has_are_said(tmp_path: Path) -> None:
    whole = make_collected()
    row = {"arm": "prism", "point": 0, "seed": 0, "step": None, "index": None}
    counts = {"eval.piqa.acc.items": 3, "eval.arc_easy.acc.items": 2376, "eval.other.acc.items": 1}
    rows = [row | {"metric": name, "value": float(n)} for name, n in counts.items()]
    table = pd.concat([whole.table, pd.DataFrame(rows)], ignore_index=True)
    said = replace(whole, table=table).doubts
    new = set(said) - set(whole.doubts)
    assert new == {"piqa: 3 of the 1,838 items it is known to have."}
