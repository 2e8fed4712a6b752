"""What is in a report, in reading order.

First of each study its question, the answer and the figures that show it; then what it contrasts,
what else was measured, the claims, every table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from prism_transformer.core.table import Table
from prism_transformer.figures.style import Tones, arm_tones
from prism_transformer.reporting import (
    context,
    contrasts,
    evaluation,
    layers,
    milestones,
    paths,
    rates,
    schedules,
    training,
)
from prism_transformer.reporting.answers import Answer, answer_of, best_sentences, sentences, state
from prism_transformer.reporting.audit import Statement, audit
from prism_transformer.reporting.claims import Result, judge_claims
from prism_transformer.reporting.exhibits import Drawing
from prism_transformer.reporting.views import View

Draw = Callable[[View, Tones], Drawing | None]

# In reading order: what every report has of all studies together, and of each study.
TABLES = (
    training.results, contrasts.differences, contrasts.contrasts, rates.rates, layers.effects,
    layers.beyond, paths.paths, schedules.ablation, evaluation.benchmarks,
    evaluation.benchmark_differences, context.rises, context.retrieval, milestones.milestones,
    evaluation.inference,
    schedules.configurations, schedules.schedules, training.mixtures, training.runs,
)  # fmt: skip
CONTRASTED: tuple[Draw, ...] = (
    contrasts.difference_figure, contrasts.leading_figure, training.gap_figure,
    contrasts.contrast_figure, rates.rate_figure, layers.layer_figure, paths.path_figure,
)  # fmt: skip
MEASURED: tuple[Draw, ...] = (
    training.loss_curves, evaluation.attention_figure, evaluation.benchmark_figure,
    evaluation.position_figure, context.length_figure, training.pareto_figure,
    schedules.schedule_figure, schedules.schedule_map,
)  # fmt: skip
# While runs come in: what they did, and nothing that would decide.
LIVE_TABLES = (training.results, training.mixtures, training.runs)
LIVE_CONTRASTED: tuple[Draw, ...] = (contrasts.difference_figure, training.gap_figure)
LIVE_MEASURED: tuple[Draw, ...] = (training.loss_curves,)

FRONT = 2  # figures that stand beside each other at the top


@dataclass(frozen=True)
class StudySection:
    """One study at one point: what it says in a few sentences, and its figures."""

    view: View
    state: str
    hardware: str
    sentences: tuple[str, ...]
    contrasted: tuple[Drawing, ...]
    measured: tuple[Drawing, ...]
    best: tuple[str, ...] = ()
    """on arms at their best learning rates, which are of no point of the sweep"""

    @property
    def drawings(self) -> tuple[Drawing, ...]:
        return (*self.contrasted, *self.measured)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on the study as a whole, which nobody should have to unfold."""
        return self.sentences[len(self.own) :]

    @property
    def own(self) -> tuple[str, ...]:
        """Sentences on this point alone."""
        n = len(self.view.remarks) if self.view.main and self.sentences else 0
        return self.sentences[: len(self.sentences) - n]


@dataclass(frozen=True)
class StudyPart:
    """One study at all its points: the answer, the figures that show it, then everything else."""

    answer: Answer
    front: tuple[Drawing, ...]
    sections: tuple[StudySection, ...]

    @property
    def view(self) -> View:
        """At its first point: what all points share is asked here."""
        return self.sections[0].view

    @property
    def drawings(self) -> list[Drawing]:
        """Each figure once, those at the top first."""
        shown = {each.key for each in self.front}
        rest = [each for section in self.sections for each in section.drawings]
        return [*self.front, *(each for each in rest if each.key not in shown)]


@dataclass(frozen=True)
class Report:
    """Everything a report shows."""

    title: str
    studies: tuple[StudyPart, ...]
    claims: tuple[Result, ...]
    tables: tuple[Table, ...]
    scales: Drawing | None
    audit: tuple[Statement, ...]
    tones: Tones
    live: bool = False
    """written while runs come in"""
    stopped: bool = False
    """they no longer do"""

    @property
    def sections(self) -> tuple[StudySection, ...]:
        return tuple(section for study in self.studies for section in study.sections)

    @property
    def drawings(self) -> list[Drawing]:
        found = [each for study in self.studies for each in study.drawings]
        return [*found, *([self.scales] if self.scales else [])]

    @property
    def arms(self) -> dict[str, int]:
        """A number for each arm, by which the page names it."""
        return {arm: place for place, arm in enumerate(self.tones)}


def make_report(views: Sequence[View], *, live: bool = False, stopped: bool = False) -> Report:
    """Tables, figures, claims and audit of these studies."""
    mains = [view.main for view in views if view.main is not None]
    tones = arm_tones(
        (view.baseline for view in views), (*mains, *(arm for view in views for arm in view.arms))
    )
    names = dict.fromkeys(view.facts.name for view in views)
    points = groupby(views, key=lambda view: id(view.collected))
    return Report(
        title=f"Prism Transformer: {', '.join(names)}",
        studies=tuple(_part(list(own), tones, live) for _, own in points),
        claims=() if live else tuple(judge_claims(views)),
        tables=tuple(
            made for make in (LIVE_TABLES if live else TABLES) if (made := make(views)) is not None
        ),
        scales=None if live else training.scales_figure(views, tones),
        audit=() if live else tuple(audit()),
        tones=tones,
        live=live,
        stopped=stopped,
    )


def _part(views: Sequence[View], tones: Tones, live: bool) -> StudyPart:
    sections = tuple(_section(view, tones, live) for view in views)
    swept = contrasts.points_figure(views, tones) if len(views) > 1 else None
    known = [each for each in sections[0].drawings if each.chart is not None]
    by_kind = {each.key.removeprefix(f"{views[0].key}-"): each for each in known}
    if swept is not None and swept.chart is not None:
        by_kind["points"] = swept
    front = [by_kind[kind] for kind in _first(views) if kind in by_kind][:FRONT]
    return StudyPart(answer_of(views, live=live), tuple(front), sections)


def _first(views: Sequence[View]) -> tuple[str, ...]:
    """Kinds of figures, those that answer best first."""
    differences = "leading" if contrasts.are_many(views[0]) else "differences"
    if len(views) > 1:
        return ("rates", "points", differences, "gap", "loss")
    if views[0].lengths is not None:
        return ("lengths", differences, "gap", "loss")
    if views[0].layers is not None:
        return ("layers", "gap", differences, "loss")
    return (differences, "gap", "loss", "attention")


def _section(view: View, tones: Tones, live: bool) -> StudySection:
    machines = dict.fromkeys(training.machine(run.hardware) for run in view.runs if run.hardware)
    contrasted = LIVE_CONTRASTED if live else CONTRASTED
    measured = LIVE_MEASURED if live else MEASURED
    return StudySection(
        view,
        state(view),
        "; ".join(machines) or "unknown hardware",
        () if live else sentences(view),
        # Sentences have p values, which wait for the end.
        tuple(
            replace(made, says=() if live else made.says)
            for draw in contrasted
            if (made := draw(view, tones))
        ),
        tuple(made for draw in measured if (made := draw(view, tones))),
        () if live else best_sentences(view),
    )
