"""Two arms on the same benchmarks: over seeds, item by item, and by clusters of items.

Items of one template or sub-task are correlated: a model that has learnt one has learnt the others,
so a thousand such items are not a thousand independent ones. Where items come in clusters, the
cluster is the unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan, sqrt

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special

from prism_transformer.core.errors import InputError
from prism_transformer.eval.retrieval import CHOICES, task_names
from prism_transformer.eval.tasks import BY_NAME
from prism_transformer.study import metrics
from prism_transformer.study.collected import Collected, finite
from prism_transformer.study.multiplicity import holm
from prism_transformer.study.statistics import (
    Array,
    Paired,
    Summary,
    pair,
    paired,
    sign_flip,
    summarise,
    t_interval,
    t_test,
)

Key = tuple[str, str]  # task, metric
RETRIEVED = frozenset(name for task in CHOICES for name in task_names(task))


@dataclass(frozen=True)
class Clustered:
    """A mean difference whose items, or items and seeds, come in groups."""

    n: int
    """clusters; where seeds are crossed with them, the fewer of both"""
    low: float
    high: float
    p: float
    """two-sided, of a t test with n - 1 degrees of freedom; NaN where one group is all there is"""


@dataclass(frozen=True)
class ItemTest:
    """Two arms on the same items of a benchmark.

    Items are the unit here, seeds are not: it says whether these trained models differ on items
    like these, not whether models of other seeds would. ``crossed`` says both.
    """

    n_items: int
    n_seeds: int
    mean: float
    """second arm minus first, in the unit of the items"""
    low: float
    high: float
    p: float
    """sign-flip over items; of one seed and items 0 or 1 this is McNemar's exact test"""
    clustered: Clustered | None = None
    """by clusters of items, where they come in clusters: other templates, these very models"""
    crossed: Clustered | None = None
    """other clusters (items where there are none) and other seeds; None for one seed"""
    adjusted_p: float = nan
    """of ``crossed``, or else of the clusters or items, after Holm over the tasks of an arm"""

    @property
    def strictest_p(self) -> float:
        """What is adjusted over tasks: the p that generalises furthest."""
        found = self.crossed or self.clustered
        return self.p if found is None else found.p


@dataclass(frozen=True)
class ScoreDifference:
    """One score of a benchmark, arm minus baseline."""

    task: str
    metric: str
    baseline: Summary
    arm: Summary
    difference: Paired
    """over seeds that have both scores"""
    items: ItemTest | None
    """over items that both arms have in all those seeds"""


# -- items -----------------------------------------------------------------------------------------


