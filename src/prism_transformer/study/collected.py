"""What a study found, typed, and as a folder small enough to commit or mail.

study.json       the question: arms, seeds, recipe; and what became of every run
table.parquet    a row for each number: arm, point, seed, metric, step, index, value
table.csv        the same, for eyes and spreadsheets
contrasts.csv    every contrast with every seed, for eyes and spreadsheets
items.parquet    a row for each item of a benchmark and metric, to compare arms item by item; its
                 cluster is the sub-task or template that it shares with other items

A point is a combination of swept values, counted from 0. ``step`` is of training; ``index`` a
layer or a position in the context. Both are empty where a number has none.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
from pydantic import Field

from prism_transformer.core.disk import read_whole, reading, write_whole, writing
from prism_transformer.core.errors import InputError
from prism_transformer.core.sealed import SealedPart, read_sealed, sealed_json, typed
from prism_transformer.eval.tasks import known_items
from prism_transformer.recipe import Recipe
from prism_transformer.study.looks import OBRIEN_FLEMING, Spending
from prism_transformer.study.metrics import EVAL, FINAL_LOSS, ITEMS
from prism_transformer.training.run import NOT_FINITE

# Folders of a study.
RUNS = "runs"
COLLECTED = "collected"

STUDY_FILE = "study.json"
TABLE_FILE = "table.parquet"
CSV_FILE = "table.csv"
CONTRASTS_FILE = "contrasts.csv"
ITEMS_FILE = "items.parquet"

COLUMNS = ["arm", "point", "seed", "metric", "step", "index", "value"]
ITEM_COLUMNS = ["arm", "point", "seed", "task", "item", "metric", "value", "cluster"]

LEARNING_RATE = "optim.lr"  # what [tune] finds for each arm
SUMS = "sums"  # in study.json: the sha256 of every file beside
NO_SUMS = (
    "Collected without sums, by an older version: nothing tells whether its files were changed; "
    "`prism study collect FOLDER` adds them."
)

EFFECT = 0.007  # nats per token: the least gain that the paper reports, at its three scales

Facts = dict[str, Any]
State = Literal["complete", "incomplete", "failed", "missing"]
Frame = TypeVar("Frame", pd.DataFrame, pd.Series)


class ArmFacts(SealedPart):
    """An arm as the study defines it."""

    name: str
    schedule: str
    heads: tuple[int, ...]
    changes: Facts = Field(default={})
    """what else of the recipe it changes, by dotted key"""


def beside_others(sessions: Iterable[Facts]) -> bool:
    """Whether other workers trained on the same machine in some session of a run."""
    return any(session.get("workers", 1) > 1 for session in sessions)


class RunHashes(SealedPart):
    """Two runs of one seed may be compared if these are equal."""

    initial_weights: str
    data_order: str
    shards: str


class RunFacts(SealedPart):
    """What became of one run."""

    arm: str
    point: int
    seed: int
    run: str
    """the name of its folder"""
    state: State
    failure: str | None = None
    hashes: RunHashes | None = None
    hardware: Facts | None = None
    software: Facts | None = None
    sessions: tuple[Facts, ...] = ()
    rate_compares_nothing: bool = False
    """said by the user who collected it: its machine did other work, which no session records"""

    @property
    def diverged(self) -> bool:
        """Whether it failed because its loss or gradient was no number any more."""
        return self.state == "failed" and NOT_FINITE in (self.failure or "")

    @property
    def beside_others(self) -> bool:
        """Whether its machine did other work as well, so that its rate says nothing of its arm."""
        return beside_others(self.sessions) or self.rate_compares_nothing


class ContrastFacts(SealedPart):
    """Arms against arms: what a study asks."""

    name: str
    weights: dict[str, float]
    """by arm; they sum to 0"""


class LooksFacts(SealedPart):
    """Numbers of seeds at which a study said that it would look."""

    seeds: tuple[int, ...]
    spending: Spending = OBRIEN_FLEMING


class PlanFacts(SealedPart):
    """A plan of looks under which a study was collected; it may have had another before."""

    looks: LooksFacts | None
    """None where none were planned"""
    looked: tuple[int, ...] = ()
    """numbers of seeds with which it was collected as a whole under this plan"""


class FactorialFacts(SealedPart):
    """The two head counts of a factorial study."""

    wide: int
    narrow: int


class SearchFacts(SealedPart):
    """Of a study that chose among many arms, so that the best of them look better than they are."""

    confirm: tuple[int, ...] = ()
    """seeds that the finalists are trained with once more"""
    confirmed: bool = False
    """these are the finalists, on those seeds"""
    rungs: str = ""
    """when arms were dropped, and why then"""


class RateFacts(SealedPart):
    """An arm's losses at several learning rates, and the best of them, which is its own."""

    arm: ArmFacts
    rates: tuple[float, ...]
    losses: tuple[tuple[float | None, ...], ...]
    """at each rate, a row for each seed; null where the run diverged"""
    best: float


