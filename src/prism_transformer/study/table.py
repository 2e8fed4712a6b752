"""What a study found, in a folder small enough to commit or mail.

study.json       the question: arms, seeds, recipe; and what became of every run
table.parquet    a row for each number: arm, point, seed, metric, step, index, value
table.csv        the same, for eyes and spreadsheets
items.parquet    a row for each item of a benchmark and metric, to compare arms item by item

A point is a combination of swept values, counted from 0. ``step`` is of training; ``index`` a
layer or a position in the context. Both are empty where a number has none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from prism_transformer.errors import InputError
from prism_transformer.folders import write_whole

FORMAT = 1

# Folders of a study.
RUNS = "runs"
COLLECTED = "collected"

STUDY_FILE = "study.json"
TABLE_FILE = "table.parquet"
CSV_FILE = "table.csv"
ITEMS_FILE = "items.parquet"

COLUMNS = ["arm", "point", "seed", "metric", "step", "index", "value"]
ITEM_COLUMNS = ["arm", "point", "seed", "task", "item", "metric", "value"]

# What study.json has.
FACTS = {
    "name", "question", "command", "baseline", "scale", "arms", "points", "seeds", "recipe",
    "parameters", "complete", "runs",
}  # fmt: skip

Facts = dict[str, Any]
Frame = TypeVar("Frame", pd.DataFrame, pd.Series)


@dataclass(frozen=True)
class Collected:
    """A study's question, its runs and its numbers."""

    facts: Facts
    """what is in study.json"""
    table: pd.DataFrame
    items: pd.DataFrame

    @property
    def baseline(self) -> str:
        """The arm that others are held against."""
        return self.facts["baseline"]

    @property
    def arms(self) -> list[str]:
        """Names, as the study lists them."""
        return [arm["name"] for arm in self.facts["arms"]]

    @property
    def points(self) -> list[Facts]:
        """Swept values by their recipe key; one empty point where nothing is swept."""
        return self.facts["points"]

    @property
    def batch_tokens(self) -> int:
        """Tokens of one step: ``step`` times this is what a model has seen."""
        return self.facts["recipe"]["train"]["batch_tokens"]

    def metric(self, name: str, point: int = 0) -> pd.DataFrame:
        """The rows of one metric at one point."""
        rows = self.table
        return rows[(rows["metric"] == name) & (rows["point"] == point)]

    def by_seed(self, name: str, point: int = 0) -> pd.DataFrame:
        """A metric that a run has once: a row for each seed, a column for each arm.

        NaN where there is no such number.
        """
        wide = self.metric(name, point).pivot(index="seed", columns="arm", values="value")
        return wide.reindex(index=self.facts["seeds"], columns=self.arms)

    def final_loss(self, point: int = 0) -> pd.DataFrame:
        """Validation loss at the end of complete runs, as ``by_seed`` gives it."""
        return self.by_seed("final_val_loss", point)


def finite(values: Frame) -> Frame:
    """The same table or column with NaN for everything that is no finite number."""
    numbers = values.astype(float)  # an empty one holds objects
    return numbers.where(np.isfinite(numbers))


def write_collected(folder: Path, collected: Collected) -> None:
    """Write all files, each whole or not at all; study.json, which says that they belong, last."""
    table = collected.table[COLUMNS].astype({"step": "Int64", "index": "Int64"})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / TABLE_FILE, table.to_parquet(index=False, compression="zstd"))
        write_whole(folder / CSV_FILE, table.to_csv(index=False, lineterminator="\n"))
        items = collected.items[ITEM_COLUMNS]
        write_whole(folder / ITEMS_FILE, items.to_parquet(index=False, compression="zstd"))
        facts = {"format": FORMAT} | collected.facts
        write_whole(folder / STUDY_FILE, json.dumps(facts, indent=1) + "\n")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None


def is_collected(folder: Path) -> bool:
    """Whether a folder is one that ``write_collected`` made."""
    return (folder / STUDY_FILE).is_file() and (folder / TABLE_FILE).is_file()


def read_collected(folder: Path) -> Collected:
    """What ``write_collected`` wrote."""
    if not is_collected(folder):
        raise InputError(f"{folder}: nothing collected there; `prism study collect` does it")
    try:
        facts = json.loads((folder / STUDY_FILE).read_text("utf-8"))
        table = pd.read_parquet(folder / TABLE_FILE)
        items = pd.read_parquet(folder / ITEMS_FILE)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: cannot be read: {error}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        found = facts.get("format") if isinstance(facts, dict) else None
        raise InputError(f"{folder}: format {found!r}; this version reads {FORMAT}")
    if lacking := FACTS - facts.keys():
        raise InputError(f"{folder / STUDY_FILE}: has no {', '.join(sorted(lacking))}")
    missing = [name for name in COLUMNS if name not in table] + [
        name for name in ITEM_COLUMNS if name not in items
    ]
    if missing:
        raise InputError(f"{folder}: its tables have no column {', '.join(missing)}")
    return Collected(facts, table, items)
