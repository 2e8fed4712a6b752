"""Every number that the folder of a run holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from prism_transformer.analysis import PROFILE_FILE
from prism_transformer.errors import InputError
from prism_transformer.study.cell import INFERENCE_FILE, LOSS_FILE, CellRun
from prism_transformer.train.run import Row, read_metrics

STRETCHES = 200  # points of a training curve that are kept

# Columns of an item that are not a metric.
ITEM_FACTS = ("task", "item", "item_sha256", "loglikelihoods", "answer")

Number = tuple[str, int | None, int | None, float]
"""metric, step, index, value"""


def numbers_of(run: CellRun) -> Iterator[Number]:
    """All numbers of a run, in a fixed order."""
    rows = read_metrics(run.folder)
    yield from _losses([row for row in rows if row["kind"] == "val"], run.cell.recipe.n_steps)
    yield from _training([row for row in rows if row["kind"] == "train"])
    for row in [row for row in rows if row["kind"] == "attention"][-1:]:
        for layer, value in enumerate(row["largest_logit"]):
            yield "largest_logit", row["step"], layer, value
    if run.step >= run.cell.recipe.n_steps:
        yield from _scores(run)
        yield from _profile(run.analysis_folder / PROFILE_FILE)
        yield from _positions(run.analysis_folder / LOSS_FILE)
        yield from _inference(run.analysis_folder / INFERENCE_FILE)


def _losses(rows: list[Row], last: int) -> Iterator[Number]:
    for row in rows:
        yield "val_loss", row["step"], None, row["loss"]
        if row["step"] == last:
            yield "final_val_loss", last, None, row["loss"]


def _training(rows: list[Row]) -> Iterator[Number]:
    if not rows:
        return
    length = -(-len(rows) // STRETCHES)
    for start in range(0, len(rows), length):
        stretch = rows[start : start + length]
        mean = sum(row["loss"] for row in stretch) / len(stretch)
        yield "train_loss", stretch[-1]["step"], None, mean
    yield "tokens_per_second", None, None, median(row["tokens_per_second"] for row in rows)
    yield "seconds", None, None, sum(row["seconds"] for row in rows)
    memory = [row["memory_bytes"] for row in rows if row["memory_bytes"] is not None]
    if memory:
        yield "memory_bytes", None, None, max(memory)


def _scores(run: CellRun) -> Iterator[Number]:
    for file in sorted(run.eval_folder.glob("*.json")):
        for row in _read(file)["rows"]:
            name = f"eval.{row['task']}.{row['metric']}"
            yield name, None, None, row["value"]
            yield f"{name}.items", None, None, row["items"]
            if row["stderr"] is not None:
                yield f"{name}.stderr", None, None, row["stderr"]


def _profile(file: Path) -> Iterator[Number]:
    for layer in _read(file)["profile"]["layers"] if file.is_file() else []:
        for name, statistic in layer["statistics"].items():
            yield f"attention.{name}", None, layer["layer"], statistic["mean"]


def _positions(file: Path) -> Iterator[Number]:
    for row in _read(file)["by_position"] if file.is_file() else []:
        end = int(row["positions"].rpartition("-")[2])
        yield "loss_at_position", None, end, row["loss"]


def _inference(file: Path) -> Iterator[Number]:
    for kind, found in _read(file)["kinds"].items() if file.is_file() else []:
        ours, theirs = found["seconds"], found["baseline_seconds"]
        yield f"inference.{kind}", None, None, found["tokens"] / median(ours)
        # Round by round: whatever else the machine did slowed both.
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
        yield f"inference.{kind}.ratio", None, None, median(ratios)


def items_of(run: CellRun) -> Iterator[pd.DataFrame]:
    """Every item of every task or group of tasks, counted from 0: task, item, metric, value."""
    for file in sorted(run.eval_folder.glob("*.json")):
        items = file.with_suffix(".parquet")
        if not items.is_file():
            raise InputError(f"{items}: is missing; `prism eval` again makes both files")
        result, frame = _read(file), pd.read_parquet(items)
        metrics = [
            name for name in frame if name not in ITEM_FACTS and not str(name).endswith("_weight")
        ]
        for row in result["rows"]:
            members = result["harness"]["group_subtasks"].get(row["task"]) or [row["task"]]
            mine = frame[frame["task"].isin(members)]
            mine = mine.assign(task=row["task"], item=range(len(mine)))
            long = mine.melt(["task", "item"], metrics, "metric", "value").dropna(subset=["value"])
            yield long.astype({"task": str, "metric": str, "value": float})


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: cannot be read: {error}") from None
