"""Each arm of a study against its baseline: how far apart, and how sure one can be.

Runs of one seed start from the same weights and see the same tokens, so arms are compared seed by
seed, and only over seeds that both have completed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from math import floor, isfinite, log1p, log10, nan
from typing import Any

import numpy as np
import pandas as pd

from prism_transformer.errors import InputError
from prism_transformer.study.benchmarks import Benchmark, Scores
from prism_transformer.study.statistics import (
    ALPHA,
    MOST_PAIRS,
    Equivalence,
    GapCurve,
    Paired,
    Ratio,
    Summary,
    equivalence,
    gap_curve,
    holm,
    paired,
    ratio,
    seeds_needed,
    summarise,
    tokens_to_reach,
)
from prism_transformer.study.table import Collected, Facts, finite

PARITY_MARGIN = 0.01  # arms are equally fast when their throughput differs by less


@dataclass(frozen=True)
class Arm:
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


@dataclass(frozen=True)
class Row:
    """One arm against the baseline at one point."""

    point: int
    values: Facts
    """swept values by their recipe key"""
    arm: Arm
    baseline: Arm
    seeds: tuple[int, ...] = ()
    """complete in both arms; differences are in this order"""
    difference: Paired | None = None
    """final loss, arm minus baseline: below 0 is better"""
    adjusted_p: float = nan
    """the sign-flip p after Holm"""
    comparisons: int = 0
    """how many p values of the study Holm adjusts for"""
    seeds_needed: int | None = None
    """pairs at which a difference of this mean and s.d. would be found four times of five"""
    throughput: Ratio | None = None
    parity: Equivalence | None = None
    """whether the throughput is equal within 1 %; its numbers are logs of ratios"""
    gap: GapCurve | None = None
    """validation loss, arm minus baseline, where every seed of both was validated"""
    reach: tuple[Reach, ...] = ()
    benchmarks: tuple[Benchmark, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """All arms of a study against its baseline, points and arms in the study's order."""

    name: str
    seeds: tuple[int, ...]
    """planned"""
    points: tuple[Facts, ...]
    """swept values; one empty point where nothing is swept"""
    baselines: tuple[Arm, ...]
    """one for each point"""
    rows: tuple[Row, ...]

    def to_json(self) -> Facts:
        """Plain values for scripts; null for what cannot be known."""
        return _plain(asdict(self))


def _plain(value: Any) -> Any:
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
    curves: pd.DataFrame
    """validation losses: a row for each arm, seed and count of tokens"""
    scores: Scores

    @classmethod
    def of(cls, collected: Collected, point: int) -> _Point:
        losses = finite(collected.final_loss(point))
        rates = finite(collected.by_seed("tokens_per_second", point)).where(losses.notna())
        default = collected.points[point].get("train.batch_tokens", collected.batch_tokens)
        batch_tokens = {
            arm["name"]: arm["changes"].get("train.batch_tokens", default)
            for arm in collected.facts["arms"]
        }
        curves = collected.metric("val_loss", point)
        curves = curves[finite(curves["value"]).notna()]
        tokens = curves["step"].astype(int) * curves["arm"].map(batch_tokens).astype(int)
        machines = {
            (run["arm"], run["seed"]): run["hardware"]
            for run in collected.facts["runs"]
            if run["point"] == point
        }
        scores = Scores.of(collected, point)
        return cls(losses, rates, machines, curves.assign(tokens=tokens), scores)

    def arm(self, name: str, schedule: str) -> Arm:
        columns = (self.losses[name].dropna(), self.rates[name].dropna())
        return Arm(name, schedule, *(summarise(each) if len(each) else None for each in columns))

    def rates_of(self, baseline: str, arm: str) -> pd.DataFrame:
        """Tokens per second of seeds that were trained on the same hardware in both arms."""
        both = self.rates[[baseline, arm]].dropna()
        same = [
            self.machines.get((baseline, seed)) == self.machines.get((arm, seed))
            for seed in both.index
        ]
        return both[same]

    def curve(self, name: str, seeds: Sequence[int]) -> pd.DataFrame:
        """A row for each seed, a column for each count of tokens."""
        rows = self.curves[(self.curves["arm"] == name) & self.curves["seed"].isin(seeds)]
        return rows.pivot(index="seed", columns="tokens", values="value").reindex(index=list(seeds))


def compare(collected: Collected, by_item: Collection[str] | None = None) -> Comparison:
    """Hold every arm against the baseline; what is missing leaves its fields empty.

    ``by_item`` names the arms whose benchmarks are tested item by item; all when left out.
    """
    if collected.baseline not in collected.arms:
        raise InputError(f"the study has no arm {collected.baseline!r} to be its baseline")
    baselines: list[Arm] = []
    rows: list[Row] = []
    for index, values in enumerate(collected.points):
        point = _Point.of(collected, index)
        arms = {
            arm["name"]: point.arm(arm["name"], arm["schedule"]) for arm in collected.facts["arms"]
        }
        baselines.append(arms.pop(collected.baseline))
        for arm in arms.values():
            tested = by_item is None or arm.name in by_item
            rows.append(_row(point, Row(index, values, arm, baselines[-1]), tested))
    return Comparison(
        name=collected.facts["name"],
        seeds=tuple(collected.facts["seeds"]),
        points=tuple(collected.points),
        baselines=tuple(baselines),
        rows=_adjusted(rows),
    )


