"""Contrasts: weighted differences of arms, seed by seed.

An arm minus the baseline is one; so are a schedule minus its reverse (the order of the heads) and
the mean of some arms minus that of others. All contrasts of a study are one family: their p values
are adjusted for all of them, over all points.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose, isfinite, isnan, nan
from typing import Literal, TypeVar

import numpy as np
import pandas as pd

from prism_transformer.core.errors import InputError
from prism_transformer.study.collected import (
    EFFECT,
    Collected,
    ContrastFacts,
    Facts,
    StudyFacts,
    finite,
)
from prism_transformer.study.metrics import FINAL_LOSS
from prism_transformer.study.multiplicity import Blocks, Pooled, fit_blocks, holm, max_t
from prism_transformer.study.statistics import ALPHA, Array, Paired, paired, seeds_needed

Weights = Mapping[str, float]
DecidedBy = Literal["", "flips", "pooled"]
PRISM = "prism"  # the arm that default contrasts hold against each control


@dataclass(frozen=True)
class Lost:
    """A run that failed, and so is in no difference."""

    point: int
    arm: str
    seed: int
    diverged: bool
    """its loss or gradient was no number any more"""
    reason: str

    @property
    def how(self) -> str:
        return "diverged" if self.diverged else "failed"


@dataclass(frozen=True)
class Contrast:
    """A weighted difference of arms at one point, and what it can bear."""

    point: int
    values: Facts
    """swept values by their recipe key"""
    name: str
    weights: dict[str, float]
    """by arm; they sum to 0"""
    seeds: tuple[int, ...] = ()
    """complete in all its arms; differences are in this order"""
    lost: tuple[Lost, ...] = ()
    """runs of its arms that failed"""
    difference: Paired | None = None
    """of final losses, in nats per token: below 0 is better for arms of positive weight"""
    pooled: Pooled | None = None
    """the same by the error of all arms of the point"""
    adjusted_p: float = nan
    """the sign-flip p after step-down max-T over joint flips"""
    holm_p: float = nan
    """the sign-flip p after Holm"""
    comparisons: int = 0
    """different contrasts of the study: what the p values are adjusted for"""
    effect: float = EFFECT
    """stated by the study"""
    seeds_needed: int | None = None
    """pairs at which the stated effect would be found four times of five"""
    limit: float = ALPHA
    """an adjusted p below this decides: half of what the study may spend now where flips decide
    some of its contrasts and the pooled error others; NaN between two looks, where nothing does"""

    @property
    def by_flips(self) -> bool:
        """Whether so many seeds can give a sign-flip p that decides; else the pooled error does."""
        return self.difference is not None and self.difference.p_floor <= self.limit

    @property
    def decided_by(self) -> DecidedBy:
        """Which test decides; none does with one seed, nor between two planned looks."""
        if self.difference is None or self.difference.n < 2 or isnan(self.limit):
            return ""
        return "flips" if self.by_flips else "pooled" if self.pooled else ""

    @property
    def deciding_p(self) -> float:
        """The adjusted p of the test that decides; NaN where none does."""
        pooled = self.pooled.adjusted_p if self.pooled else nan
        return {"flips": self.adjusted_p, "pooled": pooled, "": nan}[self.decided_by]

    @property
    def decided(self) -> bool:
        """Whether the adjusted p says that there is a difference."""
        return self.deciding_p < self.limit

    @property
    def verdict(self) -> str:
        """Lower or higher where that is decided."""
        if self.difference is None or not self.decided:
            return "undecided"
        return "lower" if self.difference.mean < 0 else "higher"

    @property
    def moved(self) -> bool:
        """Whether the pooled estimate is another than the mean of the pairs: runs are missing."""
        gap, pooled = self.difference, self.pooled
        if gap is None or pooled is None:
            return False
        return not isclose(pooled.mean, gap.mean, rel_tol=1e-6, abs_tol=1e-9)


Kind = TypeVar("Kind", bound=Contrast)


# -- which ones a study asks for -------------------------------------------------------------------


def read_weights(value: Sequence[str] | Weights, arms: Sequence[str]) -> dict[str, float]:
    """Weights by arm from what a study file says: a pair of arms, or a table of weights."""
    if not isinstance(value, Mapping):
        if len(value) != 2 or value[0] == value[1]:
            raise InputError(f"{list(value)}: name two arms, the first less the second")
        value = {value[0]: 1.0, value[1]: -1.0}
    weights = {arm: float(weight) for arm, weight in value.items() if weight != 0}
    unknown = [arm for arm in value if arm not in arms]
    if unknown:
        raise InputError(f"{unknown[0]!r} is none of the arms: {', '.join(arms)}")
    if not all(map(isfinite, weights.values())) or len(weights) < 2:
        raise InputError(f"{dict(value)}: give finite weights to two arms at least")
    total = sum(weights.values())
    if not isclose(total, 0, abs_tol=1e-9 * max(map(abs, weights.values()))):
        raise InputError(f"its weights sum to {total:g}; those of a contrast sum to 0")
    return weights


def contrasts_of(facts: StudyFacts) -> tuple[ContrastFacts, ...]:
    """Those that a study names; of none, Prism against each arm but the baseline.

    Arms against the baseline are always compared.
    """
    if facts.contrasts:
        return facts.contrasts
    arms = [arm.name for arm in facts.arms]
    others = [arm for arm in arms if arm != facts.baseline]
    prism = next((arm for arm in others if arm.lower() == PRISM), None)
    if prism is None:
        return ()
    return tuple(
        ContrastFacts(name=against(prism, arm), weights={prism: 1.0, arm: -1.0})
        for arm in others
        if arm != prism
    )


def against(arm: str, other: str) -> str:
    """The name of a contrast of two arms."""
    return f"{arm} against {other}"


def once(contrasts: Sequence[Kind]) -> tuple[Kind, ...]:
    """Those that no later one repeats: a study may give an arm against the baseline a name."""
    last = {_asked(each): each for each in contrasts}
    return tuple(each for each in contrasts if last[_asked(each)] is each)


def _asked(contrast: Contrast) -> tuple[Hashable, ...]:
    """What two contrasts share that one sentence tells; of another sign or scale they have two."""
    values = ((key, str(value)) for key, value in contrast.values.items())
    return contrast.point, tuple(values), tuple(sorted(contrast.weights.items()))


def described(weights: Weights) -> str:
    """Weights in words."""
    if sorted(weights.values()) == [-1, 1]:
        first, second = sorted(weights, key=lambda arm: -weights[arm])
        return f"{first} minus {second}"
    parts = [f"{'-' if w < 0 else '+'} {abs(w):g} {arm}" for arm, w in weights.items()]
    return " ".join(parts).removeprefix("+ ")


# -- what the losses say ---------------------------------------------------------------------------


def by_seed(weights: Weights, losses: pd.DataFrame) -> pd.Series:
    """The contrast of each seed that is complete in all its arms."""
    known = losses.reindex(columns=list(weights)).dropna()
    return known @ pd.Series(weights, dtype=float)


def measured(
    contrast: Kind, losses: pd.DataFrame, blocks: Blocks | None, lost: Sequence[Lost]
) -> Kind:
    """The same contrast with what the final losses of its point say."""
    contrast = replace(contrast, lost=tuple(each for each in lost if each.arm in contrast.weights))
    found = by_seed(contrast.weights, losses)
    if found.empty:
        return contrast
    difference = paired(found)
    weights = pd.Series(contrast.weights).reindex(losses.columns, fill_value=0.0)
    pooled = blocks.contrast(weights) if blocks else None
    sd = pooled.difference_sd if pooled else difference.sd
    return replace(
        contrast,
        seeds=tuple(int(seed) for seed in found.index),
        difference=difference,
        pooled=pooled,
        seeds_needed=seeds_needed(contrast.effect, sd),
    )


def contrasts_at(
    facts: StudyFacts,
    arms: Iterable[str],
    point: int,
    values: Facts,
    losses: pd.DataFrame,
    limit: float,
) -> list[Contrast]:
    """These arms against the baseline, then what the study names: measured, not adjusted yet."""
    asked = {against(arm, facts.baseline): {arm: 1.0, facts.baseline: -1.0} for arm in arms}
    asked |= {each.name: dict(each.weights) for each in contrasts_of(facts)}
    blocks = fit_blocks(losses)
    return [
        measured(
            Contrast(point, values, name, weights, effect=facts.effect, limit=limit),
            losses,
            blocks,
            (),
        )
        for name, weights in asked.items()
    ]


def lost_runs(collected: Collected, point: int) -> tuple[Lost, ...]:
    """Runs of a point that failed, or that ended with a loss that is no number."""
    ended = collected.metric(FINAL_LOSS, point)
    broken = ended[finite(ended["value"]).isna()]
    odd = set(zip(broken["arm"], broken["seed"], strict=True))
    found = []
    for run in (run for run in collected.facts.runs if run.point == point):
        if run.state == "failed":
            found.append(Lost(point, run.arm, run.seed, run.diverged, run.failure or "failed"))
        elif (run.arm, run.seed) in odd:
            found.append(Lost(point, run.arm, run.seed, True, "its final loss is not finite"))
    return tuple(found)


def adjust(contrasts: Sequence[Contrast]) -> Iterator[Contrast]:
    """The same contrasts with p values that are adjusted for all of them, each counted once."""
    family = {_question(each): each for each in contrasts if each.difference is not None}
    tests = [each.difference for each in family.values() if each.difference]
    p, pooled = [test.p for test in tests], [each.pooled for each in family.values()]
    joint = dict(zip(family, np.fmax(max_t(_together(list(family.values()))), p), strict=True))
    single = dict(zip(family, holm(p), strict=True))
    errors = dict(zip(family, holm([e.p if e else nan for e in pooled]), strict=True))
    # Each of the two tests keeps the error by itself; where both decide, they share it.
    share = 0.5 if {"flips", "pooled"} <= {each.decided_by for each in family.values()} else 1.0
    for each in contrasts:
        question = _question(each)
        if each.difference is None:
            yield replace(each, comparisons=len(family))
            continue
        yield replace(
            each,
            adjusted_p=float(joint[question]),
            holm_p=single[question],
            comparisons=len(family),
            limit=share * each.limit,
            pooled=each.pooled and replace(each.pooled, adjusted_p=errors[question]),
        )


def _together(contrasts: Sequence[Contrast]) -> Array:
    """A row for each seed, a column for each contrast; NaN where a seed has none."""
    seeds = sorted({seed for each in contrasts for seed in each.seeds})
    wide = np.full((len(seeds), len(contrasts)), nan)
    for place, each in enumerate(contrasts):
        if each.difference is not None:
            wide[[seeds.index(seed) for seed in each.seeds], place] = each.difference.differences
    return wide


def _question(contrast: Contrast) -> tuple[int, tuple[tuple[str, float], ...]]:
    """What two contrasts share that ask the same, be it with another sign, scale or name."""
    pairs = sorted((arm, weight) for arm, weight in contrast.weights.items() if weight)
    return contrast.point, tuple((arm, round(weight / pairs[0][1], 9)) for arm, weight in pairs)
