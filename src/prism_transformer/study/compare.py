"""Arms of a study against its baseline and against each other: how far apart, and how sure.

In comes a collected study, out comes a ``Comparison``. Runs of one seed start from the same weights
and see the same tokens, so arms are compared seed by seed, over the seeds that all arms of a
contrast have completed. Runs that failed are listed beside the differences: to drop what diverged
without a word would be to choose seeds by their outcome.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, log1p, nan
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel

from prism_transformer.core.errors import InputError
from prism_transformer.core.table import Column, Row, Spread, Table, Value, words
from prism_transformer.study.benchmarks import ScoreDifference
from prism_transformer.study.best_rates import FEWEST_RATES, Envelope, envelopes
from prism_transformer.study.collected import (
    LEARNING_RATE,
    Collected,
    Facts,
    SearchFacts,
    StudyFacts,
)
from prism_transformer.study.contrast_tables import (
    contrast_table,
    difference_cells,
    digits,
    seed_lines,
)
from prism_transformer.study.contrasts import (
    PRISM,
    Contrast,
    Lost,
    adjust,
    against,
    contrasts_of,
    once,
)
from prism_transformer.study.factorial import LayerEffects, layer_effects
from prism_transformer.study.lengths import Lengths, lengths_of
from prism_transformer.study.looks import Look, plan_looks
from prism_transformer.study.peeking import Peeks, peeks
from prism_transformer.study.points import ArmSummary, Point
from prism_transformer.study.statistics import (
    ALPHA,
    Equivalence,
    GapCurve,
    Ratio,
    equivalence,
    gap_curve,
    ratio,
    tokens_to_reach,
)

RATES_BESIDE = "Rates of runs that were trained beside others or other work compare nothing."
LINES = ("measure", "point", "contrast", "seed")  # of every contrast, whatever else there is
PARITY_MARGIN = 0.01  # arms are equally fast when their throughput differs by less


@dataclass(frozen=True)
class Reach:
    """What an arm needs, in one seed, for the loss that its baseline ends with.

    Learning rates are still high in the middle of a run: a run planned that short ends lower.
    """

    seed: int
    baseline_tokens: float
    """at which the baseline itself is first there"""
    tokens: float | None
    """None when the arm never is"""
    saved: float | None
    """share of the baseline's tokens"""