def _adjusted(rows: Sequence[Row]) -> tuple[Row, ...]:
    p_values = [row.difference.p if row.difference else nan for row in rows]
    known = sum(isfinite(p) for p in p_values)
    return tuple(
        replace(row, adjusted_p=p, comparisons=known)
        for row, p in zip(rows, holm(p_values), strict=True)
    )


def _row(point: _Point, row: Row, by_item: bool) -> Row:
    """The same row with all that the point's numbers say."""
    names = [row.baseline.name, row.arm.name]
    row = replace(row, benchmarks=point.scores.compare(names[0], names[1], by_item))
    losses, rates = point.losses[names].dropna(), point.rates_of(*names)
    if losses.empty:
        return row
    first, second = (losses[name] for name in names)
    difference = paired(second - first)
    seeds = tuple(int(seed) for seed in losses.index)
    curves = [point.curve(name, seeds) for name in names]
    row = replace(
        row,
        seeds=seeds,
        difference=difference,
        seeds_needed=seeds_needed(difference.mean, difference.sd),
        gap=_gap(*curves),
        reach=_reach(first, *curves),
    )
    if rates.empty:
        return row
    throughput = ratio(rates[names[1]], rates[names[0]])
    parity = equivalence(np.log(throughput.ratios), log1p(PARITY_MARGIN))
    return replace(row, throughput=throughput, parity=parity)


def _gap(baseline: pd.DataFrame, arm: pd.DataFrame) -> GapCurve | None:
    gaps = (arm - baseline).dropna(axis="columns")
    return None if gaps.empty else gap_curve(gaps.columns.to_numpy(), gaps.to_numpy())


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


# -- words ---------------------------------------------------------------------------------------


def sentence(row: Row) -> str:
    """What a row says, in one sentence that claims no more than its seeds can bear."""
    at = "".join(f"{key}={value}, " for key, value in row.values.items())
    who = f"{at}{row.arm.name} against {row.baseline.name}"
    found = row.difference
    if found is None:
        return f"{who}: no seed is complete in both arms."
    digits = _digits(found)
    if found.n == 1:
        return f"{who}: {found.mean:+.{digits}f} nats, one seed: no interval."
    if not any(found.differences):
        return f"{who}: the same loss in all {found.n} seeds."
    verdict = _clear(row, found) if found.excludes_zero else _within_noise(row, found, digits)
    return (
        f"{who}: {found.mean:+.{digits}f} nats ({100 * found.confidence:g} % interval "
        f"{found.low:+.{digits}f} to {found.high:+.{digits}f}, {found.n} seeds): {verdict}."
    )


def _digits(found: Paired) -> int:
    """Decimals that show the two leading digits of the interval's half width; at least four."""
    width = found.high - found.mean if found.n > 1 else abs(found.mean)
    return min(max(4, 1 - floor(log10(width))), 12) if width > 0 else 4


def _within_noise(row: Row, found: Paired, digits: int) -> str:
    count = f"about {row.seeds_needed:,}" if row.seeds_needed else f"not even {MOST_PAIRS:,}"
    return (
        f"within noise; this study could have seen {found.detectable:.{digits}f} or more; "
        f"{count} seeds would settle an effect of this size"
    )


def _clear(row: Row, found: Paired) -> str:
    lower = found.mean < 0
    agreeing = sum(each < 0 if lower else each > 0 for each in found.differences)
    share = "all" if agreeing == found.n else f"{agreeing} of"
    text = (
        f"{'lower (better)' if lower else 'higher (worse)'} in {share} {found.n} seeds; "
        f"the interval excludes 0; sign-flip p {found.p:.3g}"
    )
    if found.p_floor > ALPHA:
        text += f" ({found.p_floor:.3g} is the least that {found.n} seeds can give)"
    if row.comparisons > 1:
        text += f", {row.adjusted_p:.3g} after Holm over {row.comparisons} comparisons"
    return text


def arm_rows(comparison: Comparison) -> list[Facts]:
    """Rows for a terminal: at each point the baseline, then its rivals; text, empty if unknown."""
    found = []
    for point, baseline in enumerate(comparison.baselines):
        swept = {key: str(value) for key, value in comparison.points[point].items()}
        n = baseline.loss.n if baseline.loss else 0
        found.append(swept | _cells(baseline, None) | {"seeds": _share(n, comparison)})
        for row in comparison.rows:
            if row.point == point:
                seeds = {"seeds": _share(len(row.seeds), comparison)}
                found.append(swept | _cells(row.arm, row) | seeds)
    return found


def _share(n: int, comparison: Comparison) -> str:
    planned = len(comparison.seeds)
    return str(n) if n == planned else f"{n} of {planned}"


def _cells(arm: Arm, row: Row | None) -> Facts:
    """An arm's loss, and what a row says of it; a baseline has none."""
    found, speed = (row.difference, row.throughput) if row else (None, None)
    loss, digits = arm.loss, _digits(found) if found else 4
    spread = f" +- {loss.sd:.4f}" if loss and loss.n > 1 else ""
    interval = f"{found.low:+.{digits}f} to {found.high:+.{digits}f}" if found else ""
    return {
        "arm": arm.name,
        "schedule": arm.schedule,
        "loss": f"{loss.mean:.4f}{spread}" if loss else "",
        "difference": f"{found.mean:+.{digits}f}" if found else "",
        "interval": interval if found and found.n > 1 else "",
        "p": f"{found.p:.3g}" if found and found.n > 1 else "",
        "Holm p": f"{row.adjusted_p:.3g}" if row and found and found.n > 1 else "",
        "speed": f"{speed.mean:.3f}" if speed else "",
    }
