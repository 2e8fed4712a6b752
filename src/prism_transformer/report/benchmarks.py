"""The paper's benchmark table, and what the differences in it can bear."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prism_transformer import paper
from prism_transformer.eval.tasks import BY_NAME
from prism_transformer.report.table import Column, Row, Table, interval, number, text
from prism_transformer.report.tables import (
    EVALUATE,
    PAPER,
    make_table,
    over_seeds,
    paper_arm,
    words,
)
from prism_transformer.report.views import MOST_ARMS, SHOWN, View
from prism_transformer.study.benchmarks import Benchmark

BENCHMARKS = "Zero-shot benchmarks"
DIAGNOSTIC_NOTE = (
    " diagnostic_pairs and diagnostic_cloze are a built-in check with grammar pairs and cloze "
    "items made here: no benchmarks, and not in the paper."
)


def scores_title(tasks: Iterable[str]) -> str:
    """A heading that calls nothing a benchmark where only the built-in check was scored."""
    named = list(tasks)
    return "Zero-shot diagnostic" if named and not set(named) & set(BY_NAME) else BENCHMARKS


def diagnostic_note(tasks: Iterable[str]) -> str:
    """What the built-in check is, where it is among these."""
    return DIAGNOSTIC_NOTE if set(tasks) - set(BY_NAME) else ""


def factor(metric: str) -> float:
    """Accuracies are shown in percent, everything else as it is."""
    return 100.0 if metric.startswith("acc") else 1.0


def unit(metric: str) -> str:
    """The unit of a metric as it is shown."""
    return "%" if metric.startswith("acc") else ""


def benchmarks(views: Sequence[View]) -> Table:
    """Table 3: zero-shot scores of every arm, each column named by its metric."""
    scored = {task for view in views for task, _ in view.tasks()}
    shown = [(task, metric) for task, metric in SHOWN.items() if task in scored]
    columns = [*words("study", "arm", "source"), Column("seeds")]
    columns += [Column(f"{task} {metric}", unit(metric)) for task, metric in shown]
    rows = []
    for view in views if shown else ():
        wide = {task: view.scalar(f"eval.{task}.{metric}") for task, metric in shown}
        for arm in view.arms:
            counts = [int(scores[arm].count()) for scores in wide.values()]
            if not any(counts):
                continue
            cells = [over_seeds(wide[task][arm] * factor(metric), 1) for task, metric in shown]
            seeds = number(max(counts), 0)
            rows.append(Row((text(view.name), text(arm), text("ours"), seeds, *cells), arm))
            kind, scale = paper_arm(view, arm), view.scale
            if kind is not None and scale is not None:
                printed = [number(scale.benchmarks[kind].get(task), 1) for task, _ in shown]
                who = (text(view.name), text(arm), text(PAPER), number(paper.text().seeds, 0))
                rows.append(Row((*who, *printed), arm, paper=True))
    note = (
        "Mean and sample s.d. over seeds; perplexity per word, lower is better. The paper prints "
        "means over three seeds and does not say which accuracy."
    ) + diagnostic_note(scored)
    return make_table("benchmarks", scores_title(scored), columns, rows, views, note, EVALUATE)


def benchmark_differences(views: Sequence[View]) -> Table:
    """Arms less baseline on each benchmark: over seeds, and item by item."""
    columns = [
        *words("study", "arm", "task", "metric"), Column("pairs"), Column("difference"),
        Column("95 % interval over seeds"), Column("least detectable"), Column("items"),
        Column("95 % interval over items"), Column("p over items"), Column("paper's difference"),
    ]  # fmt: skip
    rows = []
    for view in views:
        arms = view.others if len(view.arms) <= MOST_ARMS else [view.main or ""]
        for arm in arms:
            found = {(one.task, one.metric): one for one in view.row(arm).benchmarks}
            rows += [_difference(view, arm, found[key]) for key in view.tasks() if key in found]
    note = (
        "Arm less baseline of the same seed, accuracies in percentage points, perplexity per word. "
        "Over seeds: t interval, what other seeds would give. Over items: what other items would "
        "give these very models; of perplexity there is none."
    )
    if any(len(view.arms) > MOST_ARMS for view in views):
        note += " Of studies with many arms, the main one alone."
    scored = {task for view in views for task, _ in view.tasks()}
    note += diagnostic_note(scored)
    return make_table(
        "benchmark-differences", "Benchmark differences", columns, rows, views, note, EVALUATE
    )


def _difference(view: View, arm: str, one: Benchmark) -> Row:
    test, items, by = one.difference, one.items, factor(one.metric)
    over_items = (interval(by * items.low, by * items.high, 2) if items else text(None),)
    cells = (
        text(view.name), text(arm), text(one.task), text(one.metric), number(test.n, 0),
        number(by * test.mean, 2, sign=True), interval(by * test.low, by * test.high, 2),
        number(by * test.detectable, 2), number(items.n_items if items else None, 0), *over_items,
        number(items.p if items else None, 3),
        number(_paper_difference(view, arm, one.task), 1, sign=True),
    )  # fmt: skip
    return Row(cells, arm)


def _paper_difference(view: View, arm: str, task: str) -> float | None:
    if view.scale is None or paper_arm(view, arm) != "prism":
        return None
    ours, base = view.scale.benchmarks["prism"], view.scale.benchmarks["baseline"]
    return ours[task] - base[task] if task in ours else None
