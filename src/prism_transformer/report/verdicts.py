"""Rules that turn a study's numbers into a verdict on a claim of the paper.

Each takes a view and gives a verdict with its numbers, or nothing where the view has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from prism_transformer import paper
from prism_transformer.plots.profiles import sign_changes
from prism_transformer.report import tables
from prism_transformer.report.benchmarks import factor
from prism_transformer.report.figures import paired_rows
from prism_transformer.report.table import signed
from prism_transformer.report.views import View
from prism_transformer.study.compare import PARITY_MARGIN
from prism_transformer.study.statistics import Paired, Ratio, equivalence, paired

TASKS = ("piqa", "hellaswag", "arc_easy", "winogrande")  # those that the paper's abstract names
TASK_MARGIN = 1.0  # accuracy points
DISTANCE_MARGIN = 0.05  # of the baseline's attention distance
BOUNDARY_MARGIN = 1.0  # layers
GAP_MARGIN = 0.002  # nats per token
FLASH_WIDTH = 256  # the widest head that flash attention takes


class Verdict(StrEnum):
    """What the measurements say of a claim."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    NOISE = "within noise"
    UNMEASURED = "not measured"


@dataclass(frozen=True)
class Judged:
    """One view's word on a claim."""

    verdict: Verdict
    words: str
    whole: bool = True
    """whether the view has all that the claim speaks of"""


def strictest(verdicts: Sequence[Verdict]) -> Verdict:
    """Contradicted if any is, else not measured, else within noise, else supported."""
    for verdict in (Verdict.CONTRADICTED, Verdict.UNMEASURED, Verdict.NOISE):
        if verdict in verdicts:
            return verdict
    return Verdict.SUPPORTED if verdicts else Verdict.UNMEASURED


def below_zero(test: Paired) -> Verdict:
    """Supported when the whole interval is below 0, contradicted when it is above."""
    if test.high < 0:
        return Verdict.SUPPORTED
    return Verdict.CONTRADICTED if test.low > 0 else Verdict.NOISE


def told(test: Paired, unit: str, places: int = 4) -> str:
    """A paired test in words."""
    if test.n == 1:
        return f"{signed(test.mean, places)} {unit} (1 pair: no interval)"
    return (
        f"{signed(test.mean, places)} {unit} (95 % {signed(test.low, places)} to "
        f"{signed(test.high, places)}, {test.n} pairs)"
    )


def _contrasts(view: View, pairs: Sequence[tuple[str, str]]) -> Judged | None:
    """Whether in every pair of the paper's ablation the first ends lower than the second."""
    rows = paper.ablation()
    verdicts, words = [], []
    for names in pairs:
        found = [arm_of(view, rows[name]) for name in names]
        if found[0] is None or found[1] is None:
            continue
        differences = view.pairs("final_val_loss", found[0], found[1])
        if len(differences):
            test = paired(differences)
            verdicts.append(below_zero(test))
            words.append(f"{found[0]} less {found[1]}: {told(test, 'nats/token')}")
    if not verdicts:
        return None
    return Judged(strictest(verdicts), "; ".join(words), whole=len(verdicts) == len(pairs))


def arm_of(view: View, row: paper.Ablation) -> str | None:
    """The arm of a study that has the heads of a row of the paper's ablation."""
    return next((arm for arm in view.arms if view.is_schedule(arm, row.schedule)), None)


# -- loss ----------------------------------------------------------------------------------------


def lower_loss(view: View) -> Judged | None:
    """The main arm ends below the baseline."""
    test = view.row(view.main).difference if view.main else None
    if test is None:
        return None
    return Judged(below_zero(test), f"{view.main}: {told(test, 'nats/token')}")


def wider_start(view: View) -> Judged | None:
    """Starts of 3, 4 and 6 heads end in this order."""
    return _contrasts(view, [("config-6", "config-3"), ("config-3", "config-2")])


def smooth_over_abrupt(view: View) -> Judged | None:
    """Phases of two layers end below phases of one, from the same start."""
    return _contrasts(view, [("small", "config-1"), ("config-7", "config-5")])


