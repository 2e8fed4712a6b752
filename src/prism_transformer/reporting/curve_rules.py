"""The rules of claims about the course of training: the gap over its tokens, who is there first."""

from __future__ import annotations

from collections.abc import Callable
from math import atanh, sqrt

import numpy as np
import pandas as pd
from scipy import special

from prism_transformer.core.table import number_of, signed
from prism_transformer.reporting.rules import GAP_MARGIN, NATS, stated_gap
from prism_transformer.reporting.verdicts import (
    Check,
    Estimate,
    Judged,
    below,
    beyond,
    contrasted,
    equal,
)
from prism_transformer.reporting.views import View
from prism_transformer.schedules import paper
from prism_transformer.study.metrics import VAL_LOSS
from prism_transformer.study.statistics import ALPHA, sign_test

EARLIER = 5.0  # percent of the tokens: the paper says "consistently earlier", and no number


def _gaps(view: View) -> pd.DataFrame:
    """Main arm minus baseline at each validation, for the seeds that both have trained to the end.

    Empty where there are none.
    """
    gaps = view.paired_series(VAL_LOSS, "step", view.main or "")
    seeds = view.main_contrast.seeds if view.main_contrast else ()
    return gaps[[seed for seed in seeds if seed in gaps]] if seeds else pd.DataFrame()


def _of_gap(
    view: View, gaps: pd.DataFrame, number: Callable[[pd.DataFrame], pd.Series]
) -> Estimate:
    """A number of each run's curve, main arm minus baseline, by the error of all arms."""
    curves = {
        arm: number(curve.loc[gaps.index])
        for arm, curve in view.series(VAL_LOSS, "step").items()
        if gaps.index.isin(curve.index).all()
    }
    ended = view.losses.notna()
    numbers = pd.DataFrame(curves).reindex(index=ended.index, columns=ended.columns).where(ended)
    found = contrasted(numbers, {view.main or "": 1.0, view.baseline: -1.0})
    assert found is not None, "there are gaps"
    return found


def gap_persists(view: View) -> Judged | None:
    """Below the baseline after warmup on average, and nowhere above it beyond a band of all."""
    gaps = _gaps(view)
    late = gaps[gaps.index.to_numpy(float) > view.recipe.warmup_steps]
    if late.empty:
        return None
    mean = _of_gap(view, late, pd.DataFrame.mean)
    rows = late.to_numpy(float)
    lower = int((rows.mean(axis=1) < 0).sum())
    # One band for all of them: each interval is as much wider as there are validations.
    worst = float(np.fmin.reduce([beyond(row, 0.0) for row in rows]))
    words = f"at {lower} of {len(rows)} validations its mean is below 0"
    return Judged((
        below(mean, f"{view.main}, mean after warmup", NATS, stated_gap(view)),
        Check(words, True, min(len(rows) * worst, 1.0)),  # it can only speak against
    ))  # fmt: skip


def earlier(view: View) -> Judged | None:
    """The main arm reaches the loss at which the baseline ends with fewer tokens.

    A seed that never gets there has no number of tokens, but it has a sign.
    """
    saved = [one.saved for one in (view.main_contrast.reach if view.main_contrast else ())]
    there = [share for share in saved if share is not None]
    if not saved:
        return None
    if len(there) == len(saved):
        values = [-100 * share for share in there]
        return Judged((below(values, f"{view.main} needs", "% tokens", EARLIER, places=1),))
    never, n = len(saved) - len(there), len(saved)
    not_earlier = never + sum(share < 0 for share in there)
    p = sign_test(not_earlier, n - there.count(0.0))
    words = f"{view.main} never reaches it in {never} of {number_of(n, 'seed')}"
    if there:
        words += f" and needs {signed(-100 * float(np.mean(there)), 1)} % tokens in the others"
    # How far off it is in some nobody knows, and so neither what such a study would have shown.
    return Judged((Check(f"{words} (sign test p {p:.2g})", False, p),))


def _places(view: View, gaps: pd.DataFrame) -> list[int] | None:
    """The steps nearest to 1 and to 10 billion tokens and at the end; None if it ends before."""
    known = paper.text()
    tokens = gaps.index.to_numpy(float) * view.batch_tokens
    if gaps.empty or tokens[-1] <= known.widening_to:
        return None
    at = [int(np.argmin(np.abs(tokens - t))) for t in (known.widening_from, known.widening_to)]
    return [int(gaps.index[place]) for place in (*at, -1)]


def widens_then_stays(view: View) -> Judged | None:
    """Wider at 10 billion tokens than at 1 billion, then level and near -0.008."""
    gaps = _gaps(view)
    places = _places(view, gaps)
    if places is None:
        return None
    first, middle, last = places
    widened = _of_gap(view, gaps, lambda curve: curve.loc[middle] - curve.loc[first])
    rest = _of_gap(view, gaps, lambda curve: curve.loc[last] - curve.loc[middle])
    end = _of_gap(view, gaps, lambda curve: curve.loc[last])
    level = equal(rest, GAP_MARGIN, "from there to the end", NATS)
    plateau = paper.text().plateau
    return Judged((
        below(widened, "from 1 to 10 billion tokens", NATS, GAP_MARGIN),
        Check(level.words, level.supports, power=level.power),
        equal(end.plus(-plateau), GAP_MARGIN, f"at the end minus {signed(plateau, 3)}", NATS),
    ))  # fmt: skip


def spread_contracts(view: View) -> Judged | None:
    """Seeds differ less in their gap at the end than at 1 billion tokens (Pitman and Morgan)."""
    gaps = _gaps(view)
    places = _places(view, gaps)
    if places is None or len(gaps.columns) < 3:
        return None
    early, last = (gaps.loc[places[at]].to_numpy(float) for at in (0, -1))
    n = len(early)
    # Two spreads of the same seeds are equal when their sum and difference are uncorrelated.
    both = np.stack((early + last, early - last))
    away = both - both.mean(axis=1, keepdims=True)
    size = float(np.prod(np.linalg.norm(away, axis=1)))
    if not size > 0:
        return None
    r = min(max(float(away[0] @ away[1]) / size, -1 + 1e-12), 1 - 1e-12)
    p = 2 * float(special.stdtr(n - 2, -abs(r) * sqrt((n - 2) / (1 - r * r))))
    # To see a spread fall to a third, which is r = 0.8, by Fisher's z.
    power = float(special.ndtr(atanh(0.8) * sqrt(n - 3) + special.ndtri(ALPHA / 2)))
    words = (
        f"s.d. of the gap {early.std(ddof=1):.4f} at 1 billion tokens, {last.std(ddof=1):.4f} at "
        f"the end ({n} pairs, p {p:.2g}; power {power:.2f} for a third of it)"
    )
    return Judged((Check(words, p < ALPHA and r > 0, p if r < 0 else 1.0, power),))
