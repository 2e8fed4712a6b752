"""The claims of the paper, each with its rule, and what the studies at hand say of it.

A claim names its scales and, where speed is meant, its hardware. Only studies of just that decide;
all others stand beside it, labelled. The words of all claims are in ``claims.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby, product

import numpy as np

from prism_transformer.core.table import signed
from prism_transformer.models import cost
from prism_transformer.recipes.files import load_recipe
from prism_transformer.reporting import layer_rules, rules
from prism_transformer.reporting.verdicts import Check, Judged, Verdict, below, fact, verdict_of
from prism_transformer.reporting.views import View
from prism_transformer.schedules.paper import SCALES
from prism_transformer.study.metrics import FINAL_LOSS

H100 = "8 x H100"
RATE = "optim.lr"


@dataclass(frozen=True)
class Evidence:
    """What one study, or a closed form, says of a claim; it decides unless ``why_not`` is given."""

    source: str
    judged: Judged
    why_not: str = ""
    scale: str = ""
    """of the claim, where it decides"""

    @property
    def decides(self) -> bool:
        return not self.why_not

    @property
    def verdict(self) -> Verdict:
        return self.judged.verdict

    @property
    def words(self) -> str:
        return self.judged.words


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that a measurement can bear out or not."""

    key: str
    text: str
    where: str
    rule: str
    scales: Sequence[str] = SCALES
    fill: str = "prism study run small; prism study run medium; prism study run large"
    """the command whose result decides it"""
    hardware: str = "any"
    of_main: bool = True
    """whether it is about Prism as the paper has it, rather than about arms of an ablation"""


@dataclass(frozen=True)
class Result:
    """A claim and its verdict."""

    claim: Claim
    verdict: Verdict
    evidence: Sequence[Evidence]
    missing: Sequence[str] = ()
    """scales of the claim that nothing decides"""

    @property
    def deciding(self) -> list[Evidence]:
        return [one for one in self.evidence if one.decides]

    @property
    def beside(self) -> list[Evidence]:
        return [one for one in self.evidence if not one.decides]


def judge_claims(views: Sequence[View]) -> list[Result]:
    """Every claim with its verdict."""
    return [_judge(claim, views) for claim in CLAIMS]


def counts(results: Sequence[Result]) -> dict[str, int]:
    """How many claims have each verdict, in the order of the verdicts."""
    return {verdict.value: sum(one.verdict is verdict for one in results) for verdict in Verdict}


def _judge(claim: Claim, views: Sequence[View]) -> Result:
    if claim.key in ACROSS:
        evidence = ACROSS[claim.key](views)
    else:
        judged = ((view, JUDGES[claim.key](view)) for view in views)
        evidence = [_evidence(claim, view, found) for view, found in judged if found]
    deciding = [one for one in evidence if one.decides]
    verdict = verdict_of([check for one in deciding for check in one.judged.checks])
    missing = [scale for scale in claim.scales if scale not in {one.scale for one in deciding}]
    if missing and verdict is not Verdict.CONTRADICTED:
        verdict = Verdict.UNMEASURED
    return Result(claim, verdict, evidence, missing)


def _evidence(claim: Claim, view: View, judged: Judged) -> Evidence:
    """A study's word on a claim, and why it cannot decide it, where that is so."""
    scale = view.scale.name if view.scale else ""
    why_not = "" if judged.whole else "not all arms or tasks of the claim"
    if scale not in claim.scales:
        why_not = "another scale"
    elif view.paper_arm(view.baseline) != "baseline":
        why_not = "another baseline"
    elif claim.of_main and view.paper_arm(view.main or view.baseline) != "prism":
        why_not = "no arm has the paper's schedule"
    elif claim.hardware == H100 and not view.on_papers_hardware:
        why_not = "other hardware"
    elif claim.hardware == H100 and not view.in_papers_precision:
        why_not = "another precision"
    elif view.facts.looks and view.collected.settled < view.facts.looks.seeds[-1]:
        why_not = "a look before the last"
    return Evidence(view.name, judged, why_not, scale)


# -- claims that are of no single study ----------------------------------------------------------


