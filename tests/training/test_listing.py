from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.model import PrismLM
from prism_transformer.models.cost import size_text
from prism_transformer.training.listing import find_runs, list_runs
from prism_transformer.training.run import METRICS_FILE


def test_a_run_counts_as_far_as_its_metrics_go(tmp_path: Path, trained: Path) -> None:
    whole, part = (shutil.copytree(trained, tmp_path / name) for name in ("b", "a/part"))
    shutil.rmtree(part / "checkpoints")  # killed before its first one
    lines = (part / METRICS_FILE).read_text("utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["step"] <= 7]
    (part / METRICS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    found = find_runs([tmp_path])
    assert [run.folder for run in found] == [part, whole]
    first, second = list_runs(found).rows
    assert (first["step"], first["of"], first["state"]) == (7, 20, "not complete")
    assert first["loss"] == [row["loss"] for row in rows if row["kind"] == "val"][-1]
    assert (second["step"], second["state"]) == (20, "complete")
    n_weights = sum(each.numel() for each in PrismLM(found[1].recipe.model).parameters())
    assert second["parameters"] == size_text(n_weights)
    assert find_runs([tmp_path / "a"])[0].folder == part
    with pytest.raises(InputError, match="there is no such folder"):
        find_runs([tmp_path / "nowhere"])
