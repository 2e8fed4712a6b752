"""The numbers and the items of one run, as its files say them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import pandas as pd

from prism_transformer.analysis import PROFILE_FILE
from prism_transformer.core.sealed import read_sealed
from prism_transformer.eval import SLICE, loss_file
from prism_transformer.eval.diagnostic import CHOICES
from prism_transformer.eval.results import read_result
from prism_transformer.eval.tasks import ACCURACIES, BY_NAME, DIAGNOSTIC_CLOZE
from prism_transformer.study import metrics
from prism_transformer.study.runs import INFERENCE_FILE, StudyRun
from prism_transformer.training.run import Row, read_metrics

STRETCHES = 200  # points of a training curve that are kept

# Columns of an item that are not a metric.
ITEM_FACTS = ("task", "item", "item_sha256", "loglikelihoods", "answer")

Number = tuple[str, int | None, int | None, float]
"""metric, step, index, value"""


def numbers_of(run: StudyRun) -> Iterator[Number]:
    """All numbers of a run, in a fixed order."""
    rows, last = read_metrics(run.folder), run.cell.recipe.n_steps
    for row in rows:
        if row["kind"] == "val":
            yield metrics.VAL_LOSS, row["step"], None, row["loss"]
            if row["step"] == last:
                yield metrics.FINAL_LOSS, last, None, row["loss"]
    yield from _training([row for row in rows if row["kind"] == "train"])
    for row in [row for row in rows if row["kind"] == "attention"][-1:]:
        for layer, value in enumerate(row["largest_logit"]):
            yield metrics.LARGEST_LOGIT, row["step"], layer, value
    if run.step >= last:
        yield from _looks(run, 1.0, last)
        yield from _inference(run.analysis_folder / INFERENCE_FILE)
    yield from _milestones(run)


def _milestones(run: StudyRun) -> Iterator[Number]:
    """The same as at the end, of earlier checkpoints; names have the share of training."""
    stages, recipe = run.study.stages.values(), run.cell.recipe
    steps = {share: step for stage in stages for share, step in stage.steps(recipe).items()}
    for share, step in sorted(steps.items()):
        for name, _, index, value in _looks(run, share, step) if share < 1 else ():
            yield metrics.at(name, share), step, index, value


def _looks(run: StudyRun, share: float, step: int) -> Iterator[Number]:
    """What was measured of the checkpoint at a step, by the stages that ask for its share."""
    scores, rest = run.at_step(step)
    asked = [name for name, stage in run.study.stages.items() if share in stage.at]
    # Of the last checkpoint all that there is counts, whoever measured it.
    if share == 1 or "eval" in asked:
        yield from _scores(scores)
    if share == 1 or "analyze" in asked:
        yield from _profile(rest / PROFILE_FILE)
    if share == 1 or "loss" in asked:
        yield from _losses(rest, run.cell.recipe.model.seq_len)


def _training(rows: list[Row]) -> Iterator[Number]:
    if not rows:
        return
    length = -(-len(rows) // STRETCHES)
    for start in range(0, len(rows), length):
        stretch = rows[start : start + length]
        mean = sum(row["loss"] for row in stretch) / len(stretch)
        yield metrics.TRAIN_LOSS, stretch[-1]["step"], None, mean
    rate = median(row["tokens_per_second"] for row in rows)
    yield metrics.TOKENS_PER_SECOND, None, None, rate
    yield metrics.SECONDS, None, None, sum(row["seconds"] for row in rows)
    memory = [row["memory_bytes"] for row in rows if row["memory_bytes"] is not None]
    if memory:
        yield metrics.MEMORY_BYTES, None, None, max(memory)


def _scores(folder: Path) -> Iterator[Number]:
    """The score that tables show of each task, and its other accuracy where it has two."""
    for file in sorted(folder.glob("*.json")):
        result = read_sealed(file)
        for row in result["rows"]:
            found = result["metrics"].get(row["task"], {})
            shown = {row["metric"]: (row["value"], row["stderr"])}
            for metric in ACCURACIES:
                value = found.get(metric)
                if value is not None and row["task"] in BY_NAME:
                    shown.setdefault(metric, (value, found.get(f"{metric}_stderr")))
            for metric, (value, stderr) in shown.items():
                name = metrics.eval_score(row["task"], metric)
                yield name, None, None, value
                yield name + metrics.ITEMS, None, None, row["items"]
                if stderr is not None:
                    yield name + metrics.STDERR, None, None, stderr


def _profile(file: Path) -> Iterator[Number]:
    for layer in read_sealed(file)["profile"]["layers"] if file.is_file() else []:
        for name, statistic in layer["statistics"].items():
            yield metrics.attention(name), None, layer["layer"], statistic["mean"]


def _losses(folder: Path, context: int) -> Iterator[Number]:
    """Loss by position, and at other lengths of sequences, where they are of the same text."""
    file = folder / loss_file()
    own = read_sealed(file) if file.is_file() else None
    if own is None or not own.get("text", SLICE).startswith(SLICE):  # older ones say none
        return
    yield from _positions(metrics.LOSS_AT_POSITION, own)
    others = [read_sealed(file) for file in folder.glob(loss_file().replace(".", "-*."))]
    n_tokens = own["sequences"] * context
    same = [
        kept
        for kept in others
        if kept["sequences"] * kept["length"] == n_tokens and kept["text"].startswith(SLICE)
    ]
    if same:
        yield metrics.loss_at_length(metrics.NO_SCALING), None, context, own["loss"]
    for kept in sorted(same, key=lambda kept: (kept["length"], kept["scaling"] or "")):
        scaling, length = _scaling(kept, context), kept["length"]
        yield metrics.loss_at_length(scaling), None, length, kept["loss"]
        yield from _positions(metrics.loss_at_position(scaling, length), kept)


def _scaling(kept: Row, context: int) -> str:
    """The kind alone where it stretches the context to the length, else with its factor."""
    kind, _, factor = (kept["scaling"] or metrics.NO_SCALING).partition(":")
    fits = not factor or float(factor) * context == kept["length"]
    return kind if fits else f"{kind}:{factor}"


def _positions(name: str, kept: Row) -> Iterator[Number]:
    for row in kept["by_position"]:
        end = int(row["positions"].rpartition("-")[2])
        yield name, None, end, row["loss"]


def _inference(file: Path) -> Iterator[Number]:
    for kind, timed in read_sealed(file)["kinds"].items() if file.is_file() else []:
        ours, theirs = timed["seconds"], timed["baseline_seconds"]
        yield metrics.inference(kind), None, None, timed["tokens"] / median(ours)
        # Round by round: whatever else the machine did slowed both.
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
        yield metrics.inference_ratio(kind), None, None, median(ratios)


def items_of(run: StudyRun) -> Iterator[pd.DataFrame]:
    """Every item of every task or group of tasks, counted from 0, with its cluster."""
    for file in sorted(run.eval_folder.glob("*.json")):
        result, frame = read_result(file), pd.read_parquet(file.with_suffix(".parquet"))
        names = [
            name for name in frame if name not in ITEM_FACTS and not str(name).endswith("_weight")
        ]
        for row in result["rows"]:
            members = result["harness"]["group_subtasks"].get(row["task"]) or [row["task"]]
            mine = frame[frame["task"].isin(members)]
            mine = mine.assign(
                cluster=_clusters(mine, members), task=row["task"], item=range(len(mine))
            )
            facts = ["task", "item", "cluster"]
            long = mine.melt(facts, names, "metric", "value").dropna(subset=["value"])
            yield long.astype({"task": str, "cluster": str, "metric": str, "value": float})


def _clusters(items: pd.DataFrame, members: Sequence[str]) -> list[str]:
    """What each item shares with others: its sub-task, a template; else it stands by itself."""
    if len(members) > 1:
        return [str(task) for task in items["task"]]
    each = (
        CHOICES if members == [DIAGNOSTIC_CLOZE] else 1
    )  # items of one template follow each other
    return [str(int(item) // each) for item in items["item"]]