def share_of_best(view: View) -> Judged | None:
    """A start of three heads keeps more than 95 % of what two heads gain."""
    rows = paper.ablation()
    ours, best = arm_of(view, rows["small"]), arm_of(view, rows["config-7"])
    if ours is None or best is None:
        return None
    losses = view.scalar("final_val_loss")[[view.baseline, ours, best]].dropna()
    if losses.empty:
        return None
    gains = losses.rsub(losses[view.baseline], axis="index")
    share = paper.text().share_of_best_gain
    test = paired(share * gains[best] - gains[ours])
    of_best = paired(gains[best])
    if not of_best.low > 0:
        words = f"{best} gains {told(of_best, 'nats/token')}: nothing that is clear"
        return Judged(Verdict.NOISE, words)
    mean = gains[ours].mean() / gains[best].mean()
    words = f"{100 * mean:.0f} % of the gain of {best}; {share:g} of it less ours: "
    return Judged(below_zero(test), words + told(test, "nats/token"))


def half_at_base(view: View) -> Judged | None:
    """Arms with fewer than half of their layers at the base end above the main arm."""
    half = paper.text().preserved_layers
    if view.main is None or tables.share_at_base(view, view.main) < half:
        return None
    short = [
        arm
        for arm in view.others
        if 0 < tables.share_at_base(view, arm) < half and not view.changes(arm)
    ]
    verdicts, words = [], []
    for arm in short:
        differences = view.pairs("final_val_loss", view.main, arm)
        if len(differences):
            test = paired(differences)
            verdicts.append(below_zero(test))
            words.append(f"{view.main} less {arm}: {told(test, 'nats/token')}")
    return Judged(strictest(verdicts), "; ".join(words)) if verdicts else None


def with_shared_keys(view: View) -> Judged | None:
    """The main arm ends below the baseline where queries share keys and values."""
    if view.recipe["model"].get("queries_per_kv", 1) == 1:
        return None
    return lower_loss(view)


# -- over training -------------------------------------------------------------------------------


def gap_persists(view: View) -> Judged | None:
    """Below the baseline at every validation after warmup."""
    gap = view.row(view.main).gap if view.main else None
    if gap is None:
        return None
    warm = view.recipe["optim"]["warmup_fraction"] * view.tokens
    late = [place for place, tokens in enumerate(gap.tokens) if tokens > max(warm, 0)]
    if not late:
        return None
    clear = sum(gap.high[place] < 0 for place in late)
    worse = [gap.low[place] > 0 for place in late]
    lower = sum(gap.mean[place] < 0 for place in late)
    verdict = Verdict.SUPPORTED if clear == len(late) else Verdict.NOISE
    words = (
        f"{view.main}: of {len(late)} validations after warmup the mean gap is below 0 at {lower}; "
        f"the 95 % interval is below 0 at {clear} and above at {sum(worse)}"
    )
    # Of many intervals one in forty lies above 0 by chance, so one alone says little.
    turned = any(both == (True, True) for both in pairwise(worse))
    return Judged(Verdict.CONTRADICTED if turned else verdict, words)


def earlier(view: View) -> Judged | None:
    """The main arm reaches the loss at which the baseline ends with fewer tokens."""
    reach = view.row(view.main).reach if view.main else ()
    if not reach:
        return None
    saved = [one.saved for one in reach if one.saved is not None]
    never = len(reach) - len(saved)
    if not saved:
        verdict = Verdict.CONTRADICTED if never > 1 else Verdict.NOISE
        return Judged(verdict, f"{view.main} never reaches it, in {never} seeds")
    test = paired([-100 * share for share in saved])
    verdict = Verdict.NOISE if never else below_zero(test)
    also = f"; {never} of {len(reach)} seeds never get there" if never else ""
    return Judged(verdict, f"{view.main} needs {told(test, '% tokens', 1)}{also}")


