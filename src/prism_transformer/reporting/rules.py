"""The rule of each claim that one study can be asked about: loss, training, speed, benchmarks.

Each takes a view and gives what its numbers say, or nothing where it has none. Effects that a rule
wants to be able to see are the paper's own where it prints one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import atanh, log, log1p, sqrt

import numpy as np
from scipy import special

from prism_transformer.core.table import signed
from prism_transformer.reporting.verdicts import (
    Check,
    Judged,
    below,
    beyond,
    equal,
    not_below,
    paired,
    span,
    together,
)
from prism_transformer.reporting.views import INFERENCE, View, factor, percent
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules import paper
from prism_transformer.schedules.design import reverse
from prism_transformer.schedules.hardware import FLASH_LIMIT
from prism_transformer.study.compare import PARITY_MARGIN
from prism_transformer.study.metrics import FINAL_LOSS, VAL_LOSS
from prism_transformer.study.statistics import ALPHA, Ratio, margin_power, power_of

TASKS = ("piqa", "hellaswag", "arc_easy", "winogrande")  # those that the paper's abstract names
BLIMP, WIKITEXT = "blimp", "wikitext"
TASK_MARGIN = 1.0  # accuracy points
GAP_MARGIN = 0.002  # nats per token
EARLIER = 5.0  # percent of the tokens: the paper says "consistently earlier", and no number
LEVEL = ("config-1", "config-2", "config-3", "config-4", "config-6")  # 0.0 % in Table 5
NATS = "nats/token"


# -- arms ------------------------------------------------------------------------------------------


def arms_of(view: View, names: Sequence[str]) -> tuple[str, ...] | None:
    """The arms that have the heads of these rows of the paper's ablation, if all are there."""
    rows = [paper.ablation()[name].schedule for name in names]
    found = [_with_heads(view, row)[:1] for row in rows]
    return tuple(arm for (arm,) in found) if all(found) else None


def _with_heads(view: View, schedule: HeadSchedule) -> list[str]:
    return [arm for arm in view.arms if view.is_schedule(arm, schedule)]


def less(view: View, first: str, second: str, effect: float | None = None) -> list[Check]:
    """Whether one arm ends lower than another, where a seed has both."""
    found = view.pairs(FINAL_LOSS, first, second)
    stated = view.facts.effect if effect is None else effect
    return [below(found, f"{first} minus {second}", NATS, stated)] if len(found) else []


def _ordered(view: View, pairs: Sequence[tuple[str, str]]) -> Judged | None:
    """Whether the first ends lower, for pairs of the paper's ablation that the study has."""
    checks = []
    for pair in pairs:
        if arms := arms_of(view, pair):
            losses = [paper.ablation()[name].loss for name in pair]
            checks += less(view, arms[0], arms[1], losses[0] - losses[1])
    return together(checks, wanted=len(pairs))


# -- loss ------------------------------------------------------------------------------------------


def stated_gap(view: View) -> float:
    """The main arm's gain by the paper; of another model, what its study wants to see."""
    printed = view.paper_gap(view.main) if view.main else None
    return view.facts.effect if printed is None else abs(printed)


def lower_loss(view: View) -> Judged | None:
    """The main arm ends below the baseline."""
    if view.main is None:
        return None
    found = view.pairs(FINAL_LOSS, view.main, view.baseline)
    return together([below(found, view.main, NATS, stated_gap(view))] if len(found) else [])


def wider_start(view: View) -> Judged | None:
    """Starts of 3, 4 and 6 heads end in this order."""
    return _ordered(view, [("config-6", "config-3"), ("config-3", "config-2")])


def smooth_over_abrupt(view: View) -> Judged | None:
    """Phases of two layers end below phases of one, from the same start."""
    return _ordered(view, [("small", "config-1"), ("config-7", "config-5")])


