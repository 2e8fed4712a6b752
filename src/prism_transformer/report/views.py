"""What a report looks at: each study at each point of its sweep, asked in plain terms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from prism_transformer import cost, paper
from prism_transformer.errors import InputError
from prism_transformer.eval.tasks import BY_NAME, DIAGNOSTIC, shown_metrics
from prism_transformer.recipe import ModelConfig
from prism_transformer.schedule import HeadSchedule
from prism_transformer.study.compare import Row as ArmRow
from prism_transformer.study.compare import compare
from prism_transformer.study.table import (
    COLLECTED,
    RUNS,
    STUDY_FILE,
    Collected,
    finite,
    is_collected,
    read_collected,
)
from prism_transformer.train.run import RECIPE_FILE, is_run

# In the paper's order, then the built-in one: which metric of each task a table shows.
SHOWN: dict[str, str] = {}
for _name in (*BY_NAME, DIAGNOSTIC):
    SHOWN |= shown_metrics(_name)

PAPER_GPUS, PAPER_GPU = 8, "H100"
MOST_ARMS = 8  # beyond that, differences on benchmarks are of the main arm alone


@dataclass(frozen=True)
class View:
    """One study at one point of its sweep."""

    collected: Collected
    point: int
    key: str
    """short and unique: for ids and file names"""
    compared: dict[str, ArmRow]
    """each arm but the baseline, held against it"""

    @property
    def name(self) -> str:
        """The study's name, and the swept values where there are any."""
        swept = ", ".join(f"{key}={value}" for key, value in self.swept.items())
        return f"{self.collected.facts['name']}, {swept}" if swept else self.collected.facts["name"]

    @property
    def swept(self) -> dict[str, object]:
        """Recipe keys and values of this point."""
        return self.collected.points[self.point]

    @property
    def command(self) -> str:
        """What made these numbers."""
        return self.collected.facts["command"]

    @property
    def note(self) -> str:
        """What whoever collected it remarked."""
        return self.collected.facts.get("note", "")

    @property
    def scale(self) -> paper.Scale | None:
        """The paper's model that this is: its shape, its budget, and nothing swept."""
        name = self.collected.facts["scale"]
        return paper.scales().get(name) if name and not self.swept else None

    @property
    def on_papers_hardware(self) -> bool:
        """Whether every run was trained by eight processes, on eight H100."""
        runs = [run for run in self.runs if run["hardware"]]
        return bool(runs) and all(
            PAPER_GPU in str(run["hardware"].get("gpu", ""))
            and run["hardware"].get("gpus") == PAPER_GPUS
            and all(session["processes"] == PAPER_GPUS for session in run["sessions"])
            for run in runs
        )

    @cached_property
    def recipe(self) -> dict[str, dict]:
        """The baseline's recipe at this point."""
        laid = {section: dict(keys) for section, keys in self.collected.facts["recipe"].items()}
        for key, value in self.swept.items():
            section, name = key.split(".")
            laid[section][name] = value
        return laid

    @property
    def parameters(self) -> int:
        """Of every arm at this point."""
        if not any(key.startswith("model.") for key in self.swept):
            return self.collected.facts["parameters"]
        return cost.parameters(ModelConfig.model_validate(self.recipe["model"])).total

    @property
    def batch_tokens(self) -> int:
        """Tokens of one step at this point."""
        return self.recipe["train"]["batch_tokens"]

    @property
    def baseline(self) -> str:
        """The arm that others are held against."""
        return self.collected.baseline

    @property
    def arms(self) -> list[str]:
        """Names, the baseline first."""
        rest = [arm for arm in self.collected.arms if arm != self.baseline]
        return [self.baseline, *rest]

    @property
    def others(self) -> list[str]:
        """Every arm but the baseline."""
        return self.arms[1:]

    @property
    def seeds(self) -> list[int]:
        """As planned."""
        return self.collected.facts["seeds"]

    @property
    def runs(self) -> list[dict]:
        """What became of each run of this point."""
        return [run for run in self.collected.facts["runs"] if run["point"] == self.point]

    @property
    def d_model(self) -> int:
        """Width of the model."""
        return self.recipe["model"]["d_model"]

    @property
    def h_base(self) -> int:
        """Heads of the uniform twin."""
        return self.recipe["model"]["h_base"]

    @property
    def tokens(self) -> int:
        """Budget of one run, in whole steps."""
        return self.recipe["train"]["tokens"] // self.batch_tokens * self.batch_tokens

    @cached_property
    def _arms(self) -> dict[str, dict]:
        return {arm["name"]: arm for arm in self.collected.facts["arms"]}

    def schedule(self, arm: str) -> HeadSchedule:
        """An arm's heads, layer by layer."""
        return HeadSchedule(tuple(self._arms[arm]["heads"]))

    def changes(self, arm: str) -> dict[str, object]:
        """What else of the recipe an arm changes."""
        return self._arms[arm].get("changes") or {}

    @property
    def main(self) -> str | None:
        """The arm that stands for Prism.

        The paper's schedule at its scale; else the arm that is called prism; else the first.
        """
        if self.scale is not None:
            papers = [arm for arm in self.others if self.is_schedule(arm, self.scale.schedule)]
            if papers:
                return papers[0]
        named = [arm for arm in self.others if arm.lower() == "prism"]
        return next(iter(named or self.others), None)

    def is_schedule(self, arm: str, schedule: HeadSchedule) -> bool:
        """Whether an arm has these heads and changes nothing else."""
        return self.schedule(arm) == schedule and not self.changes(arm)

    def scalar(self, metric: str) -> pd.DataFrame:
        """A metric that each run has once: a row for each seed, a column for each arm."""
        if metric not in self._scalars:
            wide = finite(self.collected.by_seed(metric, self.point))
            self._scalars[metric] = wide[self.arms]
        return self._scalars[metric]

    @cached_property
    def _scalars(self) -> dict[str, pd.DataFrame]:
        return {}

    def row(self, arm: str) -> ArmRow:
        """An arm against the baseline: all that the numbers say."""
        return self.compared[arm]

    def series(self, metric: str, by: str) -> dict[str, pd.DataFrame]:
        """A metric over steps, layers or positions: for each arm, rows by that, columns by seed.

        Only seeds that have a value everywhere the arm has one.
        """
        if (metric, by) not in self._series:
            self._series[metric, by] = self._read_series(metric, by)
        return self._series[metric, by]

    @cached_property
    def _series(self) -> dict[tuple[str, str], dict[str, pd.DataFrame]]:
        return {}

    def _read_series(self, metric: str, by: str) -> dict[str, pd.DataFrame]:
        rows = self.collected.metric(metric, self.point)
        wide = rows.pivot(index=by, columns=["arm", "seed"], values="value").sort_index()
        found = {}
        for arm in dict.fromkeys(wide.columns.get_level_values("arm")):
            each = finite(wide[arm].dropna(how="all")).dropna(axis="columns")
            if not each.empty:
                found[arm] = each
        return {arm: found[arm] for arm in self.arms if arm in found}

    def tasks(self) -> list[tuple[str, str]]:
        """Benchmarks that were scored, each with the metric that tables show."""
        names = set(self.collected.table["metric"])
        return [
            (task, metric) for task, metric in SHOWN.items() if f"eval.{task}.{metric}" in names
        ]

    def pairs(self, metric: str, arm: str, against: str | None = None) -> np.ndarray:
        """An arm less another, or less the baseline, for each seed that has both."""
        names = [arm, against or self.baseline]
        wide = self.scalar(metric)[names].dropna()
        return (wide[names[0]] - wide[names[1]]).to_numpy()