def mcnemar(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Exact two-sided p that items which one run alone gets right fall to either run alike."""
    one, other = pair(first, second, 1)
    if not _right_or_wrong(one, other):
        raise InputError("each item is 0 or 1")
    split = int(np.sum(one > other)), int(np.sum(other > one))
    return min(2 * float(special.bdtr(min(split), sum(split), 0.5)), 1.0)


def _right_or_wrong(one: Array, other: Array) -> bool:
    return bool(np.all(np.isin((one, other), (0, 1))))


def item_test(
    first: npt.ArrayLike, second: npt.ArrayLike, clusters: Sequence[str] | None = None
) -> ItemTest:
    """Compare two arms item by item; each has a row for a seed and a column for an item.

    Differences are averaged over seeds; the t interval and the test are then over items.
    ``clusters`` names the cluster of each item.
    """
    one, other = pair(first, second, 2)
    rows = other - one
    differences = rows.mean(axis=0)
    n_seeds, n_items = one.shape
    exact = n_seeds == 1 and _right_or_wrong(one, other)
    p = mcnemar(one[0], other[0]) if exact else sign_flip(differences)
    mean, low, high = t_interval(differences).tolist()
    names = np.arange(n_items) if clusters is None else np.asarray(clusters)
    if len(names) != n_items:
        raise InputError(f"{n_items} items and {len(names)} clusters do not pair")
    groups = np.unique(names, return_inverse=True)[1]
    by_cluster = _clustered(rows, groups) if groups.max() + 1 < n_items else None
    crossed = _crossed(rows, groups) if n_seeds > 1 else None
    return ItemTest(n_items, n_seeds, mean, low, high, p, by_cluster, crossed)


def _grouped(rows: Array, groups: npt.NDArray[np.intp]) -> Array:
    """What each seed and cluster adds to the deviation of the mean: seeds by clusters."""
    away = (rows - rows.mean()) / rows.size
    n = int(groups.max()) + 1
    return np.array([np.bincount(groups, weights=row, minlength=n) for row in away])


def _of_groups(mean: float, variance: float, n: int) -> Clustered:
    """A t interval and test of a mean with ``n`` groups behind its variance."""
    if n < 2 or not variance > 0:
        return Clustered(n, nan, nan, nan)
    return Clustered(n, *t_test(mean, sqrt(variance), n - 1))


def _corrected(sums: Array) -> float:
    """Variance of a mean from the sums of its groups, for few of them; NaN for one."""
    n = len(sums)
    return float(np.sum(sums**2)) * n / (n - 1) if n > 1 else nan


def _clustered(rows: Array, groups: npt.NDArray[np.intp]) -> Clustered:
    """Items in clusters, seeds as they are: the cluster-robust variance."""
    sums = _grouped(rows, groups).sum(axis=0)
    return _of_groups(float(rows.mean()), _corrected(sums), len(sums))


def _crossed(rows: Array, groups: npt.NDArray[np.intp]) -> Clustered:
    """Clusters crossed with seeds (Cameron, Gelbach and Miller).

    Two differences are related when they share a seed or a cluster: the variance is that of seeds
    and that of clusters, less that of their cells, which both count. The difference can come out
    below either part, by chance: then the larger part is taken.
    """
    cells = _grouped(rows, groups)
    seeds, clusters = _corrected(cells.sum(axis=1)), _corrected(cells.sum(axis=0))
    both = _corrected(cells.ravel())
    variance = np.fmax(seeds + clusters - both, np.fmax(seeds, clusters))
    return _of_groups(float(rows.mean()), float(variance), min(cells.shape))


# -- benchmarks ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """The benchmarks of one point, read from the tables once for all arms."""

    totals: Mapping[Key, pd.DataFrame]
    """a row for each seed, a column for each arm"""
    items: Mapping[Key, pd.DataFrame]

    @classmethod
    def of(cls, collected: Collected, point: int) -> Scores:
        totals = {
            key: finite(collected.by_seed(name, point))
            for name in sorted(collected.table["metric"].unique())
            if (key := metrics.scored(name))
        }
        items = collected.items
        items = items[(items["point"] == point) & finite(items["value"]).notna()]
        return cls(totals, dict(iter(items.groupby(["task", "metric"], observed=True))))

    def compare(self, baseline: str, arm: str, by_item: bool = True) -> tuple[ScoreDifference, ...]:
        """Every benchmark that some seed has in both arms; with ``by_item`` tested so, too."""
        found = []
        for (task, metric), wide in self.totals.items():
            pairs = wide[[baseline, arm]].dropna()
            if not pairs.empty:
                first, second = pairs[baseline], pairs[arm]
                rows = self.items.get((task, metric)) if by_item else None
                items = None if rows is None else _item_test(rows, pairs)
                totals = summarise(first), summarise(second), paired(second - first)
                found.append(ScoreDifference(task, metric, *totals, items))
        return _adjusted(found)


def _adjusted(found: Sequence[ScoreDifference]) -> tuple[ScoreDifference, ...]:
    """The same with the p of items adjusted for there being several tasks.

    Of two accuracies of one task the customary one counts, and passkey and needle none.
    """
    p_values = holm(
        [each.items.strictest_p if each.items and _customary(each) else nan for each in found]
    )
    return tuple(
        replace(each, items=replace(each.items, adjusted_p=p)) if each.items else each
        for each, p in zip(found, p_values, strict=True)
    )


def _customary(score: ScoreDifference) -> bool:
    if score.task in RETRIEVED:  # one task, in cells by length and depth
        return False
    benchmark = BY_NAME.get(score.task)
    return benchmark is None or benchmark.metric == score.metric


def _item_test(rows: pd.DataFrame, pairs: pd.DataFrame) -> ItemTest | None:
    """Items of the arms and seeds that a table of scores has as its columns and rows."""
    first, second = (
        rows[(rows["arm"] == arm) & rows["seed"].isin(pairs.index)].pivot(
            index="seed", columns="item", values="value"
        )
        for arm in pairs
    )
    # Seeds that have items in both arms, then items that all of these seeds have.
    shared = first.index.intersection(second.index)
    both = pd.concat([first.loc[shared], second.loc[shared]], keys=(0, 1), join="inner")
    both = both.dropna(axis="columns").sort_index(axis="columns")
    if both.empty:
        return None
    clusters = rows.drop_duplicates("item").set_index("item")["cluster"].loc[both.columns]
    return item_test(both.loc[0].to_numpy(), both.loc[1].to_numpy(), list(clusters))
