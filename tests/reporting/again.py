"""What tables should say, computed again from table.csv by plain code."""

from __future__ import annotations

from itertools import product
from math import sqrt
from statistics import mean, stdev

from scipy import stats

from prism_transformer.core.table import MINUS, Table
from prism_transformer.reporting.contents import Report
from prism_transformer.reporting.exhibits import Drawing

T2 = 4.302652729911275  # 97.5 % of Student's t with 2 degrees of freedom

Numbers = dict[tuple[str, str, int], float]  # (metric, arm, seed) to value


def cells(table: Table, **wanted: str) -> dict[str, str]:
    """The one row with these words, as readers see it."""
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, table.texts(row), strict=True)) for row in table.rows]
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row


def drawing(report: Report, key: str) -> Drawing:
    """The one figure of this key."""
    (found,) = [one for one in report.drawings if one.key == key]
    return found


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