def widens_then_stays(view: View) -> Judged | None:
    """Wider at 10 billion tokens than at 1 billion, then level and near -0.008."""
    known = paper.text()
    found = view.series("val_loss", "step")
    gaps = paired_rows(found, view.baseline, view.main or "")
    if gaps.empty or view.main is None or not view.row(view.main).seeds:
        return None
    gaps = gaps[list(view.row(view.main).seeds)]  # trained to the end in both arms
    tokens = gaps.index.to_numpy(float) * view.batch_tokens
    if tokens[-1] <= known.widening_to:
        return None
    at = [int(np.argmin(np.abs(tokens - t))) for t in (known.widening_from, known.widening_to)]
    first, middle, last = (gaps.iloc[place].to_numpy(float) for place in (*at, -1))
    widening = paired(middle - first)
    level = equivalence(last - middle, GAP_MARGIN)
    near = equivalence(last - known.plateau, GAP_MARGIN)
    far = paired(last - known.plateau)
    off = far.low > GAP_MARGIN or far.high < -GAP_MARGIN
    verdicts = [
        below_zero(widening),
        Verdict.SUPPORTED if level.equal else Verdict.NOISE,
        Verdict.SUPPORTED if near.equal else Verdict.CONTRADICTED if off else Verdict.NOISE,
    ]
    words = (
        f"from 1 to 10 billion tokens {told(widening, 'nats/token')}; from there to the end "
        f"{signed(level.mean)} (equal within {GAP_MARGIN}: p {level.p:.2g}); at the end "
        f"{told(paired(last), 'nats/token')}"
    )
    return Judged(strictest(verdicts), words)


# -- speed ---------------------------------------------------------------------------------------


def equal_rate(view: View) -> Judged | None:
    """The main arm is as fast as the baseline, within 1 %."""
    row = view.row(view.main) if view.main else None
    if row is None or row.throughput is None or row.parity is None:
        return None
    found = row.throughput
    outside = found.high < 1 / (1 + PARITY_MARGIN) or found.low > 1 + PARITY_MARGIN
    verdict = Verdict.CONTRADICTED if outside else Verdict.NOISE
    words = (
        f"{view.main}: {_change(found)}; equal within {100 * PARITY_MARGIN:g} %: "
        f"{'p ' + format(row.parity.p, '.2g') if len(found.ratios) > 1 else 'nobody can know'}"
    )
    return Judged(Verdict.SUPPORTED if row.parity.equal else verdict, words)


def _change(found: Ratio) -> str:
    """A ratio of rates in percent, with its interval."""
    mean, low, high = (signed(value, 2) for value in tables.percent(found))
    if len(found.ratios) == 1:
        return f"{mean} % (1 pair: no interval)"
    return f"{mean} % (95 % {low} to {high}, {len(found.ratios)} pairs)"


def widest_start_is_slow(view: View) -> Judged | None:
    """Arms whose first heads are wider than 256 are slower than the baseline."""
    verdicts, words = [], []
    for arm in view.others:
        found = view.row(arm).throughput
        if view.d_model // view.schedule(arm).heads[0] <= FLASH_WIDTH or found is None:
            continue
        slower = Verdict.SUPPORTED if found.high < 1 else Verdict.NOISE
        verdicts.append(Verdict.CONTRADICTED if found.low > 1 else slower)
        words.append(f"{arm}: {_change(found)}")
    return Judged(strictest(verdicts), "; ".join(words)) if verdicts else None


def no_overhead(view: View) -> Judged | None:
    """Reading a prompt and decoding are each as fast as the baseline's, or at most 1 % slower."""
    verdicts, words = [], []
    for kind in tables.INFERENCE:
        found = tables.inference_ratio(view, view.main, kind) if view.main else None
        if found is None:
            continue
        fine, slow = found.low > 1 - PARITY_MARGIN, found.high < 1 - PARITY_MARGIN
        verdict = Verdict.CONTRADICTED if slow else Verdict.NOISE
        verdicts.append(Verdict.SUPPORTED if fine else verdict)
        words.append(f"{kind}: {_change(found)}")
    return Judged(strictest(verdicts), "; ".join(words)) if verdicts else None


# -- benchmarks ----------------------------------------------------------------------------------


def no_worse(view: View) -> Judged | None:
    """On each benchmark equal within a point, or better."""
    if view.main is None:
        return None
    shown = dict(view.tasks())
    verdicts, words = [], []
    for one in view.row(view.main).benchmarks:
        if one.task not in TASKS or shown.get(one.task) != one.metric:
            continue
        points = np.array(one.difference.differences) * factor(one.metric)
        test, equal = paired(points), equivalence(points, TASK_MARGIN)
        fine = equal.equal or test.low > 0
        worse = test.high < -TASK_MARGIN
        verdict = Verdict.CONTRADICTED if worse else Verdict.NOISE
        verdicts.append(Verdict.SUPPORTED if fine else verdict)
        words.append(f"{one.task}: {told(test, 'points', 2)}")
    if not verdicts:
        return None
    return Judged(strictest(verdicts), "; ".join(words), whole=len(verdicts) == len(TASKS))


