"""Small tables of every kind that a chart is drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan

from prism_transformer.core.table import Column, Interval, Spread, Table, words
from prism_transformer.figures.chart import Chart
from prism_transformer.figures.comparisons import bars, curves, front, intervals
from prism_transformer.figures.profiles import attention_pair
from prism_transformer.figures.schedules import heads_map, staircases
from prism_transformer.figures.sizes import across_sizes
from prism_transformer.figures.style import arm_tones

ARMS = ("uniform", "prism", "reversed")
TONES = arm_tones(["uniform"], ARMS)
HEADS = {"uniform": (4, 4), "prism": (1, 4), "reversed": (4, 1)}

LOSS = Table(
    "loss",
    (
        *words("arm"), Column("training", "thousands of tokens"), Column("loss", "nats/token", 4),
        Column("gap", "nats/token", 4, sign=True, name="loss minus uniform's"),
    ),
    tuple(
        {"arm": arm, "training": step, "loss": Spread(4.0 - step + n, 0.1),
         "gap": Spread(float(n), 0.2) if n else None}
        for n, arm in enumerate(ARMS)
        for step in (0, 1, 2)
    ),
)  # fmt: skip
DIFFERENCES = Table(
    "differences",
    (
        *words("arm"), Column("difference", "nats/token", 4, sign=True),
        Column("95 % interval", "nats/token", 4, sign=True),
        Column("paper's", "nats/token", 4, sign=True),
        Column("seed 0", "nats/token"), Column("seed 1", "nats/token"),
    ),
    (
        {"arm": "prism", "difference": -0.02, "95 % interval": Interval(-0.03, -0.01),
         "paper's": -0.0143, "seed 0": -0.03, "seed 1": -0.01},
        {"arm": "reversed", "difference": 0.01, "95 % interval": Interval(nan, nan),
         "paper's": None, "seed 0": 0.01, "seed 1": None},
    ),
)  # fmt: skip
SPEED = Table(
    "speed",
    (*words("arm"), Column("rate", "tokens/s", 0), Column("loss", "nats/token", 4), *words("best")),
    tuple(
        {"arm": arm, "rate": Spread(1000.0 + n, 5.0), "loss": Spread(3.0 + n, 0.1), "best": best}
        for n, (arm, best) in enumerate(zip(ARMS, ("yes", "yes", "no"), strict=True))
    ),
)
SCORES = Table(
    "scores",
    (*words("arm", "task", "metric", "unit"), Column("score", places=1), Column("paper's")),
    tuple(
        {"arm": arm, "task": task, "metric": metric, "unit": unit, "score": Spread(50.0 + n, 1.0),
         "paper's": 52.0 if arm == "prism" else None}
        for task, metric, unit in (("piqa", "acc", "%"), ("wikitext", "word_perplexity", ""))
        for n, arm in enumerate(ARMS)
    ),
)  # fmt: skip
SIZES = Table(
    "sizes",
    (
        *words("study", "arm", "source"), Column("parameters"),
        Column("gap", "nats/token", 4, sign=True),
    ),
    (
        {"study": "nano", "arm": "prism", "source": "ours", "parameters": 500_000,
         "gap": Spread(-0.02, 0.01)},
        {"study": "small", "arm": None, "source": "paper", "parameters": 124_000_000,
         "gap": Spread(-0.0144, 0.002)},
    ),
)  # fmt: skip
STAIRS = Table(
    "heads",
    (*words("arm"), Column("layer"), Column("heads"), Column("head width", "channels")),
    tuple(
        {"arm": arm, "layer": layer, "heads": n, "head width": 64 // n}
        for arm, heads in HEADS.items()
        for layer, n in enumerate(heads)
    ),
)
ATTENTION = Table(
    "attention",
    (
        *words("arm"), Column("layer"), Column("distance", "tokens", 2),
        Column("difference", "tokens", 2, sign=True), Column("seeds"),
    ),
    tuple(
        {"arm": arm, "layer": layer, "distance": Spread(10.0 - 3 * n * (1 - layer), 1.0),
         "difference": Spread(-3.0 * (1 - layer), 1.4) if n else None, "seeds": 3}
        for n, arm in enumerate(ARMS[:2])
        for layer in (0, 1)
    ),
)  # fmt: skip


def charts() -> Mapping[str, Chart]:
    """Every table drawn."""
    return {
        "loss": curves(LOSS, "training", ["loss", "gap"], TONES),
        "differences": intervals(DIFFERENCES, "difference", "95 % interval", "paper's", TONES),
        "speed": front(SPEED, "rate", "loss", "best", TONES),
        "scores": bars(SCORES, "score", "paper's", TONES),
        "sizes": across_sizes(SIZES, "parameters", "gap", TONES),
        "stairs": staircases(STAIRS, ["uniform", "prism"]),
        "map": heads_map(STAIRS, ARMS),
        "attention": attention_pair(ATTENTION, ("uniform", "prism"), TONES, 1),
    }