class TuningFacts(SealedPart):
    """How the learning rate of each arm was found, on seeds that the comparison does not have."""

    rates: tuple[float, ...]
    """as planned; arms that were best at an end of them have more"""
    seeds: tuple[int, ...]
    recipe: Recipe
    """that all arms start from"""
    arms: tuple[RateFacts, ...] = ()
    """whose rate is found; the others are still to be tuned"""

    @property
    def best(self) -> dict[str, float]:
        """The rate of each arm by its name."""
        return {each.arm.name: each.best for each in self.arms}


class StudyFacts(SealedPart):
    """What study.json holds."""

    format: Literal[1] = 1
    name: str
    question: str
    command: str
    """what made these numbers"""
    baseline: str
    scale: str | None
    """of the paper, if the recipe is one of its own"""
    arms: tuple[ArmFacts, ...]
    points: tuple[Facts, ...]
    """swept values by their recipe key; one empty point where nothing is swept"""
    seeds: tuple[int, ...]
    """as planned"""
    recipe: Recipe
    """of the baseline, at no point of the sweep in particular, before its rate was tuned"""
    parameters: int
    complete: bool
    runs: tuple[RunFacts, ...]
    note: str = ""
    """what whoever collected it remarked"""
    contrasts: tuple[ContrastFacts, ...] = ()
    """as the study names them; none are named in older files and in many studies"""
    effect: float = EFFECT
    """nats per token that the study wants to be able to see"""
    factorial: FactorialFacts | None = None
    looks: LooksFacts | None = None
    looked: tuple[int, ...] = ()
    """numbers of seeds with which it was collected as a whole, this time included"""
    plans: tuple[PlanFacts, ...] = ()
    """of looks, under which it was collected, this time's included; older files have none"""
    tuning: TuningFacts | None = None
    """of a study with [tune]"""
    search: SearchFacts | None = None
    """of a study with [search]"""

    def tuned(self, arm: str) -> Facts:
        """What tuning has found for an arm, by recipe key."""
        best = self.tuning.best if self.tuning else {}
        return {LEARNING_RATE: best[arm]} if arm in best else {}


@dataclass(frozen=True)
class Collected:
    """A study's question, its runs and its numbers."""

    facts: StudyFacts
    table: pd.DataFrame
    items: pd.DataFrame
    doubt: str = ""
    """why it is not known whether its files were changed; empty if it is"""

    @property
    def baseline(self) -> str:
        return self.facts.baseline

    @property
    def arms(self) -> list[str]:
        """Names, as the study lists them."""
        return [arm.name for arm in self.facts.arms]

    @property
    def points(self) -> tuple[Facts, ...]:
        return self.facts.points

    @property
    def settled(self) -> int:
        """Seeds of which every run is complete or has failed."""
        left = {run.seed for run in self.facts.runs if run.state in ("incomplete", "missing")}
        return len(set(self.facts.seeds) - left)

    @property
    def doubts(self) -> tuple[str, ...]:
        """What a reader should know of where its numbers come from."""
        return (*([self.doubt] if self.doubt else []), *self._fewer_items())

    def _fewer_items(self) -> Iterator[str]:
        """Benchmarks of which fewer items were scored than there are."""
        counts = self.table[self.table["metric"].str.endswith(ITEMS)]
        for name, scored in counts.groupby("metric", sort=False)["value"].min().items():
            task = str(name).removeprefix(EVAL).removesuffix(ITEMS).rpartition(".")[0]
            known = known_items(task)
            if known and scored < min(known):
                yield f"{task}: {int(scored):,} of the {max(known):,} items it is known to have."

    def metric(self, name: str, point: int = 0) -> pd.DataFrame:
        """The rows of one metric at one point."""
        rows = self.table
        return rows[(rows["metric"] == name) & (rows["point"] == point)]

    def by_seed(self, name: str, point: int = 0) -> pd.DataFrame:
        """A metric that a run has once: a row for each seed, a column for each arm.

        NaN where there is no such number.
        """
        wide = self.metric(name, point).pivot(index="seed", columns="arm", values="value")
        return wide.reindex(index=list(self.facts.seeds), columns=self.arms)

    def final_loss(self, point: int = 0) -> pd.DataFrame:
        """Validation loss at the end of complete runs, as ``by_seed`` gives it."""
        return self.by_seed(FINAL_LOSS, point)


