"""The numbers of one point of a study, read from its table once for all arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from prism_transformer.study import metrics
from prism_transformer.study.benchmarks import Scores
from prism_transformer.study.collected import Collected, Facts, finite
from prism_transformer.study.contrasts import Kind, Lost, lost_runs, measured
from prism_transformer.study.multiplicity import Blocks, fit_blocks
from prism_transformer.study.statistics import Summary, summarise


@dataclass(frozen=True)
class ArmSummary:
    """One arm at one point; None where it has no complete run."""

    name: str
    schedule: str
    loss: Summary | None
    """final validation loss over complete runs, nats per token"""
    tokens_per_second: Summary | None


@dataclass(frozen=True)
class Point:
    """One combination of swept values.

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
    def of(cls, collected: Collected, point: int, limit: float) -> Point:
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
