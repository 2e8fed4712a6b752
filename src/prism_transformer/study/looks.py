"""Looking at a study before all seeds are there, with false alarms still at 5 %.

Seeds come in blocks, with a look after each. A spending function (Lan and DeMets) says how much of
the 5 % is spent when a share of the seeds is there. The limit below which p decides at a look
follows: of studies without an effect that no earlier look stopped, this look stops just as many as
were left to spend. O'Brien and Fleming's function spends next to nothing early, Pocock's about as
much for each seed.

Published tables of such limits are for many normal numbers. A study has few seeds and t tests, so
limits are computed on simulated studies, the same on every call; with many seeds they approach
those of the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import e, log1p, sqrt
from typing import Literal

import numpy as np
from scipy import special

from prism_transformer.core.errors import InputError
from prism_transformer.study.statistics import ALPHA, Array

Spending = Literal["obrien-fleming", "pocock"]
OBRIEN_FLEMING: Spending = "obrien-fleming"

STUDIES = 400_000  # drawn without an effect: a limit that 0.3 % of them pass is known to 3 %
FEWER = 100_000  # for a chance that only a sentence tells


@dataclass(frozen=True)
class Look:
    """One look at a study."""

    seeds: int
    limit: float
    """an adjusted p below this decides"""
    spent: float
    """chance of a false alarm up to and at this look"""


def spent_by(share: float, spending: Spending = OBRIEN_FLEMING) -> float:
    """How much of the 5 % is spent when this share of the seeds is there."""
    if spending == "pocock":
        return ALPHA * log1p((e - 1) * share)
    # Both sides, each with half of the error: of a walk that may leave at any time, the chance to
    # have crossed by now what it crosses by the end with ALPHA.
    return 4 * float(special.ndtr(special.ndtri(ALPHA / 4) / sqrt(share)))


@cache
def plan_looks(seeds: tuple[int, ...], spending: Spending = OBRIEN_FLEMING) -> tuple[Look, ...]:
    """Looks at these numbers of seeds that together raise a false alarm in 5 % of studies."""
    if not seeds or list(seeds) != sorted(set(seeds)) or seeds[0] < 2:
        raise InputError(f"looks = {list(seeds)}: give growing numbers of seeds, from 2 on")
    p_values, before, looks = _p_values(seeds, STUDIES), 0.0, []
    for place, n in enumerate(seeds):
        spent = spent_by(n / seeds[-1], spending)
        here = p_values[:, place]
        stop = min(round((spent - before) * STUDIES), len(here) - 1)
        # No look stops more studies than its limit says, nor all looks together fewer than the last
        # one's: so a limit lies between what is spent at its look and what is spent by then.
        limit = min(max(spent - before, float(np.partition(here, stop)[stop])), spent)
        looks.append(Look(n, limit, spent))
        p_values, before = p_values[here >= limit], spent
    return tuple(looks)


@cache
def false_alarms(seeds: tuple[int, ...], limits: tuple[float, ...] = ()) -> float:
    """Chance that a t test gives a p below its limit at one of these looks, if nothing differs.

    Below 0.05, where no limits are given.
    """
    known = dict(zip(seeds, limits or [ALPHA] * len(seeds), strict=True))
    looks = tuple(sorted(n for n in known if n > 1))
    if not looks:
        return 0.0
    return float((_p_values(looks, FEWER) < [known[n] for n in looks]).any(axis=1).mean())


def _p_values(seeds: tuple[int, ...], studies: int) -> Array:
    """Of t tests of studies without an effect: a row for each study, a column for each look."""
    draw = np.random.default_rng(0)
    sums, squares, found = np.zeros(studies), np.zeros(studies), []
    for before, n in zip((0, *seeds[:-1]), seeds, strict=True):
        # The new seeds by their sum and what they vary around it: two draws, not one for each.
        block = n - before
        added = draw.standard_normal(studies) * sqrt(block)
        within = draw.chisquare(block - 1, studies) if block > 1 else 0.0
        sums, squares = sums + added, squares + added**2 / block + within
        error = np.sqrt((squares - sums**2 / n) / (n - 1) / n)
        found.append(2 * special.stdtr(n - 1, -np.abs(sums / n) / error))
    return np.array(found).T