@dataclass(frozen=True, kw_only=True)
class ArmContrast(Contrast):
    """One arm against the baseline: a contrast, and all else that two arms can be compared by."""

    arm: ArmSummary
    baseline: ArmSummary
    throughput: Ratio | None = None
    parity: Equivalence | None = None
    """whether the throughput is equal within 1 %; its numbers are logs of ratios"""
    rates_beside_others: int = 0
    """seeds left out of both: a run of theirs was trained beside others or beside other work"""
    gap: GapCurve | None = None
    """validation loss, arm minus baseline, where every seed of both was validated"""
    reach: tuple[Reach, ...] = ()
    benchmarks: tuple[ScoreDifference, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """All arms of a study against its baseline, points and arms in the study's order."""

    name: str
    seeds: tuple[int, ...]
    """planned"""
    points: tuple[Facts, ...]
    """swept values; one empty point where nothing is swept"""
    baselines: tuple[ArmSummary, ...]
    """one for each point"""
    rows: tuple[ArmContrast, ...]
    contrasts: tuple[Contrast, ...] = ()
    """that the study names, or Prism against each control"""
    lost: tuple[Lost, ...] = ()
    """runs that failed"""
    looks: tuple[Look, ...] = ()
    """that the study planned"""
    looked: tuple[int, ...] = ()
    """numbers of seeds with which it was collected as a whole"""
    peeks: Peeks | None = None
    """what was seen of it that its looks do not pay for"""
    settled: int = 0
    """seeds of which every run is complete or has failed"""
    layers: tuple[LayerEffects | None, ...] = ()
    """of a factorial study, at each point"""
    envelopes: tuple[Envelope, ...] = ()
    """loss against learning rate, where arms were swept over it or tuned"""
    lengths: tuple[Lengths | None, ...] = field(default=(), compare=False)
    """longer sequences, at each point; None where none were read"""
    one_rate: float | None = None
    """the learning rate that all arms shared and that was tuned for none"""
    untuned: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """the learning rates of each arm for which none was found to be the best"""
    search: SearchFacts | None = None
    """of a study that chose among many arms"""
    doubts: tuple[str, ...] = ()
    """what a reader should know of where its numbers come from"""

    @property
    def every(self) -> tuple[Contrast, ...]:
        """The family that p values are adjusted for: arms against the baseline, then the others."""
        return (*self.rows, *self.contrasts)

    @property
    def told(self) -> tuple[Contrast, ...]:
        """The same without arms against the baseline that the study asks for under a name."""
        return once(self.every)

    @property
    def table(self) -> Table:
        """At each point the baseline, then its rivals: what people read first."""
        swept = dict.fromkeys(key for point in self.points for key in point)
        places = self._places
        columns = (
            *words(*swept, "arm", "schedule"),
            Column("loss", places=4),
            Column("difference", places=places, sign=True),
            Column("interval", places=places, sign=True),
            Column("adjusted p"),
            *words("by"),
            Column("speed", places=3),
            *words("seeds"),
        )
        rows: list[Row] = []
        for index, (point, baseline) in enumerate(zip(self.points, self.baselines, strict=True)):
            here = [_unmeasured(index, point, baseline)]
            here += [each for each in self.rows if each.point == index]
            values = {key: str(value) for key, value in point.items()}
            rows += [values | _cells(each, len(self.seeds)) for each in here]
            empty = dict.fromkeys(column.key for column in columns)
            rows += [
                empty | values | {"arm": f"{run.arm}, seed {run.seed}", "seeds": run.how}
                for run in self.lost
                if run.point == index
            ]
        note = RATES_BESIDE if any(each.rates_beside_others for each in self.rows) else ""
        return Table("comparison", columns, tuple(rows), f"{self.name}: arms compared", note)

    @property
    def contrast_table(self) -> Table:
        """Every contrast once, arms against the baseline first, with every seed."""
        return contrast_table(self.told, self.name, self._places)

    @property
    def by_seed(self) -> pd.DataFrame:
        """Every contrast once, a line for each seed: best against best and longer texts, too."""
        lines = list(self._lines())
        made = pd.DataFrame(lines, columns=None if lines else [*LINES])
        return made.astype({"point": "Int64", "seed": "Int64"})

    def _lines(self) -> Iterator[Facts]:
        for index, point in enumerate(self.points):
            here = [each for each in self.every if each.point == index]
            yield from seed_lines(here, "final loss", index, point)
        for envelope in self.envelopes:
            yield from seed_lines(envelope.contrasts, "final loss", None, {})
        for index, read in enumerate(self.lengths):
            if read:
                what = f"rise of the loss in {read.longest} tokens"
                yield from seed_lines(read.contrasts, what, index, self.points[index])

    @property
    def _places(self) -> int:
        """Decimals that show the least certain digit of every difference."""
        return max((digits(each.difference) for each in self.every if each.difference), default=4)

    def to_json(self) -> Facts:
        """Plain values for scripts; null for what cannot be known."""
        return _plain(asdict(self))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):  # facts of the study, as its collected folder has them
        value = value.model_dump()
    if isinstance(value, pd.DataFrame):
        value = value.to_dict("list")
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


# -- from a table to rows ------------------------------------------------------------------------


def compare(collected: Collected, by_item: Collection[str] | None = None) -> Comparison:
    """Hold arms against the baseline and each other; what is missing leaves its fields empty.

    ``by_item`` names the arms whose benchmarks are tested item by item; all when left out.
    """
    if collected.baseline not in collected.arms:
        raise InputError(f"the study has no arm {collected.baseline!r} to be its baseline")
    facts = collected.facts
    limit = limit_of(collected)
    baselines: list[ArmSummary] = []
    rows: list[ArmContrast] = []
    contrasts: list[Contrast] = []
    lost: list[Lost] = []
    for index, values in enumerate(collected.points):
        point = Point.of(collected, index, limit)
        lost += point.lost
        arms = {arm.name: point.arm(arm.name, arm.schedule) for arm in facts.arms}
        baselines.append(arms.pop(collected.baseline))
        for arm in arms.values():
            tested = by_item is None or arm.name in by_item
            row = _unmeasured(index, values, baselines[-1], arm)
            rows.append(_row(point, point.measured(row), tested))
        contrasts += [
            point.measured(Contrast(index, values, each.name, dict(each.weights)))
            for each in contrasts_of(facts)
        ]
    adjusted, rates = list(adjust([*rows, *contrasts])), untuned(facts)
    main, points = _main(collected), range(len(facts.points))
    return Comparison(
        facts.name, facts.seeds, facts.points, tuple(baselines),
        rows=tuple(each for each in adjusted if isinstance(each, ArmContrast)),
        contrasts=tuple(adjusted[len(rows) :]),
        lost=tuple(lost), looks=_planned(facts), looked=facts.looked, peeks=peeks(facts),
        settled=collected.settled,
        layers=tuple(layer_effects(collected, index) for index in points),
        envelopes=envelopes(collected, limit),
        lengths=tuple(lengths_of(collected, index, main, limit) for index in points),
        one_rate=shared_rate(rates), untuned=rates,
        search=facts.search,
        doubts=collected.doubts,
    )  # fmt: skip


