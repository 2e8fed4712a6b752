"""Collected studies of schedules with losses that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from prism_transformer.recipes.files import load_recipe
from prism_transformer.schedule import HeadSchedule
from prism_transformer.study.collected import (
    COLUMNS,
    ITEM_COLUMNS,
    ArmFacts,
    Collected,
    FactorialFacts,
    RunFacts,
    StudyFacts,
    write_collected,
)
from prism_transformer.study.factorial import schedules
from prism_transformer.study.metrics import FINAL_LOSS

EFFECTS = np.array([-0.0812, -0.0471, -0.0313, -0.0134, 0.0023, 0.0249, 0.0381, 0.0597])
"""of a wide head in each of eight layers, nats; no two schedules of the design have one sum"""


def study(
    arms: Mapping[str, HeadSchedule],
    losses: Mapping[str, Sequence[float]],
    name: str = "known",
    changes: Mapping[str, dict[str, str]] | None = None,
    factorial: bool = True,
) -> Collected:
    """A study of these arms, each with a final loss for every seed."""
    n_seeds, own = max(map(len, losses.values())), changes or {}
    rows = [
        {"arm": arm, "point": 0, "seed": seed, "metric": FINAL_LOSS, "step": None, "index": None,
         "value": loss}
        for arm, own in losses.items()
        for seed, loss in enumerate(own)
    ]  # fmt: skip
    facts = StudyFacts(
        name=name, question="", command="", baseline=next(iter(arms)), scale=None,
        arms=tuple(
            ArmFacts(name=each, schedule=str(s), heads=s.heads, changes=own.get(each, {}))
            for each, s in arms.items()
        ),
        points=({},), seeds=tuple(range(n_seeds)), recipe=load_recipe("base/nano"),
        parameters=470_000, complete=True,
        runs=tuple(
            RunFacts(arm=arm, point=0, seed=seed, run=f"{arm}-seed{seed}", state="complete")
            for arm, own in losses.items() for seed in range(len(own))
        ),
        factorial=FactorialFacts(wide=1, narrow=4) if factorial else None,
    )  # fmt: skip
    table = pd.DataFrame(rows, columns=COLUMNS)
    return Collected(facts, table, pd.DataFrame(columns=ITEM_COLUMNS))


def factorial_study(noise: float, n_seeds: int = 4, seed: int = 0) -> Collected:
    """The design of eight layers, whose losses are the sum of ``EFFECTS`` and some noise."""
    random = np.random.default_rng(seed)
    arms = schedules(8, 1, 4)
    losses = {
        name: [3 + _sum(schedule) + noise * random.normal() for _ in range(n_seeds)]
        for name, schedule in arms.items()
    }
    return study(arms, losses)


def _sum(schedule: HeadSchedule) -> float:
    return float(sum(e for e, n in zip(EFFECTS, schedule.heads, strict=True) if n == 1))


def written(folder: Path, collected: Collected) -> Path:
    write_collected(folder, collected)
    return folder