def same_counts(views: Sequence[View]) -> list[Evidence]:
    """Parameters and FLOPs of both arms, in closed form at the paper's scales."""
    found = []
    for scale in SCALES:
        base, prism = (load_recipe(f"{arm}-{scale}").model for arm in ("baseline", "prism"))
        sizes = [cost.parameters(config).total for config in (base, prism)]
        flops = [
            cost.forward_flops(config, config.seq_len).total
            + cost.backward_flops(config, config.seq_len).total
            for config in (base, prism)
        ]
        same = sizes[0] == sizes[1] and flops[0] == flops[1]
        words = (
            f"{sizes[0]:,} and {sizes[1]:,} parameters, {flops[0]:,} and {flops[1]:,} FLOPs per "
            "token, in closed form; tests and prism neutrality hold it against built models"
        )
        found.append(Evidence(scale, fact(words, same), scale=scale))
    return found + [one for view in views if (one := _same_tensors(view))]


def _same_tensors(view: View) -> Evidence | None:
    """Arms of one seed that began with the same bytes have the same tensors."""
    hashes: dict[int, set[str]] = {}
    arms = set()
    for run in view.runs:
        if run.hashes and not view.changes(run.arm):
            hashes.setdefault(run.seed, set()).add(run.hashes.initial_weights)
            arms.add(run.arm)
    if len(arms) < 2:
        return None
    same = all(len(each) == 1 for each in hashes.values())
    words = (
        f"initial weights of {len(arms)} arms are "
        f"{'equal to the last bit' if same else 'not equal'} in {len(hashes)} seeds"
    )
    return Evidence(view.name, fact(words, same), why_not="tensors, not FLOPs")


def gap_keeps(views: Sequence[View]) -> list[Evidence]:
    """The gain at the large scale is not smaller than at the small one, for each such pair."""
    found = []
    for small, large in product(*(_of_scale(views, name) for name in ("small", "large"))):
        gains = [-np.array(_gaps(view)) for view in (small, large)]
        source, judged = f"{small.name} to {large.name}", Judged((_keeps(*gains),))
        found.append(Evidence(source, judged, scale="large"))
        found.append(Evidence(source, Judged((Check("the same", True),)), scale="small"))
    return found


def _keeps(small: np.ndarray, large: np.ndarray) -> Check:
    """Whether the gain at large is no smaller than at small by a margin: Welch's t test."""
    words = f"gain {signed(small.mean())} and {signed(large.mean())}"
    if min(len(small), len(large)) < 2:
        return Check(words, False)
    from scipy import stats  # which takes a second, and few reports have such a pair

    margin = rules.GAP_MARGIN
    test = stats.ttest_ind(large, small, equal_var=False)
    span = test.confidence_interval(0.95)
    error = (span.high - span.low) / 2 / stats.t.ppf(0.975, test.df)
    against = float(test.pvalue) if large.mean() < small.mean() else 1.0
    critical = stats.t.ppf(0.975, test.df)
    power = float(stats.nct.sf(critical, test.df, margin / error)) if error > 0 else 1.0
    words += (
        f"; large less small 95 % {signed(span.low)} to {signed(span.high)} (Welch; power "
        f"{power:.2f} for equal ones within {margin:g})"
    )
    # Wholly between the margin and 0, the gain does narrow.
    return Check(words, span.high >= 0 and span.low > -margin, against, power)


def _of_scale(views: Sequence[View], name: str) -> list[View]:
    """Studies of the paper's two arms at one scale that have a pair of runs."""
    return [
        view
        for view in views
        if view.scale is not None
        and view.scale.name == name
        and view.paper_arm(view.baseline) == "baseline"
        and view.paper_arm(view.main or view.baseline) == "prism"
        and _gaps(view)
    ]


def _gaps(view: View) -> tuple[float, ...]:
    test = view.main_contrast.difference if view.main_contrast else None
    return test.differences if test else ()