def limit_of(collected: Collected) -> float:
    """Below what an adjusted p decides with the seeds that are there; NaN between two looks."""
    looks = {look.seeds: look.limit for look in _planned(collected.facts)}
    return looks.get(collected.settled, nan) if looks else ALPHA


def _planned(facts: StudyFacts) -> tuple[Look, ...]:
    return plan_looks(facts.looks.seeds, facts.looks.spending) if facts.looks else ()


def _main(collected: Collected) -> str | None:
    """Whose rise in longer sequences is held against the baseline's."""
    others = [arm for arm in collected.arms if arm != collected.baseline]
    return next((arm for arm in others if arm.lower() == PRISM), next(iter(others), None))


def untuned(facts: StudyFacts) -> dict[str, tuple[float, ...]]:
    """The learning rates of each arm that nothing tuned; too few in a sweep show no best one."""
    swept = {float(point[LEARNING_RATE]) for point in facts.points if LEARNING_RATE in point}
    if len(swept) >= FEWEST_RATES:
        return {}
    tuned = facts.tuning.best if facts.tuning else {}
    usual = facts.recipe.optim.lr
    return {
        arm.name: tuple(sorted(swept)) or (float(arm.changes.get(LEARNING_RATE, usual)),)
        for arm in facts.arms
        if arm.name not in tuned
    }


def shared_rate(rates: Mapping[str, tuple[float, ...]]) -> float | None:
    """The one learning rate of all these arms; None where they have several."""
    every = {rate for each in rates.values() for rate in each}
    return next(iter(every)) if len(every) == 1 else None


def _unmeasured(
    point: int, values: Facts, baseline: ArmSummary, arm: ArmSummary | None = None
) -> ArmContrast:
    """An arm against the baseline before anything is known; without an arm, the baseline alone."""
    weights = {arm.name: 1.0, baseline.name: -1.0} if arm else {}
    arm = arm or baseline
    name = against(arm.name, baseline.name)
    return ArmContrast(point, values, name, weights, arm=arm, baseline=baseline)


def _row(point: Point, row: ArmContrast, by_item: bool) -> ArmContrast:
    """The same row with all else that the point's numbers say."""
    names = [row.baseline.name, row.arm.name]
    row = replace(row, benchmarks=point.scores.compare(names[0], names[1], by_item))
    if row.difference is None:
        return row
    theirs, ours = (point.curve(name, row.seeds) for name in names)
    gaps = (ours - theirs).dropna(axis="columns")
    row = replace(
        row,
        gap=None if gaps.empty else gap_curve(gaps.columns.to_numpy(), gaps.to_numpy()),
        reach=_reach(point.losses.loc[list(row.seeds), names[0]], theirs, ours),
    )
    rates, beside = point.rates_of(*names)
    row = replace(row, rates_beside_others=beside)
    if rates.empty:
        return row
    throughput = ratio(rates[names[1]], rates[names[0]])
    parity = equivalence(np.log(throughput.ratios), log1p(PARITY_MARGIN))
    return replace(row, throughput=throughput, parity=parity)


def _reach(targets: pd.Series, baseline: pd.DataFrame, arm: pd.DataFrame) -> tuple[Reach, ...]:
    found = []
    for seed, target in targets.items():
        # The baseline by the same rule: noise may have brought it there before its end.
        theirs, ours = _first(baseline.loc[seed], target), _first(arm.loc[seed], target)
        if theirs:
            saved = None if ours is None else 1 - ours / theirs
            found.append(Reach(int(seed), theirs, ours, saved))
    return tuple(found)


def _first(curve: pd.Series, target: float) -> float | None:
    known = curve.dropna()
    return None if known.empty else tokens_to_reach(known.index, known, target)


# -- the table -----------------------------------------------------------------------------------


def _cells(row: ArmContrast, planned: int) -> dict[str, Value]:
    """A line of the table; where the arm is the baseline itself, there is nothing to compare."""
    arm, speed = row.arm, row.throughput
    n = arm.loss.n if arm is row.baseline and arm.loss else len(row.seeds)
    return {
        "arm": arm.name,
        "schedule": arm.schedule,
        "loss": Spread(arm.loss.mean, arm.loss.sd) if arm.loss else None,
        **difference_cells(row),
        "speed": speed.mean if speed else None,
        "seeds": str(n) if n == planned else f"{n} of {planned}",
    }
