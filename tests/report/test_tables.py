"""Every cell of every table, computed again from table.csv by plain code."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from itertools import product
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from scipy import stats

from prism_transformer import paper
from prism_transformer.report import tables
from prism_transformer.report.benchmarks import benchmark_differences, benchmarks
from prism_transformer.report.table import MINUS, NONE, Table
from prism_transformer.report.views import View
from tests.report.studies import PAIRS, TASKS, at_scale, drawn, views_of

T2 = 4.302652729911275  # 97.5 % of Student's t with 2 degrees of freedom
ARMS = {"uniform": "8x8", "prism": "2x2 4x2 8x4", "reversed": "8x4 4x2 2x2"}
EFFECTS = {"prism": -0.02, "reversed": 0.01}

Numbers = dict[tuple[str, str, int], float]


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> list[View]:
    nano = drawn(
        "nano",
        arms=ARMS,
        effect=EFFECTS,
        tasks=TASKS,
        seeds=(0, 1, 2, 3),
        states={("reversed", 0, 3): "failed", ("uniform", 0, 3): "missing"},
    )
    small = at_scale("small", tasks=TASKS, noise=0.001, effect=-0.0144)
    return views_of(tmp_path_factory.mktemp("tables"), nano, small)


@pytest.fixture(scope="module")
def numbers(views: list[View], tmp_path_factory: pytest.TempPathFactory) -> list[Numbers]:
    """What table.csv says, without pandas: (metric, arm, seed) to value."""
    from prism_transformer.study.table import write_collected

    found = []
    for view in views:
        folder = tmp_path_factory.mktemp("plain")
        write_collected(folder, view.collected)
        with (folder / "table.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        once = [row for row in rows if row["index"] == "" and not row["metric"].endswith("_loss")]
        once += [row for row in rows if row["metric"] == "final_val_loss"]
        found.append({(r["metric"], r["arm"], int(r["seed"])): float(r["value"]) for r in once})
    return found


def cells(table: Table, **wanted: str) -> dict[str, str]:
    """The one row with these words, by heading; a heading that comes twice is numbered."""
    names: list[str] = []
    for column in table.columns:
        names.append(column.name if column.name not in names else f"{column.name} 2")
    rows = [dict(zip(names, (cell.text for cell in row.cells), strict=True)) for row in table.rows]
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row


def of(numbers: Numbers, metric: str, arm: str) -> list[float]:
    return [numbers[key] for key in sorted(numbers) if key[:2] == (metric, arm)]


def paired(numbers: Numbers, metric: str, arm: str, base: str = "uniform") -> list[float]:
    seeds = sorted({seed for name, who, seed in numbers if (name, who) == (metric, arm)})
    return [
        numbers[metric, arm, seed] - numbers[metric, base, seed]
        for seed in seeds
        if (metric, base, seed) in numbers
    ]


def shown(value: float, places: int = 4) -> str:
    return f"{value:+.{places}f}".replace("-", MINUS)


def pm(values: list[float], places: int = 4) -> str:
    return f"{mean(values):,.{places}f} \u00b1 {stdev(values):,.{places}f}"


def test_results(views: list[View], numbers: list[Numbers]) -> None:
    table = tables.results(views)
    assert len(table.rows) == 5
    for view, found in zip(views, numbers, strict=True):
        for arm in view.arms:
            row = cells(table, study=view.name, arm=arm)
            losses = of(found, "final_val_loss", arm)
            assert row["seeds"] == str(len(losses))
            assert row["validation loss"] == pm(losses)
            done = [s for name, who, s in found if (name, who) == ("final_val_loss", arm)]
            places = 4 if view.name == "nano" else 2  # nano's runs take seconds
            assert row["rate"] == pm([found["tokens_per_second", arm, s] for s in done], 0)
            assert row["training time"] == pm(
                [found["seconds", arm, s] / 3600 for s in done], places
            )
    known = cells(table, study="small", arm="prism")
    assert known["paper's loss"] == "3.3604 \u00b1 0.0010"
    assert (known["paper's rate"], known["paper's wall-clock"]) == ("2,875,000", "0.31")
    assert cells(table, study="nano", arm="prism")["paper's loss"] == NONE


def sign_flip(values: list[float]) -> float:
    flips = [sum(s * v for s, v in zip(signs, values, strict=True))
             for signs in product((1, -1), repeat=len(values))]  # fmt: skip
    return sum(abs(flip) >= abs(sum(values)) - 1e-12 for flip in flips) / len(flips)


def detectable(n: int, sd: float) -> float:
    """By bisection on the power of a two-sided t test."""
    low, high = 0.0, 100.0
    critical = stats.t.ppf(0.975, n - 1)
    for _ in range(100):
        middle = (low + high) / 2
        tail = stats.nct.cdf(-critical, n - 1, middle)
        power = stats.nct.sf(critical, n - 1, middle) + (tail if tail == tail else 0)
        low, high = (middle, high) if power < 0.8 else (low, middle)
    return low * sd / sqrt(n)


def test_differences(views: list[View], numbers: list[Numbers]) -> None:
    table = tables.differences(views)
    assert len(table.rows) == 3
    for view, found in zip(views, numbers, strict=True):
        p_values = {}
        for arm in view.others:
            row = cells(table, study=view.name, arm=arm)
            values = paired(found, "final_val_loss", arm)
            assert len(values) == 3
            half = T2 * stdev(values) / sqrt(3)
            assert row["pairs"] == "3"
            assert row["difference"] == shown(mean(values))
            low, high = shown(mean(values) - half), shown(mean(values) + half)
            assert row["95 % interval"] == f"{low} to {high}"
            assert row["s.d. of pairs"] == f"{stdev(values):.4f}"
            assert row["least detectable"] == f"{detectable(3, stdev(values)):.4f}"
            assert row["seed by seed"] == ", ".join(map(shown, values))
            p_values[arm] = sign_flip(values)
            assert row["p"] == f"{p_values[arm]:.3f}"
            assert row["least possible p"] == "0.250"
        worst = min(1.0, len(p_values) * min(p_values.values()))
        rows = [cells(table, study=view.name, arm=arm) for arm in view.others]
        assert f"{worst:.3f}" in {row["p, Holm"] for row in rows}
    assert cells(table, study="small", arm="prism")["paper's"] == shown(-0.0143)


def test_ablation(views: list[View], numbers: list[Numbers]) -> None:
    table = tables.ablation(views)
    for view, found in zip(views, numbers, strict=True):
        for arm in view.arms:
            row = cells(table, study=view.name, arm=arm)
            heads = next(h["heads"] for h in view.collected.facts["arms"] if h["name"] == arm)
            assert row["mean heads"] == f"{sum(heads) / len(heads):.2f}"
            at_base = sum(h == max(heads) for h in heads) / len(heads)
            assert row["layers at base"] == f"{100 * at_base:.0f}"
            assert row["validation loss"] == pm(of(found, "final_val_loss", arm))
            if arm == "uniform":
                assert row["difference"] == row["rate change"] == NONE
                continue
            assert row["difference"] == shown(mean(paired(found, "final_val_loss", arm)))
            done = {seed for name, who, seed in found if (name, who) == ("final_val_loss", arm)}
            logs = [
                log(found["tokens_per_second", arm, s] / found["tokens_per_second", "uniform", s])
                for s in sorted(done)
                if ("final_val_loss", "uniform", s) in found
            ]
            half = T2 * stdev(logs) / sqrt(3)
            assert row["rate change"] == shown(100 * (exp(mean(logs)) - 1), 1)
            ends = [shown(100 * (exp(mean(logs) + s * half) - 1), 1) for s in (-1, 1)]
            assert row["95 % interval"] == " to ".join(ends)
    assert cells(table, study="small", arm="prism")["paper's 2"] == "+0.0"


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


def test_configurations(views: list[View]) -> None:
    table = tables.configurations(views)
    ours = cells(table, study="small", source="ours")
    assert ours["parameters"] == "123,587,328"
    assert ours["training tokens"] == "2,883,584,000"
    assert ours["tokens per parameter"] == "23.3"
    assert ours["peak learning rate"] == "0.0006"
    theirs = cells(table, study="small", source="paper")
    assert (theirs["parameters"], theirs["batch"], theirs["training tokens"]) == (
        "124M", "0.25M", "2.88B",
    )  # fmt: skip
    nano = cells(table, study="nano", source="ours")
    recipe: dict[str, Any] = views[0].collected.facts["recipe"]
    assert nano["batch"] == f"{recipe['train']['batch_tokens']:,}"
    assert (nano["layers"], nano["d_model"], nano["h_base"]) == ("8", "128", "8")


def test_inference(views: list[View], numbers: list[Numbers]) -> None:
    table = tables.inference(views)
    assert len(table.rows) == 3 + 2
    for study, arm in (("nano", "reversed"), ("small", "prism"), ("small", "uniform")):
        row = cells(table, study=study, arm=arm)
        known = numbers[0 if study == "nano" else 1]
        assert row["seeds"] == "3"
        for kind, heading in (("prefill", "95 % interval"), ("decoding", "95 % interval 2")):
            rates = of(known, f"inference.{kind}", arm)
            assert row[kind] == f"{mean(rates):,.0f} \u00b1 {stdev(rates):,.0f}"
            logs = [log(ratio) for ratio in of(known, f"inference.{kind}.ratio", arm)]
            assert row[f"{kind}, change"] == shown(100 * (exp(mean(logs)) - 1), 1)
            half = T2 * stdev(logs) / sqrt(3)
            ends = [shown(100 * (exp(mean(logs) + s * half) - 1), 1) for s in (-1, 1)]
            assert row[heading] == " to ".join(ends)


def test_schedules(views: list[View]) -> None:
    table = tables.schedules(views)
    row = cells(table, study="nano", arm="prism")
    assert (row["schedule"], row["head widths"], row["mean heads"]) == (
        "2x2 4x2 8x4", "64, 32, 16", "5.50",
    )  # fmt: skip
    printed = cells(table, study="small", arm="prism", source="paper")
    assert printed["schedule"] == PAIRS["small"]["prism"] == str(paper.scales()["small"].schedule)


def test_runs(views: list[View], numbers: list[Numbers]) -> None:
    table = tables.runs(views)
    assert len(table.rows) == 12 + 6
    failed = cells(table, run="reversed-seed3")
    assert (failed["state"], failed["failure"]) == ("failed", "loss is <nan> & no number")
    missing = cells(table, run="uniform-seed3")
    assert missing["rate"] == missing["hardware"] == missing["failure"] == NONE
    done = cells(table, study="nano", run="prism-seed0")
    rate = numbers[0]["tokens_per_second", "prism", 0]
    assert done["rate"] == f"{rate:,.0f}"
    assert done["training time"] == f"{numbers[0]['seconds', 'prism', 0] / 3600:.4f}"
    assert done["peak memory"] == "0.50"
    assert cells(table, study="small", run="prism-seed0")["hardware"] == "8 x NVIDIA H100"


def test_without_benchmarks_the_gap_is_labelled(tmp_path: Path) -> None:
    study = drawn(tasks={})
    rows = study.table["metric"].str.startswith("inference.")
    views = views_of(tmp_path, replace(study, table=study.table[~rows]))
    assert not tables.inference(views).rows
    assert "[inference]" in tables.inference(views).command
    for table in (benchmarks(views), benchmark_differences(views)):
        assert not table.rows
        assert table.missing
        assert "prism eval" in table.command
    assert json.dumps(views[0].collected.facts)
