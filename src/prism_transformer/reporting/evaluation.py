"""What was measured on trained models: scores, attention, loss by position, speed of inference.

Table 3 of the paper, its Figures 2 and 4, and what the differences in them can bear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import hypot

from prism_transformer.core.table import PAPER, Column, Row, Spread, Table, Value, words
from prism_transformer.eval.tasks import BY_NAME
from prism_transformer.figures.comparisons import MOST_BARS, bars, curves
from prism_transformer.figures.profiles import LABELS, attention_pair
from prism_transformer.figures.style import Tones
from prism_transformer.reporting.exhibits import (
    NATS,
    Drawing,
    drawing,
    interval,
    make_table,
    over_seeds,
    seeds_note,
    spreads,
)
from prism_transformer.reporting.views import INFERENCE, MOST_ARMS, SHOWN, View, factor, percent
from prism_transformer.schedules import paper
from prism_transformer.study import metrics
from prism_transformer.study.benchmarks import ScoreDifference

EVALUATE = "prism eval RUN, then prism study collect"
DIAGNOSTIC_NOTE = (
    " diagnostic_pairs and diagnostic_cloze are a built-in check with grammar pairs and cloze "
    "items made here: no benchmarks, and not in the paper."
)


def scores_title(tasks: Iterable[str]) -> str:
    """A heading that calls nothing a benchmark where only the built-in check was scored."""
    named = list(tasks)
    return (
        "Zero-shot diagnostic"
        if named and not set(named) & set(BY_NAME)
        else "Zero-shot benchmarks"
    )


def diagnostic_note(tasks: Iterable[str]) -> str:
    """What the built-in check is, where it is among these."""
    return DIAGNOSTIC_NOTE if set(tasks) - set(BY_NAME) else ""


def unit(metric: str) -> str:
    """The unit of a metric as it is shown."""
    return "%" if metric.startswith("acc") else ""


def paper_score(view: View, arm: str, task: str) -> float | None:
    """What the paper prints for this arm."""
    kind = view.paper_arm(arm)
    return view.scale.benchmarks[kind].get(task) if view.scale and kind else None


def benchmarks(views: Sequence[View]) -> Table:
    """Table 3: zero-shot scores of every arm, each column named by its metric."""
    scored = {task for view in views for task, _ in view.tasks()}
    found = dict.fromkeys(key for view in views for key in view.scores())
    order = list(SHOWN)
    keys = sorted(found, key=lambda key: order.index(key[0]))
    shown = {f"{task} {metric}": (task, metric) for task, metric in keys}
    columns = [*words("study", "arm", "source"), Column("seeds")]
    columns += [Column(key, unit(metric), 1) for key, (_, metric) in shown.items()]
    rows: list[Row] = []
    for view in views if shown else ():
        wide = {
            key: view.scalar(metrics.eval_score(task, metric)) * factor(metric)
            for key, (task, metric) in shown.items()
        }
        for arm in view.arms:
            seeds = max(int(scores[arm].count()) for scores in wide.values())
            if not seeds:
                continue
            who = {"study": view.name, "arm": arm}
            scores = {key: over_seeds(each[arm]) for key, each in wide.items()}
            rows.append({**who, "source": "ours", "seeds": seeds, **scores})
            if view.paper_arm(arm):
                printed = {key: paper_score(view, arm, task) for key, (task, _) in shown.items()}
                rows.append({**who, "source": PAPER, "seeds": paper.text().seeds, **printed})
    note = (
        "Mean and sample s.d. over seeds; perplexity per word, lower is better. The paper prints "
        "means over three seeds and does not say which accuracy: its number stands under both."
    ) + diagnostic_note(scored)
    if "arc_easy" in scored:
        note += (
            " Its 37.6 for ARC-Easy at small looks like acc_norm: Pythia-160m, of that size, has "
            "acc 45.0 and acc_norm 39.9."
        )
    title = scores_title(scored)
    return make_table("benchmarks", title, columns, rows, views, note=note, fill=EVALUATE)


def benchmark_differences(views: Sequence[View]) -> Table:
    """Arms minus baseline on each benchmark: over seeds, and item by item."""
    columns = [
        *words("study", "arm", "task", "metric"), Column("pairs"),
        Column("difference", places=2, sign=True),
        Column("95 % interval over seeds", places=2, sign=True),
        Column("least detectable", places=2), Column("items"),
        Column("95 % interval over items", places=2, sign=True), Column("p over items", places=3),
        Column("clusters"), Column("95 % interval over clusters", places=2, sign=True),
        Column("p over clusters", places=3),
        Column("95 % interval over clusters and seeds", places=2, sign=True),
        Column("p over clusters and seeds", places=3), Column("adjusted p", places=3),
        Column("paper's difference", places=1, sign=True),
    ]  # fmt: skip
    rows = []
    for view in views:
        arms = view.others if len(view.arms) <= MOST_ARMS else [view.main or ""]
        for arm in arms:
            found = {(one.task, one.metric): one for one in view.compared[arm].benchmarks}
            rows += [_difference(view, arm, found[key]) for key in view.scores() if key in found]
    note = (
        "Arm minus baseline of the same seed, accuracies in points, perplexity per word. "
        "Over seeds: t interval, what other seeds would give. Over items: what other items would "
        "give these very models; of perplexity there is none. Over clusters: items of one sub-task "
        "or template count as one; and seeds: what other seeds would give on other clusters "
        "(items, where there are none). Adjusted: that p after Holm over the tasks of an arm, each "
        "by the accuracy that is customary for it; the other one stands beside it."
    )
    if any(len(view.arms) > MOST_ARMS for view in views):
        note += " Of studies with many arms, the main one alone."
    note += diagnostic_note({task for view in views for task, _ in view.tasks()})
    title = "Benchmark differences"
    return make_table(
        "benchmark-differences", title, columns, rows, views, note=note, fill=EVALUATE
    )


def _difference(view: View, arm: str, one: ScoreDifference) -> Row:
    test, items, by = one.difference, one.items, factor(one.metric)
    clusters, crossed = (items.clustered, items.crossed) if items else (None, None)
    return {
        "study": view.name, "arm": arm, "task": one.task, "metric": one.metric, "pairs": test.n,
        "difference": by * test.mean,
        "95 % interval over seeds": interval(test, by),
        "least detectable": by * test.detectable,
        "items": items.n_items if items else None,
        "95 % interval over items": interval(items, by),
        "p over items": items.p if items else None,
        "clusters": clusters.n if clusters else None,
        "95 % interval over clusters": interval(clusters, by),
        "p over clusters": clusters.p if clusters else None,
        "95 % interval over clusters and seeds": interval(crossed, by),
        "p over clusters and seeds": crossed.p if crossed else None,
        "adjusted p": items.adjusted_p if items else None,
        "paper's difference": _paper_difference(view, arm, one.task),
    }  # fmt: skip


def _paper_difference(view: View, arm: str, task: str) -> float | None:
    printed = paper_score(view, arm, task)
    if view.scale is None or printed is None or view.paper_arm(arm) != "prism":
        return None
    return printed - view.scale.benchmarks["baseline"][task]


def benchmark_figure(view: View, tones: Tones) -> Drawing:
    """Figure 2: zero-shot scores, a panel for each benchmark."""
    scored = [task for task, _ in view.tasks()]
    arms = list(dict.fromkeys([view.baseline, view.main or view.baseline, *view.others]))
    columns = [
        *words("arm", "task", "metric", "unit"), Column("score", places=1), Column("seeds"),
        Column("paper's", places=1),
    ]  # fmt: skip
    rows: list[dict[str, Value]] = []
    for task, metric in view.tasks():
        wide = view.scalar(metrics.eval_score(task, metric)) * factor(metric)
        rows += [
            {"arm": arm, "task": task, "metric": metric, "unit": unit(metric),
             "score": over_seeds(wide[arm]), "seeds": int(wide[arm].count()),
             "paper's": paper_score(view, arm, task)}
            for arm in arms
            if wide[arm].count()
        ]  # fmt: skip
    note = "Means over seeds, whiskers one s.d.; accuracies in percent, perplexity lower is better."
    note += diagnostic_note(scored)
    if len(arms) > MOST_BARS:
        note += f" The first {MOST_BARS} of {len(arms)} arms; all are in the data."
    table = make_table(
        f"{view.key}-benchmarks", scores_title(scored), columns, rows, [view], note=note,
        fill=EVALUATE, missing="no run was scored on a benchmark",
    )  # fmt: skip
    return drawing(table, lambda t: bars(t, "score", "paper's", tones))


# -- attention and loss by layer and position ------------------------------------------------------


def attention_figure(view: View, tones: Tones) -> Drawing:
    """Figure 4: attention distance by layer, and its difference to the baseline."""
    name, _, unit = LABELS["distance"].partition(", ")
    columns = [
        *words("arm"), Column("layer"), Column("distance", unit, 4, name=name),
        Column("difference", unit, 2, sign=True, name=f"minus {view.baseline}'s"), Column("seeds"),
    ]  # fmt: skip
    found = view.series(metrics.attention("distance"), "index")
    known = view.main in found and view.baseline in found
    base = spreads(found[view.baseline]) if known else []
    rows: list[Row] = [
        {"arm": arm, "layer": layer, "distance": own, "seeds": wide.shape[1],
         "difference": None if arm == view.baseline else
         Spread(own.mean - other.mean, hypot(own.sd, other.sd))}
        for arm, wide in (found.items() if known else ())
        for layer, own, other in zip(wide.index, spreads(wide), base, strict=False)
    ]  # fmt: skip
    causal = view.recipe.model.attention == "causal"
    queries = "Queries of the last half of the context" if causal else "All queries of the context"
    note = (
        f"{queries}. Bands one s.d. over seeds, propagated on the right, "
        f"as in the paper; {seeds_note(view, found)}. All arms are in the data."
    )
    table = make_table(
        f"{view.key}-attention", "Attention distance by layer", columns, rows, [view], note=note,
        fill="prism analyze RUN, and the report again",
        missing="no pair of arms was analyzed" if view.main else "there is one arm only",
    )  # fmt: skip
    pair = (view.baseline, view.main or view.baseline)
    n_progressive = view.layers_below_base(pair[1])
    draw = partial(attention_pair, pair=pair, tones=tones, n_progressive=n_progressive)
    return drawing(table, draw, alt=_extremes(table, pair) if rows else "")


def _extremes(table: Table, pair: tuple[str, str]) -> str:
    """Where the difference is lowest and highest."""
    column = table.column("difference")
    rows = [row for row in table.rows if row["arm"] == pair[1]]
    rows.sort(key=lambda row: column.order(row["difference"]) or 0.0)
    low, high = (
        f"at layer {row['layer']}, {column.text(row['difference'])} tokens"
        for row in (rows[0], rows[-1])
    )
    return (
        f"Mean attention distance of {pair[0]} and {pair[1]} by layer; the difference is lowest "
        f"{low}, and highest {high}."
    )


def position_figure(view: View, tones: Tones) -> Drawing:
    """Loss by position in the context, and its difference to the baseline."""
    x, less = "positions to", f"loss minus {view.baseline}'s"
    columns = [
        *words("arm"), Column(x, name="position in the context, tokens (end of bin)"),
        Column("loss", NATS, 4), Column("difference", NATS, 4, sign=True, name=less),
        Column("seeds"),
    ]  # fmt: skip
    found = view.series(metrics.LOSS_AT_POSITION, "index")
    rows: list[Row] = []
    for arm, wide in found.items():
        paired = view.paired_series(metrics.LOSS_AT_POSITION, "index", arm)
        gaps = dict(zip(paired.index, spreads(paired), strict=True)) if len(paired) else {}
        rows += [
            {"arm": arm, x: int(end), "loss": loss, "seeds": wide.shape[1],
             "difference": None if arm == view.baseline else gaps.get(end)}
            for end, loss in zip(wide.index, spreads(wide), strict=True)
        ]  # fmt: skip
    table = make_table(
        f"{view.key}-positions", "Loss by position in the context", columns, rows, [view],
        fill="prism study run, of a study with [loss]", missing="no loss by position was collected",
        note=f"Means over seeds, bands one s.d.; {seeds_note(view, found)}.",
    )  # fmt: skip
    lead = f"Loss at the last positions of the context, and minus {view.baseline}'s"
    return drawing(table, lambda t: curves(t, x, ["loss", "difference"], tones, log_x=True), lead)


# -- speed of inference ----------------------------------------------------------------------------


def inference(views: Sequence[View]) -> Table:
    """Speed of inference, arm against baseline in interleaved rounds."""
    columns = [*words("study", "arm"), Column("seeds")]
    for kind in INFERENCE:
        columns += [
            Column(kind, "tokens/s", 0), Column(f"{kind}, change", "%", 1, sign=True),
            Column(f"{kind}, 95 % interval", "%", 1, sign=True, name="95 % interval"),
        ]  # fmt: skip
    rows: list[Row] = []
    for view in views:
        rates = {kind: view.scalar(metrics.inference(kind)) for kind in INFERENCE}
        for arm in view.arms:
            seeds = int(rates[INFERENCE[0]][arm].count())
            if not seeds:
                continue
            row: dict[str, Value] = {"study": view.name, "arm": arm, "seeds": seeds}
            for kind, rate in rates.items():
                found = view.inference_ratio(arm, kind)
                change, ends = percent(found) if found else (None, None)
                row |= {kind: over_seeds(rate[arm]), f"{kind}, change": change}
                row[f"{kind}, 95 % interval"] = ends
            rows.append(row)
    note = (
        "One sequence at a time: prefill reads a whole context, decoding writes after a prompt; "
        "weights are drawn anew, as no speed depends on what was learnt. "
        "Each change is against the baseline in the same rounds, so that of the baseline itself "
        "is what the measurement makes of no difference."
    )
    fill = "a study with [inference]"
    return make_table("inference", "Speed of inference", columns, rows, views, note=note, fill=fill)