def share_of_best(view: View) -> Judged | None:
    """A start of three heads keeps more than 95 % of what two heads gain."""
    names = ("small", "config-7")
    arms = arms_of(view, names)
    losses = view.scalar(FINAL_LOSS)[[view.baseline, *arms]].dropna() if arms else None
    if arms is None or losses is None or losses.empty:
        return None
    ours, best = (paper.ablation()[name].gain or 0.0 for name in names)
    gain, best_gain = (losses[view.baseline] - losses[arm] for arm in arms)
    share = paper.text().share_of_best_gain
    clear = below(-best_gain, f"{arms[1]} minus {view.baseline}", NATS, best)
    kept = below(
        share * best_gain - gain, f"{share:g} of that less ours", NATS, ours - share * best
    )
    if not clear.supports:  # of a gain that is not there nothing is a share
        return Judged((Check(clear.words, False, power=clear.power),))
    return Judged((kept,))


def half_at_base(view: View) -> Judged | None:
    """Arms with fewer than half of their layers at the base end above the main arm."""
    half = paper.text().preserved_layers
    if view.main is None or view.share_at_base(view.main) < half:
        return None
    short = [
        arm for arm in view.others if 0 < view.share_at_base(arm) < half and not view.changes(arm)
    ]
    return together([check for arm in short for check in less(view, view.main, arm)])


def order(view: View) -> Judged | None:
    """The main arm ends below its own heads back to front."""
    if view.main is None:
        return None
    turned = _with_heads(view, reverse(view.schedule(view.main)))
    return together([check for arm in turned[:1] for check in less(view, view.main, arm)])


def more_than_number(view: View) -> Judged | None:
    """The main arm ends below uniform arms of its mean head count, on the line between two."""
    if view.main is None:
        return None
    mean = view.schedule(view.main).mean_heads
    counts = {view.schedule(arm).heads[0]: arm for arm in uniforms(view)}
    fewer = max((n for n in counts if n <= mean), default=None)
    more = min((n for n in counts if n >= mean), default=None)
    if fewer is None or more is None:
        return None
    weight = (mean - fewer) / (more - fewer) if more > fewer else 0.0
    wide = view.scalar(FINAL_LOSS)
    line = (1 - weight) * wide[counts[fewer]] + weight * wide[counts[more]]
    found = (wide[view.main] - line).dropna()
    who = f"{view.main} less the line from {counts[fewer]} to {counts[more]} at {mean:.2f} heads"
    return together([below(found, who, NATS, view.facts.effect)] if len(found) else [])


def uniforms(view: View) -> list[str]:
    """Arms with one head count in all layers that change nothing else."""
    return [arm for arm in view.arms if uniform(view, arm) and not view.changes(arm)]


def uniform(view: View, arm: str) -> bool:
    return len(set(view.schedule(arm).heads)) == 1


def rotary(view: View) -> Judged | None:
    """With the base width's frequencies in every head, the main arm still ends lower."""
    tiled = [
        arm
        for arm in view.others
        if view.main is not None
        and view.schedule(arm) == view.schedule(view.main)
        and view.changes(arm) == {"model.rope_frequencies": "tiled"}
    ]
    return together([check for arm in tiled[:1] for check in less(view, arm, view.baseline)])


def best_of_family(view: View) -> Judged | None:
    """No progressive schedule of the grid that was trained to the end is lower by a margin."""
    family = [
        arm
        for arm in view.others
        if arm != view.main
        and not view.changes(arm)
        and (heads := view.schedule(arm).heads) == tuple(sorted(heads))
        and heads[-1] == view.h_base
    ]
    if view.main is None or len(family) < 2:
        return None
    checks = []
    for arm in family:
        found = view.pairs(FINAL_LOSS, arm, view.main)
        if len(found):
            who = f"{arm} minus {view.main}"
            checks.append(not_below(found, GAP_MARGIN, who, NATS, places=4))
    return together(checks, wanted=2)


# -- over training ---------------------------------------------------------------------------------


