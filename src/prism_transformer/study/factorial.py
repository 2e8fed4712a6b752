"""Factorial designs: what a wide head is worth in each layer, from a fraction of all schedules.

Every layer has one of two head counts, ``wide`` (fewer heads) or ``narrow``. Of the 2^L schedules
a few are run: the rows of a Hadamard matrix and their negatives. In these each layer is wide in
half of the arms, as often with as without every other layer, so that its effect is separate from
those of all other layers and of every pair of them (resolution IV). For 8 layers that is the
2^(8-4) fraction of 16 arms, for 12 Plackett and Burman's design with its fold-over, 24 arms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2, nan, sqrt

import numpy as np
import pandas as pd
from scipy import special

from prism_transformer.core.errors import InputError
from prism_transformer.core.table import Column, Interval, Row, Table, words
from prism_transformer.schedule import HeadSchedule
from prism_transformer.study.collected import Collected, StudyFacts, finite
from prism_transformer.study.multiplicity import block_residuals, holm
from prism_transformer.study.statistics import Array, t_test

UNIFORM = "uniform less mixed"  # arms whose layers are all alike, less the mean of the others

NOTHING = 1e-9  # of the noise: an interval so narrow is that of what is 0 by construction


def hadamard(order: int) -> Array | None:
    """A matrix of +1 and -1 with orthogonal columns, the first row and column all 1.

    By doubling, else by Paley's construction; None where neither gives one.
    """
    if order == 1:
        return np.ones((1, 1))
    half = hadamard(order // 2) if order % 2 == 0 else None
    if half is not None:
        return np.block([[half, half], [half, -half]])
    prime = order - 1
    if order % 4 or any(prime % factor == 0 for factor in range(2, prime)):
        return None
    squares = {number * number % prime for number in range(1, prime)}
    matrix = np.ones((order, order))
    for row in range(prime):
        for column in range(prime):
            matrix[1 + row, 1 + column] = 1 if (column - row) % prime in squares else -1
    return matrix


def design(n_layers: int) -> Array:
    """Arms in rows, layers in columns: 1 where the layer is wide, -1 where it is narrow."""
    order = n_layers
    while (matrix := hadamard(order)) is None:
        order += 1
    half = matrix[:, :n_layers]
    return np.concatenate((half, -half))


def schedules(n_layers: int, wide: int, narrow: int) -> dict[str, HeadSchedule]:
    """The arms of the design for two head counts, named by their wide layers: wide-0-1-4-5."""
    if not 0 < wide < narrow:
        raise InputError(f"wide = {wide}, narrow = {narrow}: wide heads are the fewer ones")
    found = {}
    for row in design(n_layers):
        places = [str(layer) for layer, level in enumerate(row) if level > 0]
        name = "-".join(["wide", *(places or ["none"])])
        found[name] = HeadSchedule(tuple(wide if level > 0 else narrow for level in row))
    return found


def levels(schedule: HeadSchedule, wide: int, narrow: int) -> Array:
    """Where each layer of any schedule stands between narrow (-1) and wide (1), in log heads."""
    middle, half = log2(wide * narrow) / 2, log2(narrow / wide) / 2
    return np.array([(middle - log2(n_heads)) / half for n_heads in schedule.heads])


@dataclass(frozen=True)
class Effect:
    """Of one layer: the loss with a wide head there less that with narrow ones, nats."""

    mean: float
    se: float
    low: float
    high: float
    p: float
    """two-sided t test of no effect"""
    adjusted_p: float
    """after Holm, for there being several layers"""


@dataclass(frozen=True)
class Prediction:
    """A schedule, or a contrast of schedules, held against the sum of its layers' effects."""

    predicted: float
    observed: float
    residual: float
    """observed less predicted: what it is worth beyond its layers"""
    low: float
    high: float
    """95 % interval of the residual"""
    p: float
    """two-sided t test of no residual"""


