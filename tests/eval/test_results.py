"""Results as values and as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prism_transformer.core.disk import file_sha256
from prism_transformer.core.errors import InputError
from prism_transformer.eval.results import (
    Evaluation,
    Outcome,
    finished,
    read_result,
    write_result,
)
from prism_transformer.hf.load import NamedModel

ITEMS = pa.table({"task": ["piqa"], "acc": [1.0]})


def result(task: str, value: float, *, diagnostic: bool = False) -> dict[str, Any]:
    row = {"task": task, "metric": "acc", "value": value, "stderr": None, "items": 4, "split": "x"}
    return {"diagnostic": diagnostic, "rows": [row], "settings": {"limit": None}}


def test_an_evaluation_is_one_table_and_names_what_failed() -> None:
    one = Outcome(NamedModel("one"), Path("eval/one"), {}, {"piqa": result("piqa", 0.5)})
    two = Outcome(NamedModel("two"), Path("eval/two"), {}, failures={"piqa": "too <long>"})
    one.results["diagnostic"] = result("diagnostic_pairs", 0.75, diagnostic=True)
    done = Evaluation((one, two))
    assert [(row["model"], row["task"], row["value"]) for row in done.table.rows] == [
        ("one", "piqa", 0.5),
        ("one", "diagnostic_pairs", 0.75),
    ]
    assert [row["task"] for row in one.table(diagnostic=True).rows] == ["diagnostic_pairs"]
    assert done.failures == ("piqa: too <long>",)
    assert "0.7500" in str(done)
    assert str(done).endswith("FAILED  piqa: too <long>")
    assert "too &lt;long&gt;" in done._repr_html_()


def test_what_is_finished_is_known_by_its_settings(tmp_path: Path) -> None:
    facts = result("piqa", 0.5)
    write_result(tmp_path, "piqa", facts, ITEMS)
    found = finished(tmp_path, "piqa", {"limit": None})
    assert found is not None
    assert found == facts | {"items_sha256": file_sha256(tmp_path / "piqa.parquet")}
    assert finished(tmp_path, "piqa", {"limit": 3}) is None
    assert pq.read_table(tmp_path / "piqa.parquet").equals(ITEMS)
    whole = (tmp_path / "piqa.parquet").read_bytes()
    (tmp_path / "piqa.parquet").write_bytes(whole.replace(b"piqa", b"pika", 1))
    with pytest.raises(InputError, match=r"piqa.parquet: is damaged or was changed"):
        read_result(tmp_path / "piqa.json")
    assert finished(tmp_path, "piqa", {"limit": None}) is None  # and is done anew
    (tmp_path / "piqa.parquet").write_bytes(whole)
    text = (tmp_path / "piqa.json").read_text("utf-8")
    (tmp_path / "piqa.json").write_text(text.replace("0.5", "0.6"), "utf-8")
    with pytest.raises(InputError, match=r"piqa.json: is damaged or was changed"):
        read_result(tmp_path / "piqa.json")
    (tmp_path / "piqa.json").write_text(text, "utf-8")
    (tmp_path / "piqa.parquet").unlink()
    assert finished(tmp_path, "piqa", {"limit": None}) is None
    assert finished(tmp_path, "wikitext", {"limit": None}) is None


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: cannot be written"):
        write_result(tmp_path / "file", "piqa", result("piqa", 0.5), ITEMS)
