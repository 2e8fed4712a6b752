"""Tasks for lm_eval: its own YAML files, included as they are, and only the data set anew.

YAML reads JSON, so that is what is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_eval.tasks

from prism_transformer.data.shards import file_sha256
from prism_transformer.eval.diagnostic import cloze_items, minimal_pairs
from prism_transformer.eval.files import Part, check_data, local_parts, sums
from prism_transformer.eval.tasks import (
    BY_NAME,
    DIAGNOSTIC,
    DIAGNOSTIC_CLOZE,
    DIAGNOSTIC_PAIRS,
)

STOCK = Path(lm_eval.tasks.__file__).parent
HUB = "hub"


@dataclass(frozen=True)
class Planned:
    """A task whose YAML is written."""

    name: str
    loads: tuple[str, ...]
    """what lm_eval is asked for: a task, a group, or several"""
    data: str | dict[str, str]
    """the hub, or a sha256 for each file"""


def blimp_subtasks() -> list[str]:
    """The names of BLiMP's 67 sub-tasks, as lm_eval has them."""
    return sorted(file.stem for file in (STOCK / "blimp").glob("[!_]*.yaml"))


def write_overlay(folder: Path, tasks: Sequence[str], data: Path | None) -> list[Planned]:
    """Write the YAML of every task; local data are checked first."""
    if data is not None:
        check_data(tasks, data)
    planned = []
    for task in tasks:
        if task == DIAGNOSTIC:
            planned.append(_write_diagnostic(folder))
        elif data is None:
            _write_stock(folder, task, {})
            planned.append(Planned(task, (task,), HUB))
        else:
            parts = local_parts(task, data, blimp_subtasks())
            _write_stock(folder, task, parts)
            planned.append(Planned(task, (task,), sums(parts, data)))
    return planned


def _write_stock(folder: Path, task: str, parts: Mapping[str, Part]) -> None:
    if task != "blimp":
        _write(folder, task, BY_NAME[task].stock, _local(folder, task, parts.get(task)))
        return
    for name in blimp_subtasks():
        full = f"blimp_{name}"
        _write(folder, full, f"blimp/{name}.yaml", _local(folder, full, parts.get(full)))
    _write(folder, task, "blimp/_blimp.yaml", {})


def _local(folder: Path, name: str, part: Part | None) -> dict[str, Any]:
    """What changes in a task's YAML when its data are files; nothing else does."""
    if part is None:
        return {}
    place = folder / "data" / name
    place.mkdir(parents=True)
    links = []
    for file in part.files:  # by links, for the library takes * or [ in a name for a pattern
        links.append(place / file.name)
        links[-1].symlink_to(file.resolve())
    splits = {"training_split": None, "validation_split": None, "test_split": None}
    kind = "test_split" if part.split == "test" else "validation_split"
    return {
        "dataset_path": part.reader,
        "dataset_name": None,
        # A cache of its own, which goes when the command ends: none can be out of date.
        "dataset_kwargs": {
            "data_files": {part.split: [str(link) for link in links]},
            "cache_dir": str(folder / "cache"),
        },
        **splits,
        kind: part.split,
    }


def _write_diagnostic(folder: Path) -> Planned:
    """The built-in task: minimal pairs under BLiMP's template, and cloze items."""
    place = folder / "diagnostic"
    place.mkdir()
    shas: dict[str, str] = {}

    def add(name: str, rows: list[dict[str, Any]], stock: str | None, fields: Any) -> None:
        file = place / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        shas[file.name] = file_sha256(file)
        local = _local(folder, name, Part((file,), "train"))
        _write(folder, name, stock, {"task": name, **local, **fields})

    names = []
    for phenomenon, pairs in minimal_pairs().items():
        names.append(f"{DIAGNOSTIC}_{phenomenon}")
        rows = [{"sentence_good": good, "sentence_bad": bad} for good, bad in pairs]
        add(names[-1], rows, "blimp/_template_yaml", {})
    items = cloze_items()
    spaced = any(item.text.endswith(" ") or item.choices[0].startswith(" ") for item in items)
    cloze = [{"text": i.text, "choices": list(i.choices), "answer": i.answer} for i in items]
    add(DIAGNOSTIC_CLOZE, cloze, None, _cloze_fields("" if spaced else " "))
    _write(folder, DIAGNOSTIC_PAIRS, None, _group(DIAGNOSTIC_PAIRS, names))
    return Planned(DIAGNOSTIC, (DIAGNOSTIC_PAIRS, DIAGNOSTIC_CLOZE), shas)


def _cloze_fields(delimiter: str) -> dict[str, Any]:
    return {
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": delimiter,
        "num_fewshot": 0,
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True}
            for metric in ("acc", "acc_norm")
        ],
        "metadata": {"version": 1.0},
    }


def _group(name: str, tasks: Sequence[str]) -> dict[str, Any]:
    """A group whose score is the plain mean over its tasks, as BLiMP's is."""
    mean = {"metric": "acc", "aggregation": "mean", "weight_by_size": False}
    metadata = {"version": 1.0}
    return {
        "group": name,
        "task": list(tasks),
        "aggregate_metric_list": [mean],
        "metadata": metadata,
    }


def _write(folder: Path, name: str, stock: str | None, fields: Mapping[str, Any]) -> None:
    content = {"include": str(STOCK / stock)} if stock else {}
    (folder / f"{name}.yaml").write_text(json.dumps({**content, **fields}, indent=1), "utf-8")
