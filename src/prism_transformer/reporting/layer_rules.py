"""The rules of claims about attention distance, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

import numpy as np

from prism_transformer.core.table import number_of
from prism_transformer.reporting.verdicts import Check, Judged, above, below, equal
from prism_transformer.reporting.views import View
from prism_transformer.study.metrics import attention
from prism_transformer.study.statistics import sign_test

DISTANCE_MARGIN = 0.05  # of the baseline's attention distance
BOUNDARY_MARGIN = 1.0  # layers

# Attention distance: main arm minus baseline, seeds x layers; baseline; layers below the base.
LayerRule = Callable[[np.ndarray, np.ndarray, int], Judged]


def by_layer(rule: LayerRule) -> Callable[[View], Judged | None]:
    """A rule on attention distance, for a view whose main arm climbs and was analyzed."""

    @wraps(rule)
    def judge(view: View) -> Judged | None:
        gaps = view.paired_series(attention("distance"), "index", view.main or "")
        if gaps.empty or view.main is None:
            return None
        n_ramp, n_layers = view.layers_below_base(view.main), len(view.schedule(view.main))
        if not 0 < n_ramp < n_layers or len(gaps) != n_layers:
            return None
        base = view.series(attention("distance"), "index")[view.baseline][gaps.columns]
        return rule(gaps.to_numpy(float).T, base.to_numpy(float).T, n_ramp)

    return judge


def _layers(first: int, end: int) -> str:
    return f"layer {first}" if end - first == 1 else f"layers {first} to {end - 1}"


@by_layer
def early_local(gaps: np.ndarray, base: np.ndarray, n_ramp: int) -> Judged:
    """Layers with fewer heads than the base attend nearer than the baseline's."""
    stated = DISTANCE_MARGIN * float(base[:, :n_ramp].mean())
    found = gaps[:, :n_ramp].mean(axis=1)
    return Judged((below(found, _layers(0, n_ramp), "tokens", stated, places=2),))


@by_layer
def middle_global(gaps: np.ndarray, base: np.ndarray, n_ramp: int) -> Judged:
    """The first third of the layers at the base attends farther than the baseline's."""
    last = n_ramp + max(1, (gaps.shape[1] - n_ramp) // 3)
    stated = DISTANCE_MARGIN * float(base[:, n_ramp:last].mean())
    found = gaps[:, n_ramp:last].mean(axis=1)
    return Judged((above(found, _layers(n_ramp, last), "tokens", stated, places=2),))


@by_layer
def late_equal(gaps: np.ndarray, base: np.ndarray, n_ramp: int) -> Judged:
    """The last quarter of the layers attends as far as the baseline's, within 5 %."""
    first = gaps.shape[1] - max(1, gaps.shape[1] // 4)
    share = 100 * gaps[:, first:].mean(axis=1) / base[:, first:].mean(axis=1)
    return Judged((
        equal(share, 100 * DISTANCE_MARGIN, _layers(first, gaps.shape[1]), "%", places=1),
    ))  # fmt: skip


@by_layer
def turns_at_boundary(gaps: np.ndarray, base: np.ndarray, n_ramp: int) -> Judged:
    """The difference turns from nearer to farther where the ramp completes, and peaks there."""
    boundary = n_ramp - 0.5
    # Noise crosses zero anywhere; the least running sum has the nearer layers before it and the
    # farther ones behind it, and there is one.
    sums = gaps.cumsum(axis=1)
    turned = (sums.min(axis=1) < 0) & (sums.argmin(axis=1) < gaps.shape[1] - 1)
    p = sign_test(int((~turned).sum()), len(gaps))
    n = int(turned.sum())
    verb = "turns" if n == 1 else "turn"
    words = f"{n} of {number_of(gaps, 'seed')} {verb} from nearer to farther"
    if not turned.any():
        return Judged((Check(f"{words} (sign test p {p:.2g})", False, p),))
    off = sums.argmin(axis=1)[turned] + 0.5 - boundary
    crossings = np.mean((gaps[:, 1:] * gaps[:, :-1] < 0).sum(axis=1))
    where = equal(off, BOUNDARY_MARGIN, "they turn", "layers from there", 1, grain=1.0)
    told = f"{where.words}; {crossings:.1f} changes of sign a seed"
    peaks = gaps.argmax(axis=1) - n_ramp
    peak = equal(peaks, BOUNDARY_MARGIN, "they peak", f"layers from layer {n_ramp}", 1, grain=1.0)
    # Of seeds that do not turn nobody knows where, and so neither what such a study could show.
    turn = Check(f"the ramp completes at {boundary:g}; {words}", bool(turned.all()), p)
    return Judged((turn, replace(where, words=told), peak))
