"""What is in a report, in reading order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from prism_transformer.core.table import MINUS, Table
from prism_transformer.figures.style import Tones, arm_tones
from prism_transformer.reporting import (
    contrasts,
    evaluation,
    layers,
    milestones,
    rates,
    schedules,
    training,
)
from prism_transformer.reporting.audit import Statement, audit
from prism_transformer.reporting.claims import Result, judge_claims
from prism_transformer.reporting.exhibits import Drawing
from prism_transformer.reporting.views import View
from prism_transformer.study.contrasts import Contrast
from prism_transformer.study.metrics import SECONDS
from prism_transformer.study.sentences import sentence

# In reading order: what every report has of all studies together, and of each study.
TABLES = (
    training.results, contrasts.differences, contrasts.contrasts, rates.rates, layers.effects,
    layers.held_out, schedules.ablation, evaluation.benchmarks, evaluation.benchmark_differences,
    milestones.milestones, evaluation.inference,
    schedules.configurations, schedules.schedules, training.runs,
)  # fmt: skip
FIGURES = (
    schedules.schedule_figure, schedules.schedule_map, contrasts.difference_figure,
    contrasts.contrast_figure, rates.rate_figure, layers.layer_figure,
    training.gap_figure, training.loss_curves, evaluation.benchmark_figure,
    evaluation.attention_figure, training.pareto_figure, evaluation.position_figure,
)  # fmt: skip
MOST_SENTENCES = 8


@dataclass(frozen=True)
class StudySection:
    """One study at one point: what it says in a few sentences, and its figures."""

    view: View
    state: str
    hardware: str
    sentences: tuple[str, ...]
    drawings: tuple[Drawing, ...]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on the study as a whole, which nobody should have to unfold."""
        n = len(self.view.remarks) if self.view.main else 0
        return self.sentences[len(self.sentences) - n :]


@dataclass(frozen=True)
class Report:
    """Everything a report shows."""

    title: str
    sections: tuple[StudySection, ...]
    claims: tuple[Result, ...]
    tables: tuple[Table, ...]
    scales: Drawing
    audit: tuple[Statement, ...]
    tones: Tones

    @property
    def drawings(self) -> list[Drawing]:
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
    names = dict.fromkeys(view.facts.name for view in views)
    return Report(
        title=f"Prism Transformer: {', '.join(names)}",
        sections=tuple(_section(view, tones) for view in views),
        claims=tuple(judge_claims(views)),
        tables=tuple(make(views) for make in TABLES),
        scales=training.scales_figure(views, tones),
        audit=tuple(audit()),
        tones=tones,
    )


def _section(view: View, tones: Tones) -> StudySection:
    drawn = tuple(made for draw in FIGURES if (made := draw(view, tones)))
    machines = dict.fromkeys(training.machine(run.hardware) for run in view.runs if run.hardware)
    hardware = "; ".join(machines) or "unknown hardware"
    return StudySection(view, state(view), hardware, sentences(view), drawn)


def state(view: View) -> str:
    """How many runs are complete, how long they took, and what became of the others."""
    counts = Counter(run.state for run in view.runs)
    done = f"{counts.pop('complete', 0)} of {len(view.runs)} runs complete"
    if seconds := view.scalar(SECONDS).sum(axis=None):
        shown = f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
        done += f" ({shown} of training in all)"
    rest = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
    return f"{done}; {rest}: these results are partial" if rest else done


def sentences(view: View) -> tuple[str, ...]:
    """What the comparison says: the main arm first, then others and contrasts if they are few."""
    if view.main is None:
        return ("One arm only: there is nothing to compare it with.",)
    others = [arm for arm in view.others if arm != view.main]
    shown = [view.main, *(others if len(others) < MOST_SENTENCES else [])]
    rows: list[Contrast] = [view.compared[arm] for arm in shown]
    few = len(view.contrasts) <= MOST_SENTENCES or view.facts.contrasts
    rows += view.contrasts if few else ()
    rows += view.envelope.contrasts if view.envelope else ()
    told = [sentence(row) for row in rows]
    if len(shown) <= len(others):
        told.append(f"{len(others)} more arms stand in the tables.")
    return tuple(re.sub(r"(?<=[ (])-(?=\d)", MINUS, each) for each in (*told, *view.remarks))
