"""Results on disk: a JSON file for each task, and its items as a parquet file.

<task>.json      rows for a table, every metric, settings, versions, the harness's own output
<task>.parquet   a row for each item: its hash, its log-likelihoods, its metrics
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prism_transformer.errors import InputError
from prism_transformer.eval.tasks import shown_metrics
from prism_transformer.folders import write_whole

Facts = dict[str, Any]


def finished(folder: Path, task: str, settings: Facts) -> Facts | None:
    """The result of a task that was done before with the same settings."""
    file = folder / f"{task}.json"
    try:
        result = json.loads(file.read_text("utf-8"))
        same = result["settings"] == settings and (folder / f"{task}.parquet").is_file()
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return result if same else None


def write_result(folder: Path, task: str, result: Facts, items: pa.Table) -> Facts:
    """Write both files, each whole or not at all; the JSON, which says it is done, last.

    The result comes back as it will be read.
    """
    text = json.dumps(result, indent=1, default=_name) + "\n"
    table = pa.BufferOutputStream()
    pq.write_table(items, table, compression="zstd")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{task}.parquet", table.getvalue().to_pybytes())
        write_whole(folder / f"{task}.json", text)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return json.loads(text)


def _name(value: object) -> str:
    """A function of a task by its name, which does not change from run to run."""
    return str(getattr(value, "__name__", value))


def metrics(raw: Mapping[str, Any]) -> Facts:
    """Every metric of every task and group in lm_eval's output; None where it has no number."""
    found: Facts = {}
    for name, values in raw["results"].items():
        # Keys are "metric,filter"; the tasks here have the one filter "none".
        pairs = {key.partition(",")[0]: value for key, value in values.items() if "," in key}
        found[name] = {
            key: value if isinstance(value, float | int) else None for key, value in pairs.items()
        }
    return found


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
