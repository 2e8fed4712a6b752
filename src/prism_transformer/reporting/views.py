"""One study at one point of its sweep: the questions that tables, figures and claims ask it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from prism_transformer.core.table import Interval
from prism_transformer.eval.tasks import ACCURACIES, BY_NAME, DIAGNOSTIC, shown_metrics
from prism_transformer.models import cost
from prism_transformer.recipe import Recipe
from prism_transformer.recipes.files import changed
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules import paper
from prism_transformer.study import metrics
from prism_transformer.study.best_rates import Envelope
from prism_transformer.study.collected import (
    LEARNING_RATE,
    ArmFacts,
    Collected,
    RunFacts,
    StudyFacts,
    finite,
)
from prism_transformer.study.compare import ArmContrast, limit_of
from prism_transformer.study.contrasts import Contrast, Lost, lost_runs
from prism_transformer.study.factorial import LayerEffects
from prism_transformer.study.lengths import Lengths, lengths_of
from prism_transformer.study.statistics import Ratio, ratio

# In the paper's order, then the built-in one: which metric of each task a table shows.
SHOWN: dict[str, str] = {}
for _name in (*BY_NAME, DIAGNOSTIC):
    SHOWN |= shown_metrics(_name)

PAPER_GPUS, PAPER_GPU, PAPER_PRECISION = 8, "H100", "bf16"
INFERENCE = ("prefill", "decoding")  # kinds of speed that a study with [inference] measures
MOST_ARMS = 8  # beyond that, differences on benchmarks are of the main arm alone


@dataclass(frozen=True)
class View:
    """One study at one point of its sweep."""

    collected: Collected
    point: int
    key: str
    """short and unique: for ids and file names"""
    compared: dict[str, ArmContrast]
    """each arm but the baseline, held against it"""
    contrasts: tuple[Contrast, ...] = ()
    """that the study names, or Prism against each control"""
    remarks: tuple[str, ...] = ()
    """what is to be said of the study as a whole"""
    envelope: Envelope | None = None
    """loss against learning rate; of a sweep at the first of its points"""
    layers: LayerEffects | None = None
    """of a factorial study"""

    @property
    def facts(self) -> StudyFacts:
        return self.collected.facts

    @property
    def name(self) -> str:
        """The study's name, and the swept values where there are any."""
        return ", ".join(
            [self.facts.name, *(f"{key}={value}" for key, value in self.swept.items())]
        )

    @property
    def swept(self) -> dict[str, object]:
        """Recipe keys and values of this point."""
        return self.collected.points[self.point]

    @property
    def scale(self) -> paper.Scale | None:
        """The paper's model that this is: its shape, its budget, and nothing swept."""
        name = self.facts.scale
        return paper.scales().get(name) if name and not self.swept else None

    @property
    def on_papers_hardware(self) -> bool:
        """Whether every run was trained by eight processes, on eight H100."""
        known = [(run.hardware, run.sessions) for run in self.runs if run.hardware]
        return bool(known) and all(
            PAPER_GPU in str(hardware.get("gpu", ""))
            and hardware.get("gpus") == PAPER_GPUS
            and all(session["processes"] == PAPER_GPUS for session in sessions)
            for hardware, sessions in known
        )

    @property
    def in_papers_precision(self) -> bool:
        """Whether every session of every run was in bfloat16, as the paper's are."""
        sessions = [session for run in self.runs for session in run.sessions]
        return bool(sessions) and all(one["precision"] == PAPER_PRECISION for one in sessions)

    @cached_property
    def recipe(self) -> Recipe:
        """The baseline's recipe at this point."""
        return changed(self.facts.recipe, self.swept, f"{self.key}: [sweep]")

    @property
    def parameters(self) -> int:
        """Of every arm at this point."""
        if not any(key.startswith("model.") for key in self.swept):
            return self.facts.parameters
        return cost.parameters(self.recipe.model).total

    @property
    def batch_tokens(self) -> int:
        return self.recipe.train.batch_tokens

    @property
    def baseline(self) -> str:
        return self.collected.baseline

    @property
    def arms(self) -> list[str]:
        """Names, the baseline first."""
        return [self.baseline, *(arm for arm in self.collected.arms if arm != self.baseline)]

    @property
    def others(self) -> list[str]:
        return self.arms[1:]

    @property
    def runs(self) -> list[RunFacts]:
        """What became of each run of this point."""
        return [run for run in self.facts.runs if run.point == self.point]

    @cached_property
    def lost(self) -> tuple[Lost, ...]:
        """Runs of this point that failed, and so are in no pair."""
        return lost_runs(self.collected, self.point)

    @cached_property
    def losses(self) -> pd.DataFrame:
        """Final losses of complete runs: a row for each seed, a column for each arm."""
        return self.scalar(metrics.FINAL_LOSS)

    @cached_property
    def rates_alone(self) -> pd.DataFrame:
        """Tokens per second of runs that had their machine to themselves; NaN of all others."""
        rates = self.scalar(metrics.TOKENS_PER_SECOND).copy()
        for run in self.runs:
            if run.beside_others:
                rates.loc[run.seed, run.arm] = np.nan
        return rates

    @property
    def beside_others(self) -> bool:
        """Whether some of its rates are those of runs that did not have their machine alone."""
        return any(run.beside_others for run in self.runs)

    @property
    def d_model(self) -> int:
        return self.recipe.model.d_model

    @property
    def h_base(self) -> int:
        """Heads of the uniform twin."""
        return self.recipe.model.h_base

    @property
    def tokens(self) -> int:
        """Budget of one run, in whole steps."""
        return self.recipe.train.tokens // self.batch_tokens * self.batch_tokens

    @cached_property
    def _arms(self) -> dict[str, ArmFacts]:
        return {arm.name: arm for arm in self.facts.arms}

    def schedule(self, arm: str) -> HeadSchedule:
        """An arm's heads, layer by layer."""
        return HeadSchedule(self._arms[arm].heads)

    def changes(self, arm: str) -> dict[str, object]:
        """What else of the recipe an arm changes."""
        return self._arms[arm].changes

    def changes_told(self, arm: str) -> str:
        """The same in words; nothing for most arms."""
        return ", ".join(f"{key}={value}" for key, value in self.changes(arm).items())

    def rate(self, arm: str) -> float:
        """An arm's peak learning rate: the one that was found for it, where one was."""
        own = self.changes(arm) | self.facts.tuned(arm)
        return float(str(own.get(LEARNING_RATE, self.recipe.optim.lr)))

    @cached_property
    def main(self) -> str | None:
        """The arm that stands for Prism.

        The paper's schedule at its scale; else the arm that is called prism; else the first.
        """
        papers = [arm for arm in self.others if self.paper_arm(arm) == "prism"]
        named = [arm for arm in self.others if arm.lower() == "prism"]
        return next(iter([*papers, *named, *self.others]), None)

    @property
    def main_contrast(self) -> ArmContrast | None:
        """The main arm against the baseline."""
        return self.compared[self.main] if self.main else None

    @cached_property
    def lengths(self) -> Lengths | None:
        """Losses in sequences longer than trained, where they were read."""
        return lengths_of(self.collected, self.point, self.main, limit_of(self.collected))

    def is_schedule(self, arm: str, schedule: HeadSchedule) -> bool:
        """Whether an arm has these heads and changes nothing else."""
        return self.schedule(arm) == schedule and not self.changes(arm)

    def scalar(self, metric: str) -> pd.DataFrame:
        """A metric that each run has once: a row for each seed, a column for each arm."""
        return finite(self.collected.by_seed(metric, self.point))[self.arms]

    # -- what the paper has for an arm -----------------------------------------------------------

    def paper_arm(self, arm: str) -> str | None:
        """Which of the paper's two arms this is, at its scale: baseline, prism or neither."""
        if self.scale is None or self.changes(arm):
            return None
        if self.schedule(arm) == self.scale.schedule:
            return "prism"
        uniform = HeadSchedule.uniform(self.scale.h_base, self.scale.n_layers)
        return "baseline" if self.schedule(arm) == uniform else None

    def paper_ablation(self, arm: str) -> paper.Ablation | None:
        """The paper's row of its ablation for this arm; only at the small scale."""
        if self.scale is None or self.scale.name != "small":
            return None
        rows = paper.ablation().values()
        return next((row for row in rows if self.is_schedule(arm, row.schedule)), None)

    def paper_gap(self, arm: str) -> float | None:
        """The paper's difference of this arm to its baseline, nats per token."""
        row = self.paper_ablation(arm)
        if row is not None and row.gain is not None:
            return -row.gain
        return self.scale.gap if self.scale and self.paper_arm(arm) == "prism" else None

    # -- an arm's heads --------------------------------------------------------------------------

    def layers_below_base(self, arm: str) -> int:
        """How many layers come before the first with the base head count."""
        heads = self.schedule(arm).heads
        return next((layer for layer, n in enumerate(heads) if n >= self.h_base), len(heads))

    def share_at_base(self, arm: str) -> float:
        """How many of an arm's layers have the base head count."""
        heads = self.schedule(arm).heads
        return heads.count(self.h_base) / len(heads)

    # -- numbers ---------------------------------------------------------------------------------

    def series(self, metric: str, by: str) -> dict[str, pd.DataFrame]:
        """A metric over steps, layers or positions: for each arm, rows by that, columns by seed.

        Only seeds that have a value everywhere the arm has one.
        """
        if (metric, by) in self._series:  # asked for each arm anew, and of many arms it takes long
            return self._series[metric, by]
        rows = self.collected.metric(metric, self.point)
        wide = rows.pivot(index=by, columns=["arm", "seed"], values="value").sort_index()
        there = set(wide.columns.get_level_values("arm"))
        found = {
            arm: finite(wide[arm].dropna(how="all")).dropna(axis="columns")
            for arm in self.arms
            if arm in there
        }
        known = {arm: each for arm, each in found.items() if not each.empty}
        return self._series.setdefault((metric, by), known)

    @cached_property
    def _series(self) -> dict[tuple[str, str], dict[str, pd.DataFrame]]:
        return {}

    def paired_series(self, metric: str, by: str, arm: str) -> pd.DataFrame:
        """Arm minus baseline at the places and for the seeds that both have; empty if none."""
        found = self.series(metric, by)
        if self.baseline not in found or arm not in found:
            return pd.DataFrame()
        return (found[arm] - found[self.baseline]).dropna(axis="columns", how="all").dropna()

    def tasks(self) -> list[tuple[str, str]]:
        """Benchmarks that were scored, each with the metric that tables show."""
        names = set(self.collected.table["metric"])
        return [each for each in SHOWN.items() if metrics.eval_score(*each) in names]

    def scores(self) -> list[tuple[str, str]]:
        """The same with both accuracies of a benchmark, where it has two."""
        names = set(self.collected.table["metric"])
        both = {
            task: [metric, *(a for a in ACCURACIES if a != metric)]
            for task, metric in SHOWN.items()
        }
        return [
            (task, metric)
            for task, each in both.items()
            for metric in each
            if metrics.eval_score(task, metric) in names
        ]

    def inference_ratio(self, arm: str, kind: str) -> Ratio | None:
        """Tokens per second to the baseline's, over the seeds that have it."""
        known = self.scalar(metrics.inference_ratio(kind))[arm].dropna()
        return None if known.empty else ratio(known, np.ones(len(known)))


def factor(metric: str) -> float:
    """Accuracies are shown in percent, everything else as it is."""
    return 100.0 if metric.startswith("acc") else 1.0


def percent(found: Ratio) -> tuple[float, Interval]:
    """By how much a ratio differs from 1: the mean, and its interval."""
    return 100 * (found.mean - 1), Interval(100 * (found.low - 1), 100 * (found.high - 1))
