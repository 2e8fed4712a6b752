"""Sequences longer than trained: how much the loss on the same text rises, arm against arm.

The rise is a run's loss at a length minus its own loss at the training context, so that arms are
compared by how they extrapolate and not by how good they are to begin with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from prism_transformer.core.table import Column, Row, Spread, Table, words
from prism_transformer.study.collected import Collected, finite
from prism_transformer.study.contrasts import Contrast, adjust, contrasts_at, once
from prism_transformer.study.metrics import AT, NO_SCALING, loss_at_length
from prism_transformer.study.statistics import ALPHA, summarise

ORDER = (NO_SCALING, "linear", "ntk", "yarn")
SCALING = "scaling"  # what sentences call it


@dataclass(frozen=True)
class Lengths:
    """The losses of one point at several lengths, and contrasts of their rises at the longest."""

    losses: dict[str, dict[int, pd.DataFrame]]
    """by scaling and length: a row for each seed, a column for each arm; the training context,
    where nothing is scaled, is in each"""
    contrasts: tuple[Contrast, ...] = ()
    """of every scaling, one family"""

    @property
    def context(self) -> int:
        """Tokens of the sequences in training."""
        return min(self.losses[NO_SCALING])

    @property
    def longest(self) -> int:
        return max(length for each in self.losses.values() for length in each)

    @property
    def times(self) -> float:
        """The longest, in training contexts."""
        return self.longest / self.context

    def rises(self, scaling: str, length: int) -> pd.DataFrame:
        """Losses at a length less those of the same run at the training context."""
        return self.losses[scaling][length] - self.losses[NO_SCALING][self.context]

    @property
    def at_longest(self) -> dict[str, pd.DataFrame]:
        """The rises at the longest length, by scaling."""
        there = [scaling for scaling, each in self.losses.items() if self.longest in each]
        return {scaling: self.rises(scaling, self.longest) for scaling in there}

    @property
    def best(self) -> str:
        """The scaling under which the loss rises least, in the mean of all runs."""
        means = {name: float(each.mean().mean()) for name, each in self.at_longest.items()}
        return min(means, key=means.__getitem__)

    @property
    def told(self) -> tuple[Contrast, ...]:
        """Contrasts where nothing is scaled and under the best scaling, each once."""
        shown = (NO_SCALING, self.best)
        return once([each for each in self.contrasts if each.values[SCALING] in shown])

    @property
    def table(self) -> Table:
        """A row for each arm: its loss at the training context, and its rises at the longest."""
        at_context = self.losses[NO_SCALING][self.context]
        columns = (
            *words("arm"), Column("loss", "nats", 4),
            *(Column(name, "nats", 4, sign=True) for name in self.at_longest), Column("seeds"),
        )  # fmt: skip
        rows: tuple[Row, ...] = tuple(
            {"arm": arm, "loss": _spread(at_context[arm]), "seeds": int(at_context[arm].count())}
            | {name: _spread(rises[arm]) for name, rises in self.at_longest.items()}
            for arm in at_context
        )
        title = (
            f"Rise of the loss in sequences of {self.longest:,} tokens, {self.times:g} times the "
            "training context, by scaling"
        )
        return Table("rises", columns, rows, title)


def _spread(values: pd.Series) -> Spread | None:
    known = values.dropna()
    if known.empty:
        return None
    summary = summarise(known)
    return Spread(summary.mean, summary.sd)


def lengths_of(
    collected: Collected, point: int, main: str | None, limit: float = ALPHA
) -> Lengths | None:
    """What a study says of longer sequences; None where it read none."""
    prefix = loss_at_length("")
    names = [name for name in collected.table["metric"].unique() if name.startswith(prefix)]
    found = [name.removeprefix(prefix) for name in names if AT not in name]  # at the end alone
    scalings = sorted(found, key=lambda name: (_place(name), name))
    losses = {scaling: _losses(collected, scaling, point) for scaling in scalings}
    own = losses.get(NO_SCALING, {})
    if not own or sum(map(len, losses.values())) < 2:  # the training context alone
        return None
    context = min(own)
    losses = {scaling: {context: own[context]} | each for scaling, each in losses.items()}
    read, arms = Lengths(losses), [] if main is None else [main]
    contrasts = [
        contrast
        # Each scaling is a question of its own, as each point of a sweep is.
        for place, (scaling, rises) in enumerate(read.at_longest.items())
        for contrast in contrasts_at(collected.facts, arms, place, {SCALING: scaling}, rises, limit)
    ]
    return replace(read, contrasts=tuple(adjust(contrasts)))


def _place(scaling: str) -> int:
    return ORDER.index(scaling) if scaling in ORDER else len(ORDER)


def _losses(collected: Collected, scaling: str, point: int) -> dict[int, pd.DataFrame]:
    rows = collected.metric(loss_at_length(scaling), point)  # whose index may be of floats
    seeds, arms = list(collected.facts.seeds), collected.arms
    return {
        int(float(str(length))): finite(
            each.pivot(index="seed", columns="arm", values="value").reindex(seeds, columns=arms)
        )
        for length, each in rows.groupby("index", sort=True)
    }
