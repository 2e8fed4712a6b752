"""Data files and their checks, and the overlay of lm_eval's YAML."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path

import pytest
from lm_eval.tasks._yaml_loader import load_yaml

from prism_transformer.core.errors import InputError
from prism_transformer.eval.task_data import (
    STOCK,
    blimp_subtasks,
    check_data,
    local_parts,
    write_overlay,
)
from prism_transformer.eval.tasks import BY_NAME
from tests.eval.files import PLACES, rows_of, write_rows


def test_blimp_has_its_67_subtasks() -> None:
    listed = load_yaml(STOCK / "blimp" / "_blimp.yaml")["task"]
    assert sorted(f"blimp_{name}" for name in blimp_subtasks()) == sorted(listed)
    assert len(listed) == 67


@pytest.mark.parametrize("source", ["hub", "local"])
@pytest.mark.parametrize("task", PLACES)
def test_overlay_changes_only_where_the_data_are(
    task: str, source: str, small_data: Path, tmp_path: Path
) -> None:
    write_overlay(tmp_path, [task], small_data if source == "local" else None)
    theirs = load_yaml(STOCK / BY_NAME[task].stock)
    ours = load_yaml(tmp_path / f"{task}.yaml")
    changed = {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
    about_data = {"dataset_path", "dataset_name", "dataset_kwargs", "training_split",
                  "validation_split", "test_split"}  # fmt: skip
    assert changed <= (about_data if source == "local" else set())


def test_parquet_shards_and_names_as_on_the_hub(tmp_path: Path) -> None:
    rows = rows_of("arc_easy", 4)
    for part in range(2):
        write_rows(tmp_path / f"ARC-Easy/test-0000{part}-of-00002.parquet", rows[2 * part :][:2])
    found = local_parts("arc_easy", tmp_path)["arc_easy"]
    assert [file.name[:10] for file in found.files] == ["test-00000", "test-00001"]
    assert (found.reader, found.split) == ("parquet", "test")


@pytest.mark.parametrize("there", [["00000-of-00002"], ["00001-of-00003", "00002-of-00003"]])
def test_some_of_the_parts_are_not_scored(tmp_path: Path, there: list[str]) -> None:
    place = tmp_path / "wikitext"
    place.mkdir()
    for part in there:
        (place / f"test-{part}.jsonl").write_text('{"page": "text"}\n', "utf-8")
    with pytest.raises(InputError, match=rf"has {len(there)} of \d parts"):
        local_parts("wikitext", tmp_path)


def test_wikitext_is_scored_on_test_where_there_is_one(tmp_path: Path) -> None:
    write_rows(tmp_path / "wikitext2/validation_document_level.jsonl", rows_of("wikitext", 1))
    assert local_parts("wikitext", tmp_path)["wikitext"].split == "validation"
    write_rows(tmp_path / "wikitext2/test_document_level.jsonl", rows_of("wikitext", 1))
    assert local_parts("wikitext", tmp_path)["wikitext"].split == "test"


def test_one_file_not_two(tmp_path: Path) -> None:
    write_rows(tmp_path / "piqa/validation.jsonl", rows_of("piqa", 1))
    write_rows(tmp_path / "piqa/validation.parquet", rows_of("piqa", 1))
    with pytest.raises(InputError, match="which is meant"):
        local_parts("piqa", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"goal": "a", "sol1": "b", "sol2": "c", "label": 0}\n{"goal"', "line 2: is not JSON"),
        (b'{"goal": "a", "sol1": "b", "sol2": "c", "label": 2}\n', "line 1: is no row of piqa"),
        (b'["goal"]\n', "line 1: is no row of piqa.*found list"),
        (b'{"goal": "a", "label": 0}\n', "found goal, label"),
        (b'{"goal": "\xff"}\n', "line 1: is not JSON"),
        (b"", "has no rows; expected goal, sol1, sol2"),
        (b"\n", "line 1: is not JSON"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa/validation.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=f"validation.jsonl.*{message}"):
        local_parts("piqa", tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    text = json.dumps(rows_of("piqa", 1)[0]).encode() + b"\n"
    noise = random.Random(0).randbytes(4000).hex().encode()  # so that a piece has a line in it
    for name, content in {
        "cut.jsonl.gz": gzip.compress(text + noise)[:-2000],
        "junk.jsonl.gz": b"junk",
        "junk.parquet": b"junk",
    }.items():
        shutil.rmtree(tmp_path / "piqa", ignore_errors=True)
        (tmp_path / "piqa").mkdir()
        file = tmp_path / "piqa" / f"validation{name[name.index('.') :]}"
        file.write_bytes(content)
        with pytest.raises(InputError, match=f"{file.name}.*(cannot be read|no sound parquet)"):
            local_parts("piqa", tmp_path)


def test_missing_files_are_named_with_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        check_data(["piqa"], tmp_path / "nothing")
    with pytest.raises(InputError, match=r"no data of piqa.*\n.*piqa/validation .*goal"):
        check_data(["piqa"], tmp_path)
    write_rows(tmp_path / "piqa/train.jsonl", rows_of("piqa", 1))
    with pytest.raises(InputError, match="`--tasks piqa` is what it has"):
        check_data(["piqa", "wikitext"], tmp_path)
    with pytest.raises(InputError, match=r"piqa: has no validation \(.jsonl"):
        local_parts("piqa", tmp_path)
    write_rows(tmp_path / "blimp/wh_island.jsonl", rows_of("blimp", 1))
    with pytest.raises(InputError, match="66 of 67 sub-tasks have no file: adjunct_island"):
        local_parts("blimp", tmp_path)