# -- attention -----------------------------------------------------------------------------------


def _gap_by_layer(view: View) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Distance, main arm less baseline: seeds x layers; the baseline's; layers below the base."""
    found = view.series("attention.distance", "index")
    gaps = paired_rows(found, view.baseline, view.main or "")
    if gaps.empty or view.main is None:
        return None
    n_ramp, n_layers = tables.layers_below_base(view, view.main), len(view.schedule(view.main))
    if not 0 < n_ramp < n_layers or len(gaps) != n_layers:
        return None
    base = found[view.baseline][gaps.columns]
    return gaps.to_numpy(float).T, base.to_numpy(float).T, n_ramp


def _layers(first: int, end: int) -> str:
    return f"layer {first}" if end - first == 1 else f"layers {first} to {end - 1}"


def early_local(view: View) -> Judged | None:
    """Layers with fewer heads than the base attend nearer than the baseline's."""
    found = _gap_by_layer(view)
    if found is None:
        return None
    gaps, _, n_ramp = found
    test = paired(gaps[:, :n_ramp].mean(axis=1))
    return Judged(below_zero(test), f"{_layers(0, n_ramp)}: {told(test, 'tokens', 2)}")


def middle_global(view: View) -> Judged | None:
    """The first third of the layers at the base attends farther than the baseline's."""
    found = _gap_by_layer(view)
    if found is None:
        return None
    gaps, _, n_ramp = found
    last = n_ramp + max(1, (gaps.shape[1] - n_ramp) // 3)
    test = paired(gaps[:, n_ramp:last].mean(axis=1))
    flipped = paired([-value for value in test.differences])
    return Judged(below_zero(flipped), f"{_layers(n_ramp, last)}: {told(test, 'tokens', 2)}")


def late_equal(view: View) -> Judged | None:
    """The last quarter of the layers attends as far as the baseline's, within 5 %."""
    found = _gap_by_layer(view)
    if found is None:
        return None
    gaps, base, _ = found
    first = gaps.shape[1] - max(1, gaps.shape[1] // 4)
    share = 100 * gaps[:, first:].mean(axis=1) / base[:, first:].mean(axis=1)
    test, equal = paired(share), equivalence(share, 100 * DISTANCE_MARGIN)
    apart = test.low > 100 * DISTANCE_MARGIN or test.high < -100 * DISTANCE_MARGIN
    verdict = Verdict.CONTRADICTED if apart else Verdict.NOISE
    words = f"{_layers(first, gaps.shape[1])}: {told(test, '%', 1)}"
    return Judged(Verdict.SUPPORTED if equal.equal else verdict, words)


def turns_at_boundary(view: View) -> Judged | None:
    """The difference turns from nearer to farther within a layer of where the ramp completes."""
    found = _gap_by_layer(view)
    if found is None:
        return None
    gaps, _, n_ramp = found
    boundary = n_ramp - 0.5
    # Noise crosses zero anywhere; the least running sum has the nearer layers before it and the
    # farther ones behind it, and there is one.
    sums = gaps.cumsum(axis=1)
    turned = (sums.min(axis=1) < 0) & (sums.argmin(axis=1) < gaps.shape[1] - 1)
    if not turned.any():
        words = f"no seed of {len(gaps)} turns from nearer to farther"
        return Judged(Verdict.CONTRADICTED, words)
    off = sums.argmin(axis=1)[turned] + 0.5 - boundary
    test, equal = paired(off), equivalence(off, BOUNDARY_MARGIN, grain=1.0)
    away = test.low > BOUNDARY_MARGIN or test.high < -BOUNDARY_MARGIN
    verdict = Verdict.SUPPORTED if equal.equal and turned.all() else Verdict.NOISE
    crossings = np.mean([len(sign_changes(gap)) for gap in gaps])
    words = (
        f"the ramp completes at {boundary:g}; {turned.sum()} of {len(gaps)} seeds turn, "
        f"{told(test, 'layers from there', 1)}; {crossings:.1f} changes of sign a seed"
    )
    return Judged(Verdict.CONTRADICTED if away else verdict, words)
