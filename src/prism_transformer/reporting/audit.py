"""The paper against its own numbers, computed from ``paper.toml``; the words are in ``audit.toml``.

Each statement has a function that says whether the numbers meet it, and fills the words with them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from math import gcd, sqrt

import numpy as np
from scipy import special

from prism_transformer.core.table import signed
from prism_transformer.models import cost
from prism_transformer.recipes.files import load_recipe
from prism_transformer.schedules import paper

SUFFIX = {"M": 1e6, "B": 1e9}
WINOGRANDE_ITEMS = 1267  # of its validation split, which lm_eval scores

Found = tuple[bool, dict[str, object]]


@dataclass(frozen=True)
class Statement:
    """A statement of the paper, what its numbers give, and whether the two meet."""

    key: str
    says: str
    where: str
    found: str
    meets: bool


def audit() -> list[Statement]:
    """Every statement that the paper's own numbers can be held against."""
    texts = files("prism_transformer.reporting").joinpath("audit.toml").read_text("utf-8")
    statements = []
    for key, text in tomllib.loads(texts).items():
        meets, values = FINDINGS[key]()
        says, found = (text[name].format(**values) for name in ("says", "found"))
        statements.append(Statement(key, says, text["where"], found, meets))
    return statements


def amount(printed: str) -> float:
    """A printed amount such as 124M or 2.88B as a number."""
    return float(printed[:-1]) * SUFFIX[printed[-1]]


def gains() -> dict[str, float]:
    """What each schedule of the ablation gains; the baseline has none."""
    return {name: row.gain for name, row in paper.ablation().items() if row.gain is not None}


def gain_and_mean_heads() -> float:
    """Pearson's r between mean head count and gain over the ablation, the baseline's 0 included."""
    rows = paper.ablation().values()
    means = [row.schedule.mean_heads for row in rows]
    return float(np.corrcoef(means, [row.gain or 0.0 for row in rows])[0, 1])


def _mean_heads() -> Found:
    return False, {"n": len(paper.ablation()), "r": signed(gain_and_mean_heads(), 2)}


def derived_hours() -> dict[str, tuple[float, float]]:
    """For each scale tokens divided by tokens/s, and the hours that are printed."""
    return {
        name: (cost.hours(int(amount(scale.tokens)), scale.tokens_per_second), scale.hours)
        for name, scale in paper.scales().items()
    }


def _hours() -> Found:
    words = [
        f"{name} {ours:.2f} h against {printed:.2f} ({100 * (printed / ours - 1):.0f} % longer)"
        for name, (ours, printed) in derived_hours().items()
    ]
    return False, {"hours": "; ".join(words)}


def _tokens_per_parameter() -> Found:
    low, high = paper.text().tokens_per_parameter
    exact = {
        name: cost.tokens_per_parameter(load_recipe(f"baseline-{name}")) for name in paper.scales()
    }
    words = ", ".join(f"{name} {value:.1f}" for name, value in exact.items())
    meets = all(low <= value <= high for value in exact.values())
    return meets, {"low": low, "high": high, "exact": words}


def _abrupt() -> Found:
    names = ("config-4", "config-2", "config-3")
    schedules = {name: paper.ablation()[name].schedule for name in names}
    words = [
        f"{name} ({schedule}, {len(schedule.phases)} phases) {gains()[name]:.4f}"
        for name, schedule in schedules.items()
    ]
    abrupt, *others = (gains()[name] for name in names)
    return abrupt < min(others), {"gains": "; ".join(words)}


def _start() -> Found:
    by_start: dict[int, list[float]] = {}
    for name, gain in gains().items():
        by_start.setdefault(paper.ablation()[name].schedule.heads[0], []).append(gain)
    ordered = sorted(by_start.items())
    words = [f"start {n}: {', '.join(f'{gain:.4f}' for gain in each)}" for n, each in ordered]
    meets = all(min(wide) > max(narrow) for (_, wide), (_, narrow) in pairwise(ordered))
    return meets, {"gains": "; ".join(words)}


def _blimp() -> Found:
    scores = {name: scale.benchmarks for name, scale in paper.scales().items()}
    points = {
        name: each["prism"]["blimp"] - each["baseline"]["blimp"] for name, each in scores.items()
    }
    words = ", ".join(f"{name} {signed(each, 1)}" for name, each in points.items())
    return min(points.values()) >= 0, {"points": words}


