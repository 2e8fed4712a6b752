from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from prism_transformer.core.errors import InputError
from prism_transformer.data.records import Unusable, find_reader

MARK = b"\xef\xbb\xbf"


def read(file: Path, key: str = "text", skip: int = 0) -> list[tuple[int, str | Unusable]]:
    reader = find_reader(file)
    assert reader is not None
    return list(reader(file, key, skip))


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (MARK + b'{"text": "x"}', "begins with a byte-order mark"),
        (b'{"text": "x", "score": NaN}', "has NaN"),
        (b'{"text": "x", "score": -Infinity}', "has -Infinity"),
        (b'{"text": "a \\ud800 b"}', "has a lone surrogate"),
        (b'{"txt": "x", "meta": {"lang": "en"}}', "has no field 'text'"),
        (b'{"text": 5}', "its 'text' is not text"),
        (b'{"text": null}', "its 'text' is not text"),
        (b'["text"]', "is no JSON object"),
        (b"{broken", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"text": "\xff"}', "not UTF-8 text"),
        (b"\xff\xfe{\x00", "begins with a byte-order mark of UTF-16"),
    ],
)
def test_a_line_that_cannot_be_used_says_why(tmp_path: Path, line: bytes, cause: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "x"}\n' + line + b'\n{"text": "z"}\n')
    (_, first), (record, bad), (_, last) = read(file)
    assert (first, last) == ("x", "z")
    assert record == 1
    assert isinstance(bad, Unusable)
    assert (bad.place, bad.cause) == ("line 2", cause)


def test_fields_that_are_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 1, "data": {"text": "x", "lang": "en"}}\n')
    ((_, bad),) = read(tmp_path / "a.jsonl")
    assert str(bad).endswith("--text-key names one of: id, data.text, data.lang")


def test_a_mark_at_the_start_of_a_file_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(MARK + b'{"text": "x"}\n')
    (tmp_path / "a.txt").write_bytes(MARK + b"x")
    assert read(tmp_path / "a.jsonl") == read(tmp_path / "a.txt") == [(0, "x")]


def test_a_key_may_be_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        b'{"data": {"text": "inner"}}\n{"data.text": "outer", "data": {"text": "inner"}}\n'
    )
    assert read(tmp_path / "a.jsonl", "data.text") == [(0, "inner"), (1, "outer")]
    rows = [{"text": "one", "n": 1}, None, {"text": "three", "n": 3}]
    parquet.write_table(pyarrow.table({"id": [1, 2, 3], "data": rows}), tmp_path / "a.PARQUET")
    found = read(tmp_path / "a.PARQUET", "data.text")
    assert (found[0], found[2]) == ((0, "one"), (2, "three"))
    assert str(found[1][1]) == "row 1: its 'data.text' is not text but null"
    assert read(tmp_path / "a.PARQUET", "data.text", skip=2) == found[2:]
    with pytest.raises(InputError, match=r"no column 'text'; --text-key names .*id, data.text"):
        read(tmp_path / "a.PARQUET")


def test_text_of_another_encoding_is_one_bad_record(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("caf\xe9".encode("latin-1"))
    ((_, bad),) = read(tmp_path / "a.txt")
    assert str(bad) == "not UTF-8 text at byte 3"
