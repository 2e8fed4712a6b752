"""The paper's own numbers, typed; ``paper.toml`` holds them as printed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from prism_transformer.schedule import HeadSchedule


@dataclass(frozen=True)
class Scale:
    """One of the three model sizes: Tables 1 to 4."""

    name: str
    d_model: int
    n_layers: int
    h_base: int
    schedule: HeadSchedule
    params: str
    batch: str
    lr: float
    tokens: str
    tokens_per_second: int
    hours: float
    loss: dict[str, float]
    loss_std: dict[str, float]
    benchmarks: dict[str, dict[str, float]]
    """by arm, baseline or prism, then by task as lm_eval names it"""

    @property
    def gap(self) -> float:
        """Prism's loss less the baseline's, as printed: negative is better."""
        return self.loss["prism"] - self.loss["baseline"]


@dataclass(frozen=True)
class Ablation:
    """One row of Table 5: a schedule at the small scale."""

    name: str
    schedule: HeadSchedule
    description: str
    loss: float
    gain: float | None = None
    throughput_change: float | None = None


@dataclass(frozen=True)
class Text:
    """Numbers that stand in the paper's text."""

    seeds: int
    context: int
    tokens_per_parameter: tuple[float, float]
    widening_from: float
    widening_to: float
    plateau: float
    share_of_best_gain: float
    preserved_layers: float


@cache
def scales() -> dict[str, Scale]:
    """The paper's three scales by name."""
    return {name: Scale(name=name, **_row(row)) for name, row in _numbers()["scales"].items()}


@cache
def ablation() -> dict[str, Ablation]:
    """The paper's ablation rows by name, in its order."""
    return {name: Ablation(name=name, **_row(row)) for name, row in _numbers()["ablation"].items()}


@cache
def text() -> Text:
    """The numbers in its text."""
    numbers = _numbers()["text"]
    return Text(**numbers | {"tokens_per_parameter": tuple(numbers["tokens_per_parameter"])})


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"schedule": HeadSchedule.parse(row["schedule"])}


@cache
def _numbers() -> dict[str, Any]:
    return tomllib.loads(files("prism_transformer").joinpath("paper.toml").read_text("utf-8"))
