"""Two arms on the same benchmarks: over seeds, and item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from prism_transformer.study.statistics import (
    ItemTest,
    Paired,
    Summary,
    item_test,
    paired,
    summarise,
)
from prism_transformer.study.table import Collected, finite

Key = tuple[str, str]  # task, metric


@dataclass(frozen=True)
class Benchmark:
    """One score of a benchmark, arm minus baseline."""

    task: str
    metric: str
    baseline: Summary
    arm: Summary
    difference: Paired
    """over seeds that have both scores"""
    items: ItemTest | None
    """over items that both arms have in all those seeds"""


@dataclass(frozen=True)
class Scores:
    """The benchmarks of one point, read from the tables once for all arms."""

    totals: Mapping[Key, pd.DataFrame]
    """a row for each seed, a column for each arm"""
    items: Mapping[Key, pd.DataFrame]

    @classmethod
    def of(cls, collected: Collected, point: int) -> Scores:
        """What was scored at one point."""
        totals = {}
        for name in sorted(collected.table["metric"].unique()):
            if name.startswith("eval.") and not name.endswith((".stderr", ".items")):
                task, _, metric = name.removeprefix("eval.").rpartition(".")
                totals[task, metric] = finite(collected.by_seed(name, point))
        items = collected.items
        items = items[(items["point"] == point) & finite(items["value"]).notna()]
        return cls(totals, dict(iter(items.groupby(["task", "metric"], observed=True))))

    def compare(self, baseline: str, arm: str, by_item: bool = True) -> tuple[Benchmark, ...]:
        """Every benchmark that some seed has in both arms; with ``by_item`` tested so, too."""
        found = []
        for (task, metric), wide in self.totals.items():
            pairs = wide[[baseline, arm]].dropna()
            if not pairs.empty:
                first, second = pairs[baseline], pairs[arm]
                arms = (baseline, arm)
                items = self._item_test(task, metric, arms, pairs.index) if by_item else None
                totals = summarise(first), summarise(second), paired(second - first)
                found.append(Benchmark(task, metric, *totals, items))
        return tuple(found)

    def _item_test(
        self, task: str, metric: str, arms: tuple[str, str], seeds: Sequence[int]
    ) -> ItemTest | None:
        rows = self.items.get((task, metric))
        if rows is None:
            return None
        first, second = (
            rows[(rows["arm"] == arm) & rows["seed"].isin(seeds)].pivot(
                index="seed", columns=["task", "item"], values="value"
            )
            for arm in arms
        )
        # Seeds that have items in both arms, then items that all of these seeds have.
        shared = first.index.intersection(second.index)
        both = pd.concat([first.loc[shared], second.loc[shared]], keys=(0, 1), join="inner")
        both = both.dropna(axis="columns").sort_index(axis="columns")
        return None if both.empty else item_test(both.loc[0].to_numpy(), both.loc[1].to_numpy())
