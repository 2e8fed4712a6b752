"""Results as values, and on disk: a JSON file for each task, and its items as a parquet file.

<task>.json      rows for a table, every metric, settings, versions, the harness's own output
<task>.parquet   a row for each item: its hash, its log-likelihoods, its metrics
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from prism_transformer.core.disk import file_sha256, reading, write_whole, writing
from prism_transformer.core.errors import InputError
from prism_transformer.core.sealed import read_sealed, sealed_json
from prism_transformer.core.table import Column, Table, words
from prism_transformer.eval.tasks import shown_metrics

if TYPE_CHECKING:
    from prism_transformer.hf.load import NamedModel

Facts = dict[str, Any]

SCORES = (Column("value", places=4), Column("stderr", places=4), Column("items"))
COLUMNS = (*words("task", "metric"), *SCORES, *words("split"))
ITEMS_SUM = "items_sha256"  # of the parquet file beside


@dataclass
class Outcome:
    """What came of one model."""

    model: NamedModel
    out: Path
    """where its results are"""
    sums: dict[str, str]
    """what tells this model from any other"""
    results: dict[str, Facts] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The model: the folder of a checkpoint, or what was named."""
        return str(self.model.checkpoint or self.model)

    def table(self, *, diagnostic: bool) -> Table:
        """Scores of the benchmarks, or of the diagnostic, which is none and stands apart."""
        rows = [
            row
            for result in self.results.values()
            if result["diagnostic"] == diagnostic
            for row in result["rows"]
        ]
        return Table("diagnostic" if diagnostic else "benchmarks", COLUMNS, tuple(rows))


@dataclass(frozen=True)
class Evaluation:
    """Every model that was named, on every task."""

    outcomes: tuple[Outcome, ...]

    @property
    def table(self) -> Table:
        """All scores, a row for each metric that is shown."""
        rows = [
            {"model": outcome.name, **row}
            for outcome in self.outcomes
            for result in outcome.results.values()
            for row in result["rows"]
        ]
        return Table("evaluation", (*words("model"), *COLUMNS), tuple(rows))

    @property
    def failures(self) -> tuple[str, ...]:
        """Each task that failed, with the reason."""
        return tuple(
            f"{task}: {reason}"
            for outcome in self.outcomes
            for task, reason in outcome.failures.items()
        )

    def __str__(self) -> str:
        return "\n".join([str(self.table), *(f"FAILED  {each}" for each in self.failures)])

    def _repr_html_(self) -> str:
        failed = "".join(f"<p>FAILED {escape(each)}</p>" for each in self.failures)
        return self.table._repr_html_() + failed


def finished(folder: Path, task: str, settings: Facts) -> Facts | None:
    """The result of a task that was done before with the same settings."""
    try:
        result = read_result(folder / f"{task}.json")
        return result if result["settings"] == settings else None
    except (InputError, KeyError):  # not there, or damaged: it is done anew
        return None


def read_result(file: Path) -> Facts:
    """What ``write_result`` wrote, if neither of its files was changed."""
    result, items = read_sealed(file), file.with_suffix(".parquet")
    if not items.is_file():
        raise InputError(f"{items}: is missing; `prism eval` again makes both files")
    with reading(items):
        kept = result.get(ITEMS_SUM)  # older results have none
        if kept is not None and kept != file_sha256(items):
            raise InputError(f"{items}: is damaged or was changed: sha256 differs")
    return result


def write_result(folder: Path, task: str, result: Facts, items: pa.Table) -> Facts:
    """Write both files, each whole or not at all; the JSON, which says it is done, last.

    The result comes back as it will be read: a task's function is its name.
    """
    stream = pa.BufferOutputStream()
    pq.write_table(items, stream, compression="zstd")
    table = stream.getvalue().to_pybytes()
    whole = {**result, ITEMS_SUM: hashlib.sha256(table).hexdigest()}
    text = sealed_json(whole, default=lambda it: getattr(it, "__name__", str(it)))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{task}.parquet", table)
        write_whole(folder / f"{task}.json", text)
    return read_result(folder / f"{task}.json")  # a disk may lie about what it wrote


def metrics(raw: Mapping[str, Any]) -> Facts:
    """Every metric of every task and group in lm_eval's output; None where it has no number."""
    # Keys are "metric,filter"; the tasks here have the one filter "none".
    return {
        name: {
            key.partition(",")[0]: value if isinstance(value, float | int) else None
            for key, value in values.items()
            if "," in key
        }
        for name, values in raw["results"].items()
    }


def table_rows(task: str, raw: Mapping[str, Any], splits: Mapping[str, str]) -> list[Facts]:
    """What a table shows of a task."""
    found, counts, rows = metrics(raw), raw["n-samples"], []
    for name, metric in shown_metrics(task).items():
        members = raw["group_subtasks"].get(name) or [name]
        rows.append(
            {
                "task": name,
                "metric": metric,
                "value": found[name][metric],
                "stderr": found[name].get(f"{metric}_stderr"),
                "items": sum(counts[member]["effective"] for member in members),
                "split": splits[members[0]],
            }
        )
    return rows


def item_table(samples: Mapping[str, Sequence[Facts]]) -> pa.Table:
    """One row for each item, tasks and items in order: two models pair row by row."""
    rows = [
        _item(name, sample)
        for name in sorted(samples)
        for sample in sorted(samples[name], key=lambda sample: sample["doc_id"])
    ]
    names = dict.fromkeys(key for row in rows for key in row)
    table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    column = table.schema.get_field_index("task")
    return table.set_column(column, "task", table["task"].dictionary_encode())


def _item(name: str, sample: Facts) -> Facts:
    responses = sample["filtered_resps"]
    scores = [each[0] if isinstance(each, list | tuple) else each for each in responses]
    row: Facts = {
        "task": name,
        "item": sample["doc_id"],
        "item_sha256": sample["doc_hash"],
        "loglikelihoods": [float(score) for score in scores],
    }
    if len(scores) > 1:
        row["answer"] = int(sample["target"]) if str(sample["target"]).isdigit() else None
    for metric in sample["metrics"]:
        value = sample[metric]
        if isinstance(value, list | tuple):  # a perplexity's log-likelihood, and over how much
            row[f"{metric}_weight"] = int(value[1])
        else:
            row[metric] = float(value)
    return row
