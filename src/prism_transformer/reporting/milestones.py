"""What was measured before the end: scores, attention and loss at shares of training.

The paper compares benchmarks "at identical token milestones" (its Figure 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from prism_transformer.core.table import Column, Row, Table, words
from prism_transformer.reporting.exhibits import interval, make_table, over_seeds
from prism_transformer.reporting.views import SHOWN, View, factor
from prism_transformer.study import metrics
from prism_transformer.study.collected import finite
from prism_transformer.study.statistics import paired


def milestones(views: Sequence[View]) -> Table:
    """Every arm at every milestone, and its difference to the baseline there."""
    columns = [
        *words("study", "arm"), Column("training", "%", 0), Column("tokens"), *words("what"),
        Column("pairs"), Column("value", places=4), Column("difference", places=4, sign=True),
        Column("95 % interval", places=4, sign=True),
    ]  # fmt: skip
    rows = [row for view in views for share in shares(view) for row in _rows(view, share)]
    note = (
        "Of checkpoints in the middle of training, whose learning rate is still high: a run that "
        "is planned so short ends better. Accuracies in percent; attention distance in tokens, the "
        "mean of all layers; loss in nats per token at the last positions of the context. "
        "Differences are to the baseline of the same seed, with t intervals."
    )
    return make_table(
        "milestones", "Milestones of training", columns, rows, views, note=note,
        fill="a study with `at` in [eval], [analyze] or [loss]",
    )  # fmt: skip


def shares(view: View) -> list[float]:
    """Shares of training at which a study measured something, its end included; none else."""
    found = {float(share) for _, share in _early(view)}
    return [*sorted(found), 1.0] if found else []


def _rows(view: View, share: float) -> Iterator[Row]:
    steps = max(1, round(share * view.recipe.n_steps))
    for what, wide in _measured(view, share):
        for arm in view.arms:
            both = wide[[view.baseline, arm]].dropna()
            value = over_seeds(wide[arm])
            if value is None:
                continue
            alone = arm == view.baseline or both.empty
            test = None if alone else paired(both[arm] - both[view.baseline])
            yield {
                "study": view.name, "arm": arm, "training": 100 * share,
                "tokens": steps * view.batch_tokens, "what": what, "pairs": len(both),
                "value": value, "difference": test.mean if test else None,
                "95 % interval": interval(test) if test and test.n > 1 else None,
            }  # fmt: skip


def _measured(view: View, share: float) -> Iterator[tuple[str, pd.DataFrame]]:
    """What has a number at some milestone: a row for each seed, a column for each arm."""
    known = {name for name, _ in _early(view)}
    for task, metric in SHOWN.items():
        name = metrics.eval_score(task, metric)
        if name in known:
            yield f"{task} {metric}", view.scalar(metrics.at(name, share)) * factor(metric)
    distance = metrics.attention("distance")
    if distance in known:
        yield "attention distance", _by_seed(view, metrics.at(distance, share), "mean")
    if metrics.LOSS_AT_POSITION in known:
        name = metrics.at(metrics.LOSS_AT_POSITION, share)
        yield "loss at the last positions", _by_seed(view, name, "last")


def _early(view: View) -> set[tuple[str, str]]:
    """Metrics that were measured before the end, each with the share of training."""
    names = (str(name).rpartition(metrics.AT) for name in view.collected.table["metric"].unique())
    return {(name, share) for name, at, share in names if at}


def _by_seed(view: View, name: str, how: str) -> pd.DataFrame:
    """A metric by layer or position as one number: its mean, or its last."""
    rows = view.collected.metric(name, view.point).sort_values("index")
    wide = rows.pivot_table(index="seed", columns="arm", values="value", aggfunc=how)
    return finite(wide.reindex(index=list(view.facts.seeds), columns=view.arms))