def gap_persists(view: View) -> Judged | None:
    """Below the baseline after warmup: on average, and at every validation."""
    gaps = view.paired_series(VAL_LOSS, "step", view.main or "")
    if gaps.empty or view.main_contrast is None or not view.main_contrast.seeds:
        return None
    gaps = gaps[list(view.main_contrast.seeds)]  # trained to the end in both arms
    late = gaps[gaps.index.to_numpy(float) > view.recipe.warmup_steps]
    if late.empty:
        return None
    mean = below(late.mean(axis=0), f"{view.main}, mean after warmup", NATS, stated_gap(view))
    rows = late.to_numpy(float)
    lower = int((rows.mean(axis=1) < 0).sum())
    # One band for all of them: each interval is as much wider as there are validations.
    worst = float(np.fmin.reduce([beyond(row, 0.0) for row in rows]))
    words = f"at {lower} of {len(rows)} validations its mean is below 0"
    return Judged((mean, Check(words, lower == len(rows), min(len(rows) * worst, 1.0), mean.power)))


def earlier(view: View) -> Judged | None:
    """The main arm reaches the loss at which the baseline ends with fewer tokens."""
    reach = view.main_contrast.reach if view.main_contrast else ()
    if not reach:
        return None
    saved = [one.saved for one in reach if one.saved is not None]
    never = len(reach) - len(saved)
    if not saved:
        words = f"{view.main} never reaches it, in {never} seeds"
        return Judged((Check(words, False, against=0.0 if never > 1 else 1.0),))
    values = [-100 * share for share in saved]
    found = below(values, f"{view.main} needs", "% tokens", EARLIER, places=1)
    if not never:
        return Judged((found,))
    words = f"{found.words}; {never} of {len(reach)} seeds never get there"
    return Judged((Check(words, False, power=found.power),))


def _large_gaps(view: View) -> tuple[np.ndarray, ...] | None:
    """The gap of each seed at 1 and at 10 billion tokens and at the end."""
    known = paper.text()
    gaps = view.paired_series(VAL_LOSS, "step", view.main or "")
    if gaps.empty or view.main_contrast is None or not view.main_contrast.seeds:
        return None
    gaps = gaps[list(view.main_contrast.seeds)]
    tokens = gaps.index.to_numpy(float) * view.batch_tokens
    if tokens[-1] <= known.widening_to:
        return None
    at = [int(np.argmin(np.abs(tokens - t))) for t in (known.widening_from, known.widening_to)]
    return tuple(gaps.iloc[place].to_numpy(float) for place in (*at, -1))


def widens_then_stays(view: View) -> Judged | None:
    """Wider at 10 billion tokens than at 1 billion, then level and near -0.008."""
    found = _large_gaps(view)
    if found is None:
        return None
    first, middle, last = found
    level = equal(last - middle, GAP_MARGIN, "from there to the end", NATS)
    plateau = paper.text().plateau
    return Judged((
        below(middle - first, "from 1 to 10 billion tokens", NATS, GAP_MARGIN),
        Check(level.words, level.supports, power=level.power),
        equal(last - plateau, GAP_MARGIN, f"at the end minus {signed(plateau, 3)}", NATS),
    ))  # fmt: skip


def spread_contracts(view: View) -> Judged | None:
    """Seeds differ less in their gap at the end than at 1 billion tokens (Pitman and Morgan)."""
    found = _large_gaps(view)
    if found is None or len(found[0]) < 3:
        return None
    early, _, last = found
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


# -- speed -----------------------------------------------------------------------------------------


def _change(found: Ratio, able: str) -> str:
    """A ratio of rates in percent, with its interval."""
    mean, ends = percent(found)
    return f"{signed(mean, 2)} % ({span(ends.low, ends.high, len(found.ratios), 2)}{able})"