@dataclass(frozen=True)
class LayerEffects:
    """Main effects of a factorial study at one point, and whether they say it all."""

    layers: tuple[Effect, ...]
    seeds: tuple[int, ...]
    """complete in all arms of the design"""
    sd: float
    """of one run, from runs of one arm over seeds"""
    freedom: int
    """degrees of freedom of that"""
    lack_of_fit: float
    """F of what the arms differ by beyond the sum of their layers; NaN with one seed"""
    p: float
    """its p: small where layers do more, or less, together than one by one"""
    beyond: dict[str, Prediction]
    """by name: schedules that took no part in the fit, then order, number and the like"""

    @property
    def table(self) -> Table:
        """A row for each layer."""
        columns = (
            *words("layer"), Column("effect", "nats", 4, sign=True),
            Column("interval", "nats", 4, sign=True), Column("s.e.", "nats", 4),
            Column("adjusted p"),
        )  # fmt: skip
        rows: tuple[Row, ...] = tuple(
            {"layer": str(layer), "effect": each.mean, "interval": Interval(each.low, each.high),
             "s.e.": each.se, "adjusted p": each.adjusted_p}
            for layer, each in enumerate(self.layers)
        )  # fmt: skip
        return Table("layer-effects", columns, rows, title="What a wide head is worth, by layer")

    @property
    def beyond_table(self) -> Table:
        """A row for each schedule or contrast that was predicted."""
        columns = (
            *words("schedule"), *(Column(key, "nats", 4) for key in ("predicted", "observed")),
            Column("residual", "nats", 4, sign=True), Column("interval", "nats", 4, sign=True),
            Column("p"),
        )  # fmt: skip
        rows: tuple[Row, ...] = tuple(
            {"schedule": name, "predicted": each.predicted, "observed": each.observed,
             "residual": each.residual, "interval": Interval(each.low, each.high), "p": each.p}
            for name, each in self.beyond.items()
        )  # fmt: skip
        title = "Schedules held against the sum of their layers"
        return Table("beyond-layers", columns, rows, title=title)


@dataclass(frozen=True)
class Fit:
    """Least squares of losses on the levels of layers, with seeds as blocks."""

    at: Array
    """levels (arms, layers)"""
    means: Array
    """of each arm's losses, over seeds"""
    halves: Array
    """of each layer's effect"""
    errors: Array
    """their standard errors"""
    sd: float
    freedom: int
    lack_of_fit: float
    p: float
    n_seeds: int

    @property
    def effects(self) -> tuple[Effect, ...]:
        means, errors = (2 * self.halves).tolist(), (2 * self.errors).tolist()
        tests = [t_test(*each, self.freedom) for each in zip(means, errors, strict=True)]
        adjusted = holm([p for _, _, p in tests])
        return tuple(
            Effect(mean, se, *test, after)
            for mean, se, test, after in zip(means, errors, tests, adjusted, strict=True)
        )

    def predict(self, inside: Array, outside: Array, at: Array, observed: Array) -> Prediction:
        """Hold a weighted sum of schedules against that of their layers.

        ``inside`` weighs the arms of the design, ``outside`` schedules at other levels, whose mean
        losses over all seeds are ``observed``. Both what is observed and what is predicted of it
        are weighted sums of the means of arms, and so the error of their difference is known.
        """
        target = np.append(inside @ self.at + outside @ at, inside.sum() + outside.sum())
        design = np.column_stack((self.at, np.ones(len(self.at))))
        spread = target @ np.linalg.pinv(design)
        predicted = float(spread @ self.means)
        seen = float(inside @ self.means + outside @ observed)
        weights = np.append(inside - spread, outside)
        error = self.sd * sqrt(float(weights @ weights) / self.n_seeds)
        residual = seen - predicted
        return Prediction(predicted, seen, residual, *t_test(residual, error, self.freedom))


