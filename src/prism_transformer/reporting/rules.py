"""The rule of each claim that one study can be asked about: loss at the end, speed, benchmarks.

Each takes a view and gives what its numbers say, or nothing where it has none. Effects that a rule
wants to be able to see are the paper's own where it prints one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan, log, log1p, nan

import numpy as np

from prism_transformer.core.table import signed
from prism_transformer.reporting.verdicts import (
    Check,
    Judged,
    below,
    contrasted,
    equal,
    not_below,
    span,
    together,
)
from prism_transformer.reporting.views import INFERENCE, View, factor, percent
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules import paper
from prism_transformer.schedules.design import reverse
from prism_transformer.schedules.hardware import FLASH_LIMIT
from prism_transformer.study.compare import PARITY_MARGIN
from prism_transformer.study.metrics import ITEMS, eval_score
from prism_transformer.study.statistics import Ratio

TASKS = ("piqa", "hellaswag", "arc_easy", "winogrande")  # those that the paper's abstract names
BLIMP, WIKITEXT = "blimp", "wikitext"
TASK_MARGIN = 1.0  # accuracy points
GAP_MARGIN = 0.002  # nats per token
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
    """Whether one arm ends lower than another, where a seed has both or a run of theirs failed."""
    return lower(view, {first: 1.0, second: -1.0}, f"{first} minus {second}", effect)


def lower(
    view: View, weights: Mapping[str, float], who: str, effect: float | None = None
) -> list[Check]:
    """Whether a weighted difference of final losses is below 0."""
    found = contrasted(view.losses, weights)
    if found is not None:
        stated = view.facts.effect if effect is None else effect
        return [replace(below(found, who, NATS, stated), arms=tuple(weights))]
    failed = any(run.arm in weights for run in view.lost)
    return [Check(f"{who}: no pair", False, arms=tuple(weights))] if failed else []


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
    weights = {view.main: 1.0, view.baseline: -1.0}
    return together(lower(view, weights, view.main, stated_gap(view)))


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
    if arms is None:
        return None
    gain, best = (paper.ablation()[name].gain or 0.0 for name in names)
    share, base = paper.text().share_of_best_gain, view.baseline
    clear = less(view, arms[1], base, best)
    weights = {arms[0]: 1.0, arms[1]: -share, base: share - 1.0}
    kept = lower(view, weights, f"{share:g} of that less ours", gain - share * best)
    if not all(check.supports for check in clear):  # of a gain that is not there nothing is a share
        return together([replace(check, against=nan, arms=tuple(weights)) for check in clear])
    return together(kept)


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
    if view.main is None or uniform(view, view.main):
        return None
    mean = view.schedule(view.main).mean_heads
    counts = {view.schedule(arm).heads[0]: arm for arm in uniforms(view)}
    fewer = max((n for n in counts if n <= mean), default=None)
    more = min((n for n in counts if n >= mean), default=None)
    if fewer is None or more is None:
        return None
    weight = (mean - fewer) / (more - fewer) if more > fewer else 0.0
    line = {counts[more]: -weight, counts[fewer]: weight - 1.0}
    who = f"{view.main} less the line from {counts[fewer]} to {counts[more]} at {mean:.2f} heads"
    return together(lower(view, {view.main: 1.0} | line, who))


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
        found = contrasted(view.losses, {arm: 1.0, view.main: -1.0})
        if found is not None:
            check = not_below(found, GAP_MARGIN, f"{arm} minus {view.main}", NATS, places=4)
            checks.append(replace(check, arms=(arm, view.main)))
    return together(checks, wanted=2)


# -- speed -----------------------------------------------------------------------------------------


def _in_percent(check: Check, who: str, found: Ratio, what: str) -> Check:
    """A test of logs of rates, told as a change in percent with its interval."""
    mean, ends = percent(found)
    able = "" if isnan(check.power) else f"; power {check.power:.2f} for {what}"
    interval = span(ends.low, ends.high, len(found.ratios), 2)
    return replace(check, words=f"{who}: {signed(mean, 2)} % ({interval}{able})")


def _equally_fast(arm: str, found: Ratio) -> Check:
    check = equal(np.log(found.ratios), log1p(PARITY_MARGIN), arm, "")
    return _in_percent(check, arm, found, "equal ones within 1 %")


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
                checks.append(replace(_equally_fast(arm, found), arms=(arm, view.baseline)))
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
        check = below(np.log(found.ratios), arm, "", log1p(stated / 100))
        check = _in_percent(check, arm, found, f"{signed(stated, 1)} %")
        checks.append(replace(check, arms=(arm, view.baseline)))
    return together(checks)


def no_overhead(view: View) -> Judged | None:
    """Reading a prompt and decoding are each as fast as the baseline's, or at most 1 % slower."""
    checks, margin = [], -log(1 - PARITY_MARGIN)
    for kind in INFERENCE:
        if view.main and (found := view.inference_ratio(view.main, kind)):
            check = not_below(np.log(found.ratios), margin, kind, "")
            checks.append(_in_percent(check, kind, found, "equal ones"))
    return together(checks, wanted=len(INFERENCE))


# -- benchmarks ------------------------------------------------------------------------------------


def _scored(view: View, task: str) -> np.ndarray | None:
    """Main arm minus baseline on a benchmark, by seed, as tables show it."""
    shown = dict(view.tasks())
    for one in view.main_contrast.benchmarks if view.main_contrast else ():
        if one.task == task and shown.get(task) == one.metric:
            return np.array(one.difference.differences) * factor(one.metric)
    return None


def _kept(view: View, task: str) -> list[Check]:
    """Whether the main arm is no worse than the baseline by a point, where it was scored."""
    points = _scored(view, task)
    if points is None:
        return []
    score = eval_score(task, dict(view.tasks())[task])
    items = view.scalar(f"{score}{ITEMS}").min(axis=None)
    # Accuracies come in steps of one item, so that seeds may agree to the last digit.
    grain = 100 / items if items > 0 else 0.0
    return [not_below(points, TASK_MARGIN, task, "points", grain=grain)]


def no_worse(view: View) -> Judged | None:
    """On each benchmark no worse than the baseline by a point."""
    return together([c for task in TASKS for c in _kept(view, task)], wanted=len(TASKS))


def blimp_no_worse(view: View) -> Judged | None:
    """On BLiMP no worse than the baseline by a point."""
    return together(_kept(view, BLIMP))


def lower_perplexity(view: View) -> Judged | None:
    """On WikiText the perplexity is lower."""
    found = _scored(view, WIKITEXT)
    if found is None:
        return None
    scale = view.scale
    printed = [scale.benchmarks[arm][WIKITEXT] for arm in ("prism", "baseline")] if scale else []
    effect = printed[0] - printed[1] if printed else 1.0
    return Judged((below(found, WIKITEXT, "per word", effect, places=2),))
