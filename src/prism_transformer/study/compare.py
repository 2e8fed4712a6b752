"""Arms of a study against its baseline and against each other: how far apart, and how sure.

In comes a collected study, out comes a ``Comparison``. Runs of one seed start from the same weights
and see the same tokens, so arms are compared seed by seed, over the seeds that all arms of a
contrast have completed. Runs that failed are listed beside the differences: to drop what diverged
without a word would be to choose seeds by their outcome.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from math import floor, isfinite, log1p, log10, nan
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel

from prism_transformer.core.errors import InputError
from prism_transformer.core.table import Column, Row, Spread, Table, Value, words
from prism_transformer.study import metrics
from prism_transformer.study.benchmarks import ScoreDifference, Scores
from prism_transformer.study.best_rates import Envelope, envelopes
from prism_transformer.study.collected import (
    LEARNING_RATE,
    Collected,
    Facts,
    SearchFacts,
    StudyFacts,
    finite,
)
from prism_transformer.study.contrasts import (
    Contrast,
    Kind,
    Lost,
    adjust,
    against,
    contrast_table,
    contrasts_of,
    difference_cells,
    lost_runs,
    measured,
)
from prism_transformer.study.factorial import LayerEffects, layer_effects
from prism_transformer.study.looks import Look, plan_looks
from prism_transformer.study.multiplicity import Blocks, fit_blocks
from prism_transformer.study.statistics import (
    ALPHA,
    Equivalence,
    GapCurve,
    Paired,
    Ratio,
    Summary,
    equivalence,
    gap_curve,
    ratio,
    summarise,
    tokens_to_reach,
)

RATES_BESIDE = "Rates of runs that were trained beside others or other work compare nothing."
PARITY_MARGIN = 0.01  # arms are equally fast when their throughput differs by less


@dataclass(frozen=True)
class ArmSummary:
    """One arm at one point; None where it has no complete run."""

    name: str
    schedule: str
    loss: Summary | None
    """final validation loss over complete runs, nats per token"""
    tokens_per_second: Summary | None


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
    settled: int = 0
    """seeds of which every run is complete or has failed"""
    layers: tuple[LayerEffects | None, ...] = ()
    """of a factorial study, at each point"""
    envelopes: tuple[Envelope, ...] = ()
    """loss against learning rate, where arms were swept over it or tuned"""
    one_rate: float | None = None
    """the learning rate that all arms shared and that was tuned for none"""
    search: SearchFacts | None = None
    """of a study that chose among many arms"""
    doubts: tuple[str, ...] = ()
    """what a reader should know of where its numbers come from"""

    @property
    def every(self) -> tuple[Contrast, ...]:
        """The family that p values are adjusted for: arms against the baseline, then the others."""
        return (*self.rows, *self.contrasts)

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
            Column("p"),
            Column("adjusted p"),
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
        """Every contrast, arms against the baseline first, with every seed."""
        return contrast_table(self.every, self.name, self._places)

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
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


# -- from a table to rows ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Point:
    """The numbers of one point, read from the table once for all arms.

    A row for each seed, a column for each arm; NaN where a run is not complete.
    """

    losses: pd.DataFrame
    rates: pd.DataFrame
    machines: dict[tuple[str, int], Facts | None]
    """hardware by arm and seed"""
    beside_others: frozenset[tuple[str, int]]
    """runs by arm and seed that did not have their machine to themselves"""
    curves: pd.DataFrame
    """validation losses: a row for each arm, seed and count of tokens"""
    scores: Scores
    blocks: Blocks | None
    lost: tuple[Lost, ...]
    effect: float
    limit: float

    @classmethod
    def of(cls, collected: Collected, point: int, limit: float) -> _Point:
        losses = finite(collected.final_loss(point))
        rates = finite(collected.by_seed(metrics.TOKENS_PER_SECOND, point)).where(losses.notna())
        usual = collected.facts.recipe.train.batch_tokens
        default = collected.points[point].get("train.batch_tokens", usual)
        batch_tokens = {
            arm.name: arm.changes.get("train.batch_tokens", default) for arm in collected.facts.arms
        }
        curves = collected.metric(metrics.VAL_LOSS, point)
        curves = curves[finite(curves["value"]).notna()]
        tokens = curves["step"].astype(int) * curves["arm"].map(batch_tokens).astype(int)
        here = {(run.arm, run.seed): run for run in collected.facts.runs if run.point == point}
        machines = {which: run.hardware for which, run in here.items()}
        beside = frozenset(which for which, run in here.items() if run.beside_others)
        return cls(
            losses, rates, machines, beside, curves.assign(tokens=tokens),
            Scores.of(collected, point), fit_blocks(losses), lost_runs(collected, point),
            collected.facts.effect, limit,
        )  # fmt: skip

    def measured(self, contrast: Kind) -> Kind:
        """The same contrast with what it is held against and what the losses say."""
        asked = replace(contrast, effect=self.effect, limit=self.limit)
        return measured(asked, self.losses, self.blocks, self.lost)

    def arm(self, name: str, schedule: str) -> ArmSummary:
        columns = (self.losses[name].dropna(), self.rates[name].dropna())
        return ArmSummary(
            name, schedule, *(summarise(each) if len(each) else None for each in columns)
        )

    def rates_of(self, baseline: str, arm: str) -> tuple[pd.DataFrame, int]:
        """Tokens per second of seeds that were trained alone, on the same hardware in both arms.

        And how many seeds are left out because they were not trained alone.
        """
        both = self.rates[[baseline, arm]].dropna()
        alone = [not {(baseline, n), (arm, n)} & self.beside_others for n in both.index]
        same = [
            self.machines.get((baseline, seed)) == self.machines.get((arm, seed))
            for seed in both.index
        ]
        kept = [one and other for one, other in zip(alone, same, strict=True)]
        return both[kept], alone.count(False)

    def curve(self, name: str, seeds: Sequence[int]) -> pd.DataFrame:
        """A row for each seed, a column for each count of tokens."""
        rows = self.curves[(self.curves["arm"] == name) & self.curves["seed"].isin(seeds)]
        return rows.pivot(index="seed", columns="tokens", values="value").reindex(index=list(seeds))


def compare(collected: Collected, by_item: Collection[str] | None = None) -> Comparison:
    """Hold arms against the baseline and each other; what is missing leaves its fields empty.

    ``by_item`` names the arms whose benchmarks are tested item by item; all when left out.
    """
    if collected.baseline not in collected.arms:
        raise InputError(f"the study has no arm {collected.baseline!r} to be its baseline")
    facts = collected.facts
    looks = plan_looks(facts.looks.seeds, facts.looks.spending) if facts.looks else ()
    settled = collected.settled
    limit = next((look.limit for look in looks if look.seeds == settled), nan) if looks else ALPHA
    baselines: list[ArmSummary] = []
    rows: list[ArmContrast] = []
    contrasts: list[Contrast] = []
    lost: list[Lost] = []
    for index, values in enumerate(collected.points):
        point = _Point.of(collected, index, limit)
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
    adjusted = list(adjust([*rows, *contrasts]))
    return Comparison(
        facts.name, facts.seeds, facts.points, tuple(baselines),
        rows=tuple(each for each in adjusted if isinstance(each, ArmContrast)),
        contrasts=tuple(adjusted[len(rows) :]),
        lost=tuple(lost), looks=looks, looked=facts.looked, settled=settled,
        layers=tuple(layer_effects(collected, index) for index in range(len(facts.points))),
        envelopes=envelopes(collected, limit), one_rate=_one_rate(facts),
        search=facts.search,
        doubts=collected.doubts,
    )  # fmt: skip


def _one_rate(facts: StudyFacts) -> float | None:
    swept = any(LEARNING_RATE in point for point in facts.points)
    own = any(LEARNING_RATE in arm.changes for arm in facts.arms)
    return None if swept or own or facts.tuning else facts.recipe.optim.lr


def _unmeasured(
    point: int, values: Facts, baseline: ArmSummary, arm: ArmSummary | None = None
) -> ArmContrast:
    """An arm against the baseline before anything is known; without an arm, the baseline alone."""
    weights = {arm.name: 1.0, baseline.name: -1.0} if arm else {}
    arm = arm or baseline
    name = against(arm.name, baseline.name)
    return ArmContrast(point, values, name, weights, arm=arm, baseline=baseline)


def _row(point: _Point, row: ArmContrast, by_item: bool) -> ArmContrast:
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


def digits(gap: Paired) -> int:
    """Decimals that show the two leading digits of the interval's half width; at least four."""
    width = gap.high - gap.mean if gap.n > 1 else abs(gap.mean)
    return min(max(4, 1 - floor(log10(width))), 12) if width > 0 else 4


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