def fit(at: Array, losses: Array) -> Fit:
    """Fit losses (seeds, arms) by the levels (arms, layers).

    The error is that of runs about their arm and seed, not about the fit: were layers to
    interact, that would be no noise. With one seed there is no other error than that of the fit.
    """
    n_seeds, n_arms = losses.shape
    if at.shape[0] != n_arms or n_arms <= at.shape[1] + 1:
        raise InputError(f"{n_arms} arms cannot tell the effects of {at.shape[1]} layers")
    blocks = np.repeat(np.eye(n_seeds), n_arms, axis=0)
    table = np.hstack((blocks, np.tile(at, (n_seeds, 1))))
    values = losses.reshape(-1)
    inverse = np.linalg.inv(table.T @ table)
    coefficients = inverse @ table.T @ values
    residual = float(((values - table @ coefficients) ** 2).sum())
    residual_freedom = len(values) - table.shape[1]
    pure, freedom = float((block_residuals(losses) ** 2).sum()), (n_seeds - 1) * (n_arms - 1)
    lack, p = nan, nan
    if n_seeds > 1 and pure > 0:
        more = residual_freedom - freedom
        lack = (residual - pure) / more / (pure / freedom)
        p = float(special.fdtrc(more, freedom, lack))
    else:
        pure, freedom = residual, residual_freedom
    sd = sqrt(pure / freedom)
    errors = sd * np.sqrt(np.diag(inverse)[n_seeds:])
    halves = coefficients[n_seeds:]
    return Fit(at, losses.mean(0), halves, errors, sd, freedom, lack, p, n_seeds)


def layer_effects(collected: Collected, point: int = 0) -> LayerEffects | None:
    """Effects of layers in a factorial study; None in others, and while no seed is complete."""
    facts, counts = collected.facts, collected.facts.factorial
    plain = {arm.heads: arm.name for arm in facts.arms if not arm.changes}
    if counts is None:
        return None
    arms = schedules(len(next(iter(plain))), counts.wide, counts.narrow).values()
    losses = finite(collected.final_loss(point))
    names = [plain[each.heads] for each in arms if each.heads in plain]
    whole = losses[names].dropna()
    if len(names) < len(arms) or whole.empty:
        return None
    found = fit(
        np.array([levels(each, counts.wide, counts.narrow) for each in arms]), whole.to_numpy()
    )
    outside = {
        name: levels(HeadSchedule(heads), counts.wide, counts.narrow)
        for heads, name in plain.items()
        if name not in names and not losses.loc[whole.index, name].isna().any()
    }
    seeds = tuple(int(seed) for seed in whole.index)
    beyond = dict(_beyond(found, losses.loc[whole.index].mean(), names, outside, facts))
    return LayerEffects(
        found.effects, seeds, found.sd, found.freedom, found.lack_of_fit, found.p, beyond
    )


def _beyond(
    found: Fit, means: pd.Series, names: list[str], outside: dict[str, Array], facts: StudyFacts
) -> Iterator[tuple[str, Prediction]]:
    """Schedules outside of the design, the study's contrasts, and uniform arms less mixed ones.

    An arm less its opposite is the sum of layers by construction: there are as many such pairs as
    layers, so that nothing would be left of it, and it is left out.
    """
    alike = np.abs(found.at.mean(1)) == 1  # all layers wide, or all narrow
    number = dict(zip(names, alike / alike.sum() - ~alike / (~alike).sum(), strict=True))
    asked = {each.name: each.weights for each in facts.contrasts} | {UNIFORM: number}
    for name, weights in ({arm: {arm: 1.0} for arm in outside} | asked).items():
        if weights.keys() <= {*names, *outside}:
            yield (
                name,
                found.predict(
                    np.array([weights.get(arm, 0.0) for arm in names]),
                    np.array([weights.get(arm, 0.0) for arm in outside]),
                    np.array(list(outside.values())).reshape(-1, found.at.shape[1]),
                    means[list(outside)].to_numpy(),
                ),
            )
