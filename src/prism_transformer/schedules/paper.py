"""The paper's schedules by name, and its numbers; ``paper.toml`` holds them as printed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from prism_transformer.schedule import HeadSchedule, ScheduleError

T = TypeVar("T")

SCALES = ("small", "medium", "large")
START_WIDTH = 256  # head width of the first layer at every scale (its Appendix B)


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


@dataclass(frozen=True)
class Preset:
    """A named schedule of the paper and the model it was made for."""

    name: str
    schedule: HeadSchedule
    d_model: int
    h_base: int
    description: str


@cache
def scales() -> dict[str, Scale]:
    """The paper's three scales by name."""
    return _read(Scale, "scales")


@cache
def ablation() -> dict[str, Ablation]:
    """The paper's ablation rows by name, in its order."""
    return _read(Ablation, "ablation")


@cache
def text() -> Text:
    """The numbers in its text."""
    numbers = _numbers()["text"]
    return Text(**numbers | {"tokens_per_parameter": tuple(numbers["tokens_per_parameter"])})


@cache
def presets() -> dict[str, Preset]:
    """The paper's schedules by name: its three models, then the rows of its ablation."""
    models = {
        name: Preset(name, each.schedule, each.d_model, each.h_base, f"Prism {name}, {each.params}")
        for name, each in scales().items()
    }
    small = models["small"]
    rows = {
        name: Preset(name, row.schedule, small.d_model, small.h_base, row.description)
        for name, row in ablation().items()
        if name not in models
    }
    return models | rows


def resolve(text: str) -> HeadSchedule:
    """Read a preset's name or a schedule's notation."""
    if text in presets():
        return presets()[text].schedule
    try:
        return HeadSchedule.parse(text)
    except ScheduleError as error:
        close = get_close_matches(text.lower(), presets(), n=1)
        hint = f"; or did you mean the preset {close[0]!r}?" if close else ""
        raise ScheduleError(f"{error}{hint}") from None


def _read(kind: type[T], table: str) -> dict[str, T]:
    rows: dict[str, dict[str, Any]] = _numbers()[table]
    return {
        name: kind(**row | {"name": name, "schedule": HeadSchedule.parse(row["schedule"])})
        for name, row in rows.items()
    }


@cache
def _numbers() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("paper.toml").read_text("utf-8"))