def _equally_fast(arm: str, found: Ratio) -> Check:
    logs = np.log(found.ratios)
    margin = log1p(PARITY_MARGIN)
    check = equal(logs, margin, arm, "")
    power = margin_power(margin, len(logs), paired(logs).sd)
    able = "" if len(logs) < 2 else f"; power {power:.2f} for equal ones within 1 %"
    return Check(f"{arm}: {_change(found, able)}", check.supports, check.against, power)


def equal_rate(view: View) -> Judged | None:
    """The main arm is as fast as the baseline, within 1 %."""
    row = view.main_contrast
    if row is None or row.throughput is None or view.main is None:
        return None
    return Judged((_equally_fast(view.main, row.throughput),))


def level_rates(view: View) -> Judged | None:
    """Configs 1 to 4 and 6 are each as fast as the baseline, within 1 %."""
    checks = []
    for name in LEVEL:
        for arm in arms_of(view, [name]) or ():
            if arm != view.baseline and (found := view.compared[arm].throughput):
                checks.append(_equally_fast(arm, found))
    return together(checks, wanted=len(LEVEL))


def widest_start_is_slow(view: View) -> Judged | None:
    """Arms whose first heads are wider than 256 are slower than the baseline."""
    checks = []
    for arm in view.others:
        found, row = view.compared[arm].throughput, view.paper_ablation(arm)
        if found is None or view.d_model // view.schedule(arm).heads[0] <= FLASH_LIMIT:
            continue
        printed = row.throughput_change if row else None
        stated = printed or -100 * PARITY_MARGIN
        logs = np.log(found.ratios)
        power = power_of(log1p(stated / 100), len(logs), paired(logs).sd)
        able = "" if len(logs) < 2 else f"; power {power:.2f} for {signed(stated, 1)} %"
        words = f"{arm}: {_change(found, able)}"
        checks.append(Check(words, found.high < 1, beyond(logs, 0.0), power))
    return together(checks)


def no_overhead(view: View) -> Judged | None:
    """Reading a prompt and decoding are each as fast as the baseline's, or at most 1 % slower."""
    checks, margin = [], -log(1 - PARITY_MARGIN)
    for kind in INFERENCE:
        if view.main and (found := view.inference_ratio(view.main, kind)):
            check = not_below(np.log(found.ratios), margin, kind, "")
            able = "" if len(found.ratios) < 2 else f"; power {check.power:.2f} for equal ones"
            words = f"{kind}: {_change(found, able)}"
            checks.append(Check(words, check.supports, check.against, check.power))
    return together(checks, wanted=len(INFERENCE))


# -- benchmarks ------------------------------------------------------------------------------------


def _scored(view: View, task: str) -> np.ndarray | None:
    """Main arm minus baseline on a benchmark, by seed, as tables show it."""
    shown = dict(view.tasks())
    for one in view.main_contrast.benchmarks if view.main_contrast else ():
        if one.task == task and shown.get(task) == one.metric:
            return np.array(one.difference.differences) * factor(one.metric)
    return None


def no_worse(view: View) -> Judged | None:
    """On each benchmark no worse than the baseline by a point."""
    found = {task: _scored(view, task) for task in TASKS}
    checks = [
        not_below(points, TASK_MARGIN, task, "points")
        for task, points in found.items()
        if points is not None
    ]
    return together(checks, wanted=len(TASKS))


def blimp_no_worse(view: View) -> Judged | None:
    """On BLiMP no worse than the baseline by a point."""
    points = _scored(view, BLIMP)
    return together([] if points is None else [not_below(points, TASK_MARGIN, BLIMP, "points")])


def lower_perplexity(view: View) -> Judged | None:
    """On WikiText the perplexity is lower."""
    found = _scored(view, WIKITEXT)
    if found is None:
        return None
    scale = view.scale
    printed = [scale.benchmarks[arm][WIKITEXT] for arm in ("prism", "baseline")] if scale else []
    effect = printed[0] - printed[1] if printed else 1.0
    return Judged((below(found, WIKITEXT, "per word", effect, places=2),))
