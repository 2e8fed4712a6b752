"""Scores, attention, loss by position and speed of inference, computed again."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import exp, hypot, log, sqrt
from pathlib import Path
from statistics import mean, stdev

import pandas as pd
import pytest
from scipy import stats

from prism_transformer.core.table import Spread
from prism_transformer.reporting.contents import Report, make_report
from prism_transformer.reporting.evaluation import benchmark_differences, benchmarks, inference
from prism_transformer.reporting.views import View
from tests.reporting.again import T2, Numbers, cells, detectable, drawing, of, paired, pm, shown
from tests.reporting.studies import TASKS, at_scale, drawn, views_of


def test_benchmarks(views: list[View], numbers: list[Numbers]) -> None:
    table, apart = benchmarks(views), benchmark_differences(views)
    metrics = TASKS | {"hellaswag": "acc_norm"}
    for view, found in zip(views, numbers, strict=True):
        for arm, (task, metric) in product(view.arms, metrics.items()):
            row = cells(table, study=view.name, arm=arm, source="ours")
            by = 100 if metric.startswith("acc") else 1
            name = f"eval.{task}.{metric}"
            scores = [by * value for value in of(found, name, arm)]
            assert row[f"{task} {metric}"] == pm(scores, 1)
            assert row["seeds"] == str(len(scores))
            if arm == "uniform":
                continue
            row = cells(apart, study=view.name, arm=arm, task=task)
            values = [by * value for value in paired(found, name, arm)]
            half = T2 * stdev(values) / sqrt(3)
            assert row["difference"] == shown(mean(values), 2)
            ends = [shown(mean(values) + sign * half, 2) for sign in (-1, 1)]
            assert row["95 % interval over seeds"] == " to ".join(ends)
            assert row["least detectable"] == f"{detectable(3, stdev(values)):,.2f}"
            assert row["items"] == "40"
    printed = cells(table, study="small", arm="prism", source="paper")
    assert printed["hellaswag acc_norm"] == "30.0"
    assert printed["wikitext word_perplexity"] == "51.2"
    assert cells(apart, study="small", task="piqa")["paper's difference"] == "+0.3"


def test_both_accuracies_are_shown_and_one_is_adjusted(tmp_path: Path) -> None:
    study = at_scale("small", tasks={"arc_easy": "acc", "piqa": "acc"})
    table, items = (
        pd.concat([frame, mine.assign(metric=mine["metric"].str.replace("acc", "acc_norm"))])
        for frame, mine in (
            (study.table, study.table[study.table["metric"].str.startswith("eval.arc_easy")]),
            (study.items, study.items[study.items["task"] == "arc_easy"]),
        )
    )
    views = views_of(tmp_path, replace(study, table=table, items=items))
    scores = benchmarks(views)
    printed = cells(scores, arm="uniform", source="paper")
    assert printed["arc_easy acc"] == printed["arc_easy acc_norm"] == "37.6"
    assert "looks like acc_norm" in scores.note
    apart = benchmark_differences(views)
    rows = {(row["task"], row["metric"]): row["adjusted p"] for row in apart.rows}
    assert set(rows) == {("arc_easy", "acc"), ("arc_easy", "acc_norm"), ("piqa", "acc")}
    assert [p == p for p in rows.values()].count(False) == 1
    assert rows["arc_easy", "acc_norm"] != rows["arc_easy", "acc_norm"]  # NaN: not of the family


def test_items(views: list[View]) -> None:
    """Item by item, for one accuracy, from the items themselves."""
    items = views[0].collected.items
    rows = [r for r in items.to_dict("records") if r["task"] == "piqa" and r["seed"] in (0, 1, 2)]
    value = {(r["arm"], r["seed"], r["item"]): r["value"] for r in rows}
    gaps = [
        100 * mean(value["prism", s, i] - value["uniform", s, i] for s in (0, 1, 2))
        for i in range(40)
    ]
    half = stats.t.ppf(0.975, 39) * stdev(gaps) / sqrt(40)
    row = cells(benchmark_differences(views), study="nano", arm="prism", task="piqa")
    ends = [shown(mean(gaps) + sign * half, 2) for sign in (-1, 1)]
    assert row["95 % interval over items"] == " to ".join(ends)


def test_the_built_in_check_is_not_called_a_benchmark(report: Report, tmp_path: Path) -> None:
    both = {"diagnostic_pairs": "acc", "diagnostic_cloze": "acc"}
    alone = make_report(views_of(tmp_path, drawn(tasks=both)))
    figure = drawing(alone, "nano-benchmarks")
    table = next(one for one in alone.tables if one.key == "benchmarks")
    assert figure.title == table.title == "Zero-shot diagnostic"
    assert "no benchmarks, and not in the paper" in figure.table.note
    assert "no benchmarks, and not in the paper" in table.note
    mixed = make_report(views_of(tmp_path, drawn(tasks=TASKS | both)))
    assert drawing(mixed, "nano-benchmarks").title == "Zero-shot benchmarks"
    assert "built-in check" in drawing(mixed, "nano-benchmarks").table.note
    assert "built-in check" not in drawing(report, "nano-benchmarks").table.note


def values(report: Report, metric: str, arm: str, index: int) -> list[float]:
    table = report.sections[0].view.collected.table
    rows = table[(table["metric"] == metric) & (table["arm"] == arm) & (table["index"] == index)]
    return [float(value) for value in rows["value"]]


def test_attention_is_held_against_the_baseline_layer_by_layer(report: Report) -> None:
    one = drawing(report, "nano-attention")
    assert len(one.table) == 3 * 8
    for row in one.table.rows:
        layer = int(str(row["layer"]))
        ours, base = (
            values(report, "attention.distance", arm, layer) for arm in (str(row["arm"]), "uniform")
        )
        own = row["distance"]
        assert isinstance(own, Spread)
        assert (own.mean, own.sd) == pytest.approx((mean(ours), stdev(ours)))
        gap = row["difference"]
        if row["arm"] == "uniform":
            assert gap is None
            continue
        assert isinstance(gap, Spread)
        assert gap.mean == pytest.approx(mean(ours) - mean(base))
        assert gap.sd == pytest.approx(hypot(stdev(ours), stdev(base)))
    rows = [row for row in one.table.rows if row["arm"] == "prism"]
    column = one.table.column("difference")
    lowest = min(rows, key=lambda row: column.order(row["difference"]) or 0.0)
    assert f"lowest at layer {lowest['layer']}" in one.alt


def test_loss_by_position_is_paired_by_seed(report: Report) -> None:
    table = report.sections[0].view.collected.table
    rows = table[table["metric"] == "loss_at_position"]
    rows = rows.set_index(["arm", "index", "seed"])["value"].sort_index()
    shown = drawing(report, "nano-positions").table
    assert len(shown) == 3 * 9
    for row in shown.rows:
        if row["arm"] != "uniform":
            end = row["positions to"]
            both = rows["uniform", end].index.intersection(rows[row["arm"], end].index)
            gaps = [rows[row["arm"], end, seed] - rows["uniform", end, seed] for seed in both]
            found = row["difference"]
            assert isinstance(found, Spread)
            assert (found.mean, found.sd) == pytest.approx((mean(gaps), stdev(gaps)))


def test_inference(views: list[View], numbers: list[Numbers]) -> None:
    table = inference(views)
    assert len(table.rows) == 3 + 2
    for study, arm in (("nano", "reversed"), ("small", "prism"), ("small", "uniform")):
        row = cells(table, study=study, arm=arm)
        known = numbers[0 if study == "nano" else 1]
        assert row["seeds"] == "3"
        for kind, heading in ((kind, f"{kind}, 95 % interval") for kind in ("prefill", "decoding")):
            rates = of(known, f"inference.{kind}", arm)
            assert row[kind] == f"{mean(rates):,.0f} \u00b1 {stdev(rates):,.0f}"
            logs = [log(ratio) for ratio in of(known, f"inference.{kind}.ratio", arm)]
            assert row[f"{kind}, change"] == shown(100 * (exp(mean(logs)) - 1), 1)
            half = T2 * stdev(logs) / sqrt(3)
            ends = [shown(100 * (exp(mean(logs) + s * half) - 1), 1) for s in (-1, 1)]
            assert row[heading] == " to ".join(ends)