def finite(values: Frame) -> Frame:
    """The same table or column with NaN for everything that is no finite number."""
    numbers = values.astype(float)  # an empty one holds objects
    return numbers.where(np.isfinite(numbers))


def without_rates(facts: StudyFacts) -> StudyFacts:
    """The same study, with the speed of no run to be compared."""
    runs = [run.model_copy(update={"rate_compares_nothing": True}) for run in facts.runs]
    return facts.model_copy(update={"runs": tuple(runs)})


def write_collected(
    folder: Path, collected: Collected, more: Mapping[str, bytes] = MappingProxyType({})
) -> None:
    """Write all files, each whole or not at all; study.json, which says that they belong, last.

    ``more`` are files that follow from the table, by name.
    """
    table = collected.table[COLUMNS].astype({"step": "Int64", "index": "Int64"})
    items = collected.items[ITEM_COLUMNS]
    files = {
        TABLE_FILE: table.to_parquet(index=False, compression="zstd"),
        CSV_FILE: table.to_csv(index=False, lineterminator="\n").encode(),
        ITEMS_FILE: items.to_parquet(index=False, compression="zstd"),
        **more,
    }
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    facts = {**collected.facts.model_dump(mode="json"), SUMS: sums}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_whole(folder / name, content)
        write_whole(folder / STUDY_FILE, sealed_json(facts))


def is_collected(folder: Path) -> bool:
    """Whether a folder is one that ``write_collected`` made."""
    return (folder / STUDY_FILE).is_file() and (folder / TABLE_FILE).is_file()


def read_collected(folder: Path) -> Collected:
    """What ``write_collected`` wrote, if it is whole and of this format."""
    if not is_collected(folder):
        raise InputError(f"{folder}: nothing collected there; `prism study collect` does it")
    known, sums = _read_facts(folder)
    table = _read_table(folder / TABLE_FILE, sums)
    items = _read_table(folder / ITEMS_FILE, sums)
    if "cluster" not in items:  # of before clusters were kept: each item by itself
        items = items.assign(cluster=items["item"].astype(str))
    wanted = ((COLUMNS, table), (ITEM_COLUMNS, items))
    missing = [name for names, frame in wanted for name in names if name not in frame]
    if missing:
        raise InputError(f"{folder}: its tables have no column {', '.join(missing)}")
    return Collected(known, table, items, "" if sums else NO_SUMS)


def read_facts(folder: Path) -> StudyFacts:
    """What study.json says; the tables beside it are not looked at."""
    return _read_facts(folder)[0]


def _read_facts(folder: Path) -> tuple[StudyFacts, dict[str, str]]:
    """What study.json says, and the sums of the files beside."""
    facts = read_sealed(folder / STUDY_FILE)
    version = facts.get("format")
    if version != 1:
        raise InputError(f"{folder}: format {version!r}; this version reads 1")
    sums = facts.pop(SUMS, {})
    return typed(folder / STUDY_FILE, facts, StudyFacts), dict(sums)


def _read_table(file: Path, sums: Mapping[str, str]) -> pd.DataFrame:
    """A table of the folder, if it is the one that study.json was written for."""
    with reading(file):
        content = read_whole(file)
        # Older folders have no sums.
        if sums and sums.get(file.name) != hashlib.sha256(content).hexdigest():
            raise InputError(
                f"{file}: is not the table that {STUDY_FILE} was written with: sha256 differs; it "
                "was changed or is damaged: collect again, or take the folder from its source"
            )
        return pd.read_parquet(io.BytesIO(content))
