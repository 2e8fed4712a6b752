"""What is in a report, in reading order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from prism_transformer.report import tables
from prism_transformer.report.audit import Finding, audit
from prism_transformer.report.benchmarks import benchmark_differences, benchmarks
from prism_transformer.report.claims import Result, judge_claims
from prism_transformer.report.figures import Drawing, Tones
from prism_transformer.report.palette import arm_tones
from prism_transformer.report.result_figures import (
    attention_figure,
    benchmark_figure,
    pareto_figure,
    position_figure,
)
from prism_transformer.report.table import MINUS, Table
from prism_transformer.report.training_figures import (
    difference_figure,
    gap_figure,
    loss_curves,
    scales_figure,
    schedule_figure,
    schedule_map,
)
from prism_transformer.report.views import View
from prism_transformer.study.compare import sentence

FIGURES = (
    schedule_figure, schedule_map, difference_figure, gap_figure, loss_curves, benchmark_figure,
    attention_figure, pareto_figure, position_figure,
)  # fmt: skip
MOST_SENTENCES = 8


@dataclass(frozen=True)
class Section:
    """One study at one point: what it says in a few sentences, and its figures."""

    view: View
    state: str
    hardware: str
    sentences: tuple[str, ...]
    drawings: tuple[Drawing, ...]


@dataclass(frozen=True)
class Report:
    """Everything a report shows."""

    title: str
    sections: tuple[Section, ...]
    claims: tuple[Result, ...]
    tables: tuple[Table, ...]
    scales: Drawing
    findings: tuple[Finding, ...]
    tones: Tones

    @property
    def drawings(self) -> list[Drawing]:
        """Every figure, the one over all studies first."""
        return [self.scales, *(each for part in self.sections for each in part.drawings)]

    @property
    def arms(self) -> dict[str, int]:
        """A number for each arm, by which the page names it."""
        return {arm: place for place, arm in enumerate(self.tones)}


def make_report(views: Sequence[View]) -> Report:
    """Tables, figures, claims and audit of these studies."""
    mains = [view.main for view in views if view.main is not None]
    tones = arm_tones(
        (view.baseline for view in views), (*mains, *(arm for view in views for arm in view.arms))
    )
    names = dict.fromkeys(view.collected.facts["name"] for view in views)
    return Report(
        title=f"Prism Transformer: {', '.join(names)}",
        sections=tuple(_section(view, tones) for view in views),
        claims=tuple(judge_claims(views)),
        tables=(
            tables.results(views),
            tables.differences(views),
            tables.ablation(views),
            benchmarks(views),
            benchmark_differences(views),
            tables.inference(views),
            tables.configurations(views),
            tables.schedules(views),
            tables.runs(views),
        ),
        scales=scales_figure(views, tones),
        findings=tuple(audit()),
        tones=tones,
    )


def _section(view: View, tones: Tones) -> Section:
    drawn = (draw(view, tones) for draw in FIGURES)
    return Section(
        view, state(view), hardware(view), sentences(view), tuple(d for d in drawn if d is not None)
    )


def state(view: View) -> str:
    """How many runs are complete, and what became of the others."""
    counts = Counter(run["state"] for run in view.runs)
    done = f"{counts.pop('complete', 0)} of {len(view.runs)} runs complete{_training(view)}"
    rest = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
    return f"{done}; {rest}: these results are partial" if rest else done


def _training(view: View) -> str:
    """Time that all runs took together, as far as they are."""
    seconds = view.scalar("seconds").sum(axis=None)
    if not seconds:
        return ""
    shown = f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
    return f" ({shown} of training in all)"


def hardware(view: View) -> str:
    """The machines of a study."""
    found = dict.fromkeys(tables.machine(run["hardware"]) for run in view.runs if run["hardware"])
    return "; ".join(found) or "unknown hardware"


def sentences(view: View) -> tuple[str, ...]:
    """What the comparison says: the main arm first, then the others if they are few."""
    if view.main is None:
        return ("One arm only: there is nothing to compare it with.",)
    others = [arm for arm in view.others if arm != view.main]
    shown = [view.main, *(others if len(others) < MOST_SENTENCES else [])]
    told = tuple(re.sub(r"(?<=[ (])-(?=\d)", MINUS, sentence(view.row(arm))) for arm in shown)
    if len(shown) <= len(others):
        told += (f"{len(others)} more arms stand in the tables.",)
    return told
