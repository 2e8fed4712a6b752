"""Drawn studies, dressed as the paper's scales where a test wants them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from prism_transformer.models import cost
from prism_transformer.recipes.files import load_recipe
from prism_transformer.reporting.claims import Result
from prism_transformer.reporting.reading import read_views
from prism_transformer.reporting.views import View
from prism_transformer.study.collected import Collected, FactorialFacts, write_collected
from prism_transformer.study.factorial import schedules
from prism_transformer.training.run import NOT_FINITE
from tests.study.frames import make_collected

Judge = Callable[..., dict[str, Result]]  # of the fixture ``judged``: every claim by its key

H100 = {"processor": "Xeon", "cores": 96, "memory_bytes": 2**40, "gpu": "NVIDIA H100", "gpus": 8}

SMALL = {
    "uniform": "12x12", "prism": "3x2 6x2 8x2 12x6", "config-1": "3x1 6x1 8x1 12x9",
    "config-2": "6x2 8x2 12x8", "config-3": "4x2 8x2 12x8", "config-5": "2x1 4x1 6x1 8x1 12x8",
    "config-6": "3x2 6x2 12x8", "config-7": "2x2 4x2 8x2 12x6", "short": "3x4 6x4 12x4",
}  # fmt: skip
PAIRS = {
    "small": {"uniform": "12x12", "prism": "3x2 6x2 8x2 12x6"},
    "medium": {"uniform": "16x24", "prism": "4x3 8x3 16x18"},
    "large": {"uniform": "16x24", "prism": "6x3 12x3 16x18"},
}
TASKS = {
    "piqa": "acc", "hellaswag": "acc", "arc_easy": "acc", "winogrande": "acc",
    "wikitext": "word_perplexity",
}  # fmt: skip


def drawn(name: str = "nano", **what: Any) -> Collected:
    """A study of the nano model with a name of its own; HellaSwag as tables show it."""
    collected = make_collected(**what)
    table, items = collected.table.copy(), collected.items.copy()
    table["metric"] = table["metric"].str.replace("hellaswag.acc", "hellaswag.acc_norm")
    items.loc[items["task"] == "hellaswag", "metric"] = "acc_norm"
    collected = replace(collected, table=table, items=items)
    return renamed(collected, name=name, command=f"prism study run {name}")


def renamed(collected: Collected, **facts: Any) -> Collected:
    """The same numbers under other facts."""
    return replace(collected, facts=collected.facts.model_copy(update=facts))


def beside_others(collected: Collected) -> Collected:
    """The same, trained by two workers side by side."""
    runs = tuple(
        run.model_copy(update={"sessions": tuple(one | {"workers": 2} for one in run.sessions)})
        for run in collected.facts.runs
    )
    return renamed(collected, runs=runs)


def at_scale(
    scale: str,
    hardware: dict[str, Any] | None = None,
    processes: int = 8,
    precision: str = "bf16",
    **what: Any,
) -> Collected:
    """A study of one of the paper's models: its recipe, its steps, eight H100."""
    recipe = load_recipe(f"baseline-{scale}")
    steps = range(0, recipe.n_steps + 1, recipe.n_steps // 20)
    given = {"arms": PAIRS[scale], "steps": tuple(steps), "speed": 1.0, "scale": scale}
    collected = drawn(scale, **(given | what))
    own = {"processes": processes, "precision": precision}
    runs = tuple(
        run.model_copy(
            update={
                "hardware": hardware or H100,
                "sessions": tuple(one | own for one in run.sessions),
            }
        )
        for run in collected.facts.runs
    )
    return renamed(
        collected,
        recipe=recipe,
        parameters=cost.parameters(recipe.model).total,
        runs=runs,
    )


def three(**what: Any) -> list[Collected]:
    """A quiet study of each of the paper's models."""
    given: dict[str, Any] = {"noise": 0.0005, "tasks": {}} | what
    return [at_scale(scale, **given) for scale in PAIRS]


def diverged(collected: Collected) -> Collected:
    """The same, where runs that failed did so because their loss was no number any more."""
    runs = tuple(
        run.model_copy(update={"failure": NOT_FINITE}) if run.state == "failed" else run
        for run in collected.facts.runs
    )
    return renamed(collected, runs=runs)


def with_metric(
    collected: Collected, metric: str, value: Callable[[str, int, int], float]
) -> Collected:
    """The same study with other numbers of one metric, from arm, seed and index."""
    table = collected.table.copy()
    for place in table.index[table["metric"] == metric]:
        row = table.loc[place]
        index = 0 if pd.isna(row["index"]) else int(row["index"])
        table.loc[place, "value"] = value(row["arm"], int(row["seed"]), index)
    return replace(collected, table=table)


WORTH = [-0.04, -0.03, 0.0, 0.0, 0.0, 0.0, 0.02, 0.03]  # of a wide head, in each layer


def factorial() -> Collected:
    """Arms whose loss is the sum of their layers; Prism is 0.05 better than that."""
    arms = {name: str(each) for name, each in schedules(8, 1, 4).items()} | {"prism": "1x2 2x2 4x4"}
    arms = {"wide-none": arms.pop("wide-none"), **arms}
    wide = {name: [int(n) for n in name.split("-")[1:] if n.isdigit()] for name in arms}
    effect = {name: sum(WORTH[layer] for layer in wide[name]) for name in arms}
    effect["prism"] = WORTH[0] + WORTH[1] + (WORTH[2] + WORTH[3]) / 2 - 0.05
    collected = make_collected(arms=arms, seeds=range(3), effect=effect, noise=0.002, tasks={})
    return renamed(collected, name="worth", factorial=FactorialFacts(wide=1, narrow=4))


def views_of(folder: Path, *studies: Collected) -> list[View]:
    """Write studies and read them as a report does."""
    for place, collected in enumerate(studies):
        write_collected(folder / f"{place}-study", collected)
    return read_views([folder])
