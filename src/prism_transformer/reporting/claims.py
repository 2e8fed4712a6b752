"""The claims of the paper, each with its rule, and what the studies at hand say of it.

A claim names its scales and, where speed is meant, its hardware. Only studies of just that decide;
all others stand beside it, labelled. The words of all claims are in ``claims.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import product
from math import hypot, isnan, nan

from prism_transformer.core.table import number_of, signed
from prism_transformer.models import cost
from prism_transformer.recipes.files import load_recipe
from prism_transformer.reporting import curve_rules, layer_rules, rules
from prism_transformer.reporting.rate_rules import own_rates as at_own_rates
from prism_transformer.reporting.verdicts import (
    Check,
    Estimate,
    Judged,
    Verdict,
    beyond,
    contrasted,
    fact,
    told,
    verdict_of,
)
from prism_transformer.reporting.views import View
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.paper import SCALES, scales
from prism_transformer.study.contrasts import Lost
from prism_transformer.study.statistics import power_of

H100 = "8 x H100"


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
    judged, unsettled = _settled(view, judged, _lost(view, judged), view.main)
    why_not = unsettled if judged.whole else "not all arms or tasks of the claim"
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
    return Evidence(view.name, judged, why_not, scale)


def _lost(view: View, judged: Judged) -> list[Lost]:
    """Runs that failed, of the arms that a judgement is of."""
    main = (view.main or view.baseline, view.baseline)
    arms = {arm for check in judged.checks for arm in check.arms or main}
    return [run for run in view.lost if run.arm in arms]


def _settled(
    view: View, judged: Judged, lost: Sequence[Lost], ours: str | None
) -> tuple[Judged, str]:
    """What a study can say with these runs lost, and why it cannot decide as it is now.

    Pairs are of the seeds that survived. So nothing speaks for a claim where a run is lost, and
    against it only where all of them are of ``ours``, the arm that is then worse than it looks.
    """
    looks = view.facts.looks
    early = looks is not None and view.collected.settled < looks.seeds[-1]
    if lost:
        words = ", ".join(f"{run.arm} {run.how} in seed {run.seed}" for run in lost)
        checks = judged.checks
        if any(run.arm != ours for run in lost):
            checks = tuple(replace(check, against=nan) for check in checks)
        judged = replace(judged, checks=(*checks, Check(f"left out: {words}", False)))
    if early:
        return judged, "a look before the last"
    return judged, "" if not lost or judged.verdict is Verdict.CONTRADICTED else "a run failed"


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
        f"{'equal to the last bit' if same else 'not equal'} in {number_of(len(hashes), 'seed')}"
    )
    return Evidence(view.name, fact(words, same), why_not="tensors, not FLOPs")


def gap_keeps(views: Sequence[View]) -> list[Evidence]:
    """The gain at the large scale is not smaller than at the small one, for each such pair."""
    found = []
    for pair in product(*(_of_scale(views, name) for name in ("small", "large"))):
        (small, gain), (large, other) = pair
        judged, why_not = Judged((_keeps(gain, other),)), ""
        for view, ours in ((small, None), (large, large.main)):  # what large lost is worse for it
            judged, unsettled = _settled(view, judged, _lost(view, judged), ours)
            why_not = why_not or unsettled
        source = f"{small.name} to {large.name}"
        found.append(Evidence(source, judged, why_not, "large"))
        if not why_not:
            found.append(Evidence(source, Judged((Check("the same", True),)), scale="small"))
    return found


def _keeps(small: Estimate, large: Estimate) -> Check:
    """Whether the gain at large is no smaller than at small by a margin: Welch's t test."""
    less, margin = _welch(large, small), rules.GAP_MARGIN
    power = power_of(margin, less.expected, less.freedom)
    able = "" if isnan(power) else f"; power {power:.2f} for equal ones within {margin:g}"
    words = (
        f"gain {signed(small.mean)} and {signed(large.mean)}; large less small "
        f"{told(less, rules.NATS, able=able)}"
    )
    # Wholly between the margin and 0, the gain does narrow.
    supports = all(each.high >= 0 and each.low > -margin for each in less.each)
    return Check(words, supports, beyond(less.negative, 0.0), power)


def _welch(first: Estimate, second: Estimate) -> Estimate:
    """The difference of two means of other runs, whose spreads differ."""
    error, freedom = hypot(first.error, second.error), nan
    if error > 0:
        freedom = error**4 / sum(one.error**4 / one.freedom for one in (first, second))
    both = [one.pooled or one for one in (first, second)]
    return Estimate(
        first.mean - second.mean,
        error,
        freedom,
        min(first.pairs, second.pairs),
        pooled=_welch(*both) if first.pooled or second.pooled else None,
        noise=hypot(first.expected, second.expected),
    )


def _of_scale(views: Sequence[View], name: str) -> list[tuple[View, Estimate]]:
    """Studies of the paper's two arms at one scale that have a pair of runs, and their gain."""
    found = []
    for view in views:
        main = view.main or view.baseline
        papers = (view.paper_arm(view.baseline), view.paper_arm(main)) == ("baseline", "prism")
        if view.scale is not None and view.scale.name == name and papers:
            gain = contrasted(view.losses, {view.baseline: 1.0, main: -1.0})
            found += [(view, gain)] if gain is not None else []
    return found


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
        judged, why_not = _settled(view, judged, _lost(view, judged), view.main)
        if not alike or view.swept:
            why_not = "another scale"
        if not heads[0] < heads[-1] == view.h_base:
            why_not = "no progressive schedule"
        found.append(Evidence(view.name, judged, why_not, "small"))
    return found


def own_rates(views: Sequence[View]) -> list[Evidence]:
    """The main arm against every uniform arm, each at its own learning rate."""
    found = []
    for view in views:
        known = at_own_rates(view)
        if known is None:
            continue
        judged, unsettled = _settled(view, known.judged, known.lost, view.main)
        scale = view.facts.scale or ""
        why_not = known.why_not or _not_the_papers(view) or unsettled
        if scale != "small":
            why_not = "another scale"
        found.append(Evidence(view.facts.name, judged, why_not, scale))
    return found


def _not_the_papers(view: View) -> str:
    """Whether its two arms have other heads than the paper's, at any learning rate."""
    scale = scales().get(view.facts.scale or "")
    if scale is None:
        return "another scale"
    if view.schedule(view.baseline) != HeadSchedule.uniform(scale.h_base, scale.n_layers):
        return "another baseline"
    same = view.schedule(view.main or view.baseline) == scale.schedule
    return "" if same else "no arm has the paper's schedule"


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
    "persists": curve_rules.gap_persists,
    "earlier": curve_rules.earlier,
    "downstream": rules.no_worse,
    "blimp": rules.blimp_no_worse,
    "wikitext": rules.lower_perplexity,
    "plateau": curve_rules.widens_then_stays,
    "spread": curve_rules.spread_contracts,
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