def read_views(places: Sequence[Path]) -> list[View]:
    """Every study in these folders at every point; runs of no study are one together.

    What is neither is refused.
    """
    studies, runs = [], []
    for place in places:
        folders = _studies(place)
        studies += [read_collected(folder) for folder in folders]
        runs += [] if folders else _runs(place)
    if runs:
        from prism_transformer.study.runs import collect_runs

        studies.append(collect_runs(runs))
    views: list[View] = []
    keys: set[str] = set()
    for collected in studies:
        main = View(collected, 0, "", {}).main or ""
        # Of many arms the benchmarks of the main one alone are shown, and item tests take long.
        comparison = compare(collected, None if len(collected.arms) <= MOST_ARMS else {main})
        for point in range(len(collected.points)):
            key = _key(collected.facts["name"], point if len(collected.points) > 1 else None, keys)
            keys.add(key)
            rows = {row.arm.name: row for row in comparison.rows if row.point == point}
            views.append(View(collected, point, key, rows))
    return views


def _studies(place: Path) -> list[Path]:
    """Collected studies: this folder, the one of this study, or those of all studies in it."""
    for folder in (place, place / COLLECTED):
        if is_collected(folder):
            return [folder]
    inside = sorted(child for child in place.iterdir() if child.is_dir()) if place.is_dir() else []
    found = [child for child in inside if is_collected(child)]
    return found + [child / COLLECTED for child in inside if is_collected(child / COLLECTED)]


def _runs(place: Path) -> list[Path]:
    """Runs: this folder, those in it, or those of a study that was not collected yet."""
    if not place.is_dir():
        raise InputError(f"{place}: no such folder; give a study, a run, or a folder of runs")
    if is_run(place):
        return [place]
    for folder in (place, place / RUNS):
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        if runs := [child for child in found if is_run(child)]:
            return runs
    raise InputError(f"{place}: neither a study (no {STUDY_FILE}) nor a run (no {RECIPE_FILE})")


def _key(name: str, point: int | None, taken: set[str]) -> str:
    """A name that is safe as a file name and as an id."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "study"
    wanted = plain if point is None else f"{plain}-{point}"
    key, n = wanted, 2
    while key in taken:
        key, n = f"{wanted}-{n}", n + 1
    return key