def _scales() -> Found:
    gaps = {name: -scale.gap for name, scale in paper.scales().items()}
    words = ", ".join(f"{name} {gap:.4f}" for name, gap in gaps.items())
    share = gaps["large"] / gaps["small"]
    return share >= 1, {"gaps": words, "share": 100 * share}


def _share() -> Found:
    ours, best = gains()["small"], gains()["config-7"]
    wanted = paper.text().share_of_best_gain
    numbers: dict[str, object] = {"ours": ours, "best": best, "share": 100 * ours / best}
    return ours / best > wanted, numbers | {"wanted": 100 * wanted}


def welch(gap: float, sds: Iterable[float], n: int) -> float:
    """Two-sided p of Welch's t test, from the printed numbers of ``n`` runs each."""
    errors = [sd**2 / n for sd in sds]
    degrees = (n - 1) * sum(errors) ** 2 / sum(error**2 for error in errors)
    return float(2 * special.stdtr(degrees, -abs(gap) / sqrt(sum(errors))))


def _noise() -> Found:
    p = {
        name: welch(scale.gap, scale.loss_std.values(), paper.text().seeds)
        for name, scale in paper.scales().items()
    }
    return max(p.values()) < 0.05, {"p": ", ".join(f"{name} p = {p[name]:.3f}" for name in p)}


def _rounding() -> Found:
    rows = paper.ablation()
    all_off = {
        name: abs(rows["baseline"].loss - rows[name].loss - gain) for name, gain in gains().items()
    }
    off = {name: each for name, each in all_off.items() if each > 0.5e-4}
    return max(off.values()) < 1.5e-4, {
        "off": ", ".join(off),
        "gap": -paper.scales()["small"].gap,
        "gain": gains()["small"],
    }


def _widths() -> Found:
    widths = {
        name: sorted({scale.d_model // n for n in scale.schedule.heads}, reverse=True)
        for name, scale in paper.scales().items()
    }
    words = "; ".join(f"{name} {', '.join(map(str, each))}" for name, each in widths.items())
    meets = all(width & (width - 1) == 0 for each in widths.values() for width in each)
    return meets, {"widths": words}


def _shared_divisor() -> Found:
    """What divides every layer's head count: ranks of tensor parallelism, queries that share."""
    shared = {name: gcd(*scale.schedule.heads) for name, scale in paper.scales().items()}
    words = "; ".join(f"{name} {n}" for name, n in shared.items())
    return min(shared.values()) > 1, {"shared": words}


def _half() -> Found:
    base = paper.scales()["small"].h_base
    shares = [
        row.schedule.heads.count(base) / len(row.schedule) for row in paper.ablation().values()
    ]
    return min(shares) < paper.text().preserved_layers, {"least": 100 * min(shares)}


def _trajectory() -> Found:
    heads = [row.schedule.heads for row in paper.ablation().values()]
    falling = sum(list(each) != sorted(each) for each in heads)
    return falling > 0, {"n": len(heads) - 1}


def _winogrande() -> Found:
    scores = {name: scale.benchmarks for name, scale in paper.scales().items()}
    points = {n: s["prism"]["winogrande"] - s["baseline"]["winogrande"] for n, s in scores.items()}
    least = min(each["baseline"]["winogrande"] for each in scores.values()) / 100
    error = 100 * sqrt(least * (1 - least) / WINOGRANDE_ITEMS)
    words = ", ".join(f"{name} {signed(each, 1)}" for name, each in points.items())
    return min(points.values()) > 2 * error, {
        "points": words, "items": WINOGRANDE_ITEMS, "error": error, "least": 100 * least,
    }  # fmt: skip


FINDINGS: dict[str, Callable[[], Found]] = {
    "mean-heads": _mean_heads,
    "hours": _hours,
    "tokens-per-parameter": _tokens_per_parameter,
    "abrupt": _abrupt,
    "start": _start,
    "blimp": _blimp,
    "scales": _scales,
    "share": _share,
    "noise": _noise,
    "rounding": _rounding,
    "widths": _widths,
    "shared-divisor": _shared_divisor,
    "half": _half,
    "trajectory": _trajectory,
    "winogrande": _winogrande,
}