def shared_keys(views: Sequence[View]) -> list[Evidence]:
    """Studies with grouped queries; those of the small model in all else decide."""
    small = load_recipe("baseline-small")
    budget = (small.train.tokens, small.train.batch_tokens)
    found = []
    for view in views:
        judged = rules.lower_loss(view) if view.recipe.model.queries_per_kv > 1 else None
        if judged is None:
            continue
        recipe = view.collected.facts.recipe
        alike = recipe.model.model_copy(update={"queries_per_kv": 1}) == small.model
        alike = alike and (recipe.train.tokens, recipe.train.batch_tokens) == budget
        heads = view.schedule(view.main or view.baseline).heads
        why_not = "" if alike and not view.swept else "another scale"
        if not heads[0] < heads[-1] == view.h_base:
            why_not = "no progressive schedule"
        found.append(Evidence(view.name, judged, why_not, "small"))
    return found


def own_rates(views: Sequence[View]) -> list[Evidence]:
    """The main arm against every uniform arm, each at the learning rate that it ends lowest with.

    From the points of a sweep of learning rates, or arms that were given their own.
    """
    found = []
    for _, group in groupby(views, key=lambda view: id(view.collected)):
        points = list(group)
        rates = [view for view in points if set(view.swept) == {RATE}]
        view = points[0]
        tuned = all(set(view.changes(arm)) == {RATE} for arm in view.arms)
        if view.main is None or (len(rates) < 2 and not tuned):
            continue
        tested = list(_at_their_best(rates if len(rates) > 1 else points))
        if not tested:
            continue
        scale = view.facts.scale or ""
        why_not = "" if scale == "small" else "another scale"
        if any(at_edge for _, at_edge in tested):
            why_not = why_not or "a best rate is at the edge of the grid"
        judged = Judged(tuple(check for check, _ in tested))
        found.append(Evidence(view.facts.name, judged, why_not, scale))
    return found


def _at_their_best(points: Sequence[View]) -> Iterator[tuple[Check, bool]]:
    """The main arm less each uniform one, seed by seed, and whether a best rate is an edge."""
    view = points[0]
    best = {}
    for arm in view.arms:
        losses = [point.scalar(FINAL_LOSS)[arm] for point in points]
        means = [float(each.mean()) if each.notna().all() else np.inf for each in losses]
        place = int(np.argmin(means))
        if np.isfinite(means[place]):
            best[arm] = (place, losses[place])
    for arm in (arm for arm in view.arms if arm != view.main and rules.uniform(view, arm)):
        if arm not in best or view.main not in best:
            continue
        ends = {best[each][0] for each in (arm, view.main)} & {0, len(points) - 1}
        rates = [points[best[each][0]].rate(each) for each in (view.main, arm)]
        who = f"{view.main} at {rates[0]:g} minus {arm} at {rates[1]:g}"
        found = (best[view.main][1] - best[arm][1]).dropna()
        yield below(found, who, rules.NATS, view.facts.effect), len(points) > 1 and bool(ends)


# How one study is judged, and how all of them together, by the key of the claim.
JUDGES: dict[str, Callable[[View], Judged | None]] = {
    "lower-loss": rules.lower_loss,
    "order": rules.order,
    "number": rules.more_than_number,
    "rotary": rules.rotary,
    "rate": rules.equal_rate,
    "two-heads": rules.widest_start_is_slow,
    "level-rates": rules.level_rates,
    "wider-start": rules.wider_start,
    "smooth": rules.smooth_over_abrupt,
    "early-local": layer_rules.early_local,
    "middle-global": layer_rules.middle_global,
    "late-equal": layer_rules.late_equal,
    "boundary": layer_rules.turns_at_boundary,
    "persists": rules.gap_persists,
    "earlier": rules.earlier,
    "downstream": rules.no_worse,
    "blimp": rules.blimp_no_worse,
    "wikitext": rules.lower_perplexity,
    "plateau": rules.widens_then_stays,
    "spread": rules.spread_contracts,
    "three-heads": rules.share_of_best,
    "half": rules.half_at_base,
    "grid": rules.best_of_family,
    "inference": rules.no_overhead,
}
ACROSS: dict[str, Callable[[Sequence[View]], list[Evidence]]] = {
    "neutral": same_counts,
    "scale": gap_keeps,
    "gqa": shared_keys,
    "own-rates": own_rates,
}
_TEXTS = files("prism_transformer.reporting").joinpath("claims.toml").read_text("utf-8")
CLAIMS = tuple(Claim(key, **words) for key, words in tomllib.loads(_TEXTS).items())
