"""The claims of the paper, each with its rule, and what the studies at hand say of it.

A claim names its scales and, where speed is meant, its hardware. Only studies of just that decide;
all others stand beside it, labelled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from prism_transformer import cost
from prism_transformer.recipe_file import load_recipe
from prism_transformer.report import verdicts as rules
from prism_transformer.report.table import signed
from prism_transformer.report.tables import paper_arm
from prism_transformer.report.verdicts import Judged, Verdict, strictest
from prism_transformer.report.views import View

ALL = ("small", "medium", "large")
H100 = "8 x H100"


@dataclass(frozen=True)
class Evidence:
    """What one study, or a closed form, says of a claim, and whether it may decide it."""

    source: str
    verdict: Verdict
    words: str
    decides: bool
    why_not: str = ""
    scale: str = ""
    """of the claim, where it decides"""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that a measurement can bear out or not."""

    key: str
    text: str
    where: str
    scales: tuple[str, ...]
    rule: str
    fill: str
    """the command whose result decides it"""
    judge: Callable[[View], Judged | None] | None = None
    across: Callable[[Sequence[View]], list[Evidence]] | None = None
    """evidence that is of no single study"""
    hardware: str = "any"
    of_main: bool = True
    """whether it is about Prism as the paper has it, rather than about arms of an ablation"""


@dataclass(frozen=True)
class Result:
    """A claim and its verdict."""

    claim: Claim
    verdict: Verdict
    evidence: tuple[Evidence, ...]
    missing: tuple[str, ...] = ()
    """scales of the claim that nothing decides"""

    @property
    def deciding(self) -> tuple[Evidence, ...]:
        """Evidence of the claim's own scale and hardware."""
        return tuple(one for one in self.evidence if one.decides)

    @property
    def beside(self) -> tuple[Evidence, ...]:
        """All other evidence."""
        return tuple(one for one in self.evidence if not one.decides)


def judge_claims(views: Sequence[View]) -> list[Result]:
    """Every claim with its verdict."""
    return [_judge(claim, views) for claim in CLAIMS]


def _judge(claim: Claim, views: Sequence[View]) -> Result:
    evidence = list(claim.across(views)) if claim.across else []
    for view in views:
        judged = claim.judge(view) if claim.judge else None
        if judged is None:
            continue
        why_not = _why_not(claim, view, judged)
        scale = view.scale.name if view.scale else ""
        evidence.append(
            Evidence(view.name, judged.verdict, judged.words, not why_not, why_not, scale)
        )
    found = [one.verdict for one in evidence if one.decides]
    verdict = strictest(found)
    covered = {one.scale for one in evidence if one.decides}
    missing = tuple(scale for scale in claim.scales if scale not in covered)
    if missing and verdict is not Verdict.CONTRADICTED:
        verdict = Verdict.UNMEASURED
    return Result(claim, verdict, tuple(evidence), missing)


def _why_not(claim: Claim, view: View, judged: Judged) -> str:
    """Why a study cannot decide a claim; empty when it can."""
    if claim.scales and (view.scale is None or view.scale.name not in claim.scales):
        return "another scale"
    if paper_arm(view, view.baseline) != "baseline":
        return "another baseline"
    if claim.of_main and paper_arm(view, view.main or view.baseline) != "prism":
        return "no arm has the paper's schedule"
    if claim.hardware == H100 and not view.on_papers_hardware:
        return "other hardware"
    return "" if judged.whole else "not all arms or tasks of the claim"


# -- claims that are of no single study ----------------------------------------------------------


def same_counts(views: Sequence[View]) -> list[Evidence]:
    """Parameters and FLOPs of both arms, in closed form at the paper's scales."""
    found = []
    for scale in ALL:
        base, prism = (load_recipe(f"{arm}-{scale}").model for arm in ("baseline", "prism"))
        sizes = [cost.parameters(config).total for config in (base, prism)]
        flops = [
            cost.forward_flops(config, config.seq_len).total
            + cost.backward_flops(config, config.seq_len).total
            for config in (base, prism)
        ]
        same = sizes[0] == sizes[1] and flops[0] == flops[1]
        verdict = Verdict.SUPPORTED if same else Verdict.CONTRADICTED
        words = (
            f"{sizes[0]:,} and {sizes[1]:,} parameters, {flops[0]:,} and {flops[1]:,} FLOPs per "
            "token, in closed form; tests and prism neutrality hold it against built models"
        )
        found.append(Evidence(scale, verdict, words, decides=True, scale=scale))
    return found + [one for view in views if (one := _same_tensors(view))]


def _same_tensors(view: View) -> Evidence | None:
    """Arms of one seed that began with the same bytes have the same tensors."""
    hashes: dict[int, set[str]] = {}
    arms = set()
    for run in view.runs:
        if run["hashes"] and not view.changes(run["arm"]):
            hashes.setdefault(run["seed"], set()).add(run["hashes"]["initial_weights"])
            arms.add(run["arm"])
    if len(arms) < 2:
        return None
    same = all(len(each) == 1 for each in hashes.values())
    words = (
        f"initial weights of {len(arms)} arms are "
        f"{'equal to the last bit' if same else 'not equal'} in {len(hashes)} seeds"
    )
    verdict = Verdict.SUPPORTED if same else Verdict.CONTRADICTED
    return Evidence(view.name, verdict, words, decides=False, why_not="tensors, not FLOPs")


def gap_keeps(views: Sequence[View]) -> list[Evidence]:
    """The gain at the large scale is not smaller than at the small one, for each such pair."""
    found = []
    for small, large in product(*(_of_scale(views, name) for name in ("small", "large"))):
        gains = [-np.array(_gaps(view)) for view in (small, large)]
        words = f"gain {signed(gains[0].mean())} and {signed(gains[1].mean())}"
        verdict = Verdict.NOISE
        if min(map(len, gains)) > 1:
            from scipy import stats  # which takes a second, and few reports have such a pair

            span = stats.ttest_ind(*gains[::-1], equal_var=False).confidence_interval(0.95)
            words += f"; large less small 95 % {signed(span.low)} to {signed(span.high)} (Welch)"
            if span.high < 0:
                verdict = Verdict.CONTRADICTED
            elif span.low > -rules.GAP_MARGIN:
                verdict = Verdict.SUPPORTED
        source = f"{small.name} to {large.name}"
        found += [
            Evidence(source, verdict, said, decides=True, scale=name)
            for name, said in (("large", words), ("small", "the same"))
        ]
    return found


def _of_scale(views: Sequence[View], name: str) -> list[View]:
    """Studies of the paper's two arms at one scale that have a pair of runs."""
    return [
        view
        for view in views
        if view.scale is not None
        and view.scale.name == name
        and paper_arm(view, view.baseline) == "baseline"
        and paper_arm(view, view.main or view.baseline) == "prism"
        and _gaps(view)
    ]


def _gaps(view: View) -> tuple[float, ...]:
    test = view.row(view.main).difference if view.main else None
    return test.differences if test else ()


def shared_keys(views: Sequence[View]) -> list[Evidence]:
    """Studies with grouped queries; those of the small model in all else decide."""
    small = load_recipe("baseline-small")
    budget = (small.train.tokens, small.train.batch_tokens)
    found = []
    for view in views:
        judged = rules.with_shared_keys(view)
        if judged is None:
            continue
        recipe = view.collected.facts["recipe"]
        alike = recipe["model"] | {"queries_per_kv": 1} == small.model.model_dump(mode="json")
        alike = alike and (recipe["train"]["tokens"], recipe["train"]["batch_tokens"]) == budget
        heads = view.schedule(view.main or view.baseline).heads
        climbs = heads[0] < heads[-1] == view.h_base
        decides = alike and climbs and not view.swept
        why_not = "" if decides else "another scale" if climbs else "no progressive schedule"
        scale = "small" if decides else ""
        found.append(Evidence(view.name, judged.verdict, judged.words, decides, why_not, scale))
    return found


ABLATION = "prism study run ablation"
TABLE_2 = "prism study run small; prism study run medium; prism study run large"
INTERVAL = "95 % t interval of paired differences over seeds"

CLAIMS = (
    Claim(
        "lower-loss", "Lower validation loss than the uniform baseline, at every scale",
        "abstract, Table 2", ALL,
        f"At each scale the {INTERVAL}, Prism less baseline: below 0 supports, above 0 "
        "contradicts.",
        TABLE_2, rules.lower_loss,
    ),
    Claim(
        "neutral", "Same parameters and FLOPs as the uniform baseline",
        "abstract, Section 2.4", ALL,
        "Closed forms of both arms of each scale's recipes are equal; tests hold them against "
        "built models.",
        "prism neutrality", across=same_counts,
    ),
    Claim(
        "rate", "Trains exactly as fast as the baseline", "Table 2, Section 3.4", ALL,
        "Two one-sided t tests (TOST) on log ratios of tokens/s: equal within 1 % supports; an "
        "interval wholly beyond 1 % contradicts.",
        TABLE_2, rules.equal_rate, hardware=H100,
    ),
    Claim(
        "two-heads", "A start of two heads (width 384) costs throughput", "Table 5", ("small",),
        "Each arm whose first heads are wider than 256: the interval of its ratio of tokens/s to "
        "the baseline's lies below 1 (supports) or above (contradicts).",
        ABLATION, rules.widest_start_is_slow, hardware=H100, of_main=False,
    ),
    Claim(
        "wider-start", "The wider the start the better: 3 heads before 4 before 6",
        "Appendix C", ("small",),
        f"Config-6 less Config-3 and Config-3 less Config-2: {INTERVAL} below 0 for both supports, "
        "above 0 for either contradicts.",
        ABLATION, rules.wider_start, of_main=False,
    ),
    Claim(
        "smooth", "Smooth staircases beat abrupt ones", "Section 2.2, Appendix C", ("small",),
        "The two pairs the paper names, each with one start: Prism less Config-1 and Config-7 less "
        f"Config-5: {INTERVAL} below 0 for both supports, above 0 for either contradicts.",
        ABLATION, rules.smooth_over_abrupt, of_main=False,
    ),
    Claim(
        "early-local", "Early layers attend more locally", "Section 4.1, Figure 4", ALL,
        "Attention distance, Prism less baseline, mean over the layers below the base head count: "
        f"{INTERVAL} below 0 supports, above 0 contradicts.",
        TABLE_2, rules.early_local,
    ),
    Claim(
        "middle-global", "Mid layers attend more globally", "Section 4.1, Figure 4", ALL,
        "The same over the first third of the layers at the base head count: above 0 supports, "
        "below 0 contradicts.",
        TABLE_2, rules.middle_global,
    ),
    Claim(
        "late-equal", "Late layers converge to identical attention", "Section 4.1, Figure 4", ALL,
        "The same over the last quarter of the layers, relative to the baseline's distance: TOST, "
        "equal within 5 % supports; an interval wholly beyond contradicts.",
        TABLE_2, rules.late_equal,
    ),
    Claim(
        "boundary", "The sign of the difference changes at the schedule boundary",
        "Section 4.1", ALL,
        "Each seed's turn from nearer to farther, where the running sum of its differences is "
        "least: TOST within one layer of where the ramp completes, in all seeds, supports; an "
        "interval wholly beyond, or no turn in any, contradicts.",
        TABLE_2, rules.turns_at_boundary,
    ),
    Claim(
        "persists", "The gap persists at every milestone after warmup", "Section 4.2", ALL,
        "At every validation after warmup the 95 % t interval of the gap lies below 0: supports; "
        "above 0 at two of them in a row: contradicts.",
        TABLE_2, rules.gap_persists,
    ),
    Claim(
        "earlier", "Reaches the baseline's loss earlier in training", "Section 3.4", ALL,
        "Tokens to reach the loss at which the baseline of the seed ends, less the baseline's own, "
        f"in percent: {INTERVAL} below 0 supports, above 0 contradicts, as does never getting "
        "there in any of two or more seeds; not in some of them is noise.",
        TABLE_2, rules.earlier,
    ),
    Claim(
        "downstream", "Downstream accuracy is preserved or improved", "abstract, Table 3", ALL,
        "PIQA, HellaSwag, ARC-Easy, WinoGrande: each equal within 1 point by TOST, or its interval "
        "above 0: supports; any interval wholly below -1 point contradicts.",
        TABLE_2, rules.no_worse,
    ),
    Claim(
        "scale", "The gap does not narrow from 124M to 757M", "Section 3.5, Figure 3", ALL[::2],
        "Gain at large less gain at small, Welch's 95 % interval: wholly above -0.002 nats/token "
        "supports; wholly below 0 contradicts.",
        TABLE_2, across=gap_keeps,
    ),
    Claim(
        "plateau", "The gap widens from 1 to 10 billion tokens, then stays near -0.008",
        "Section 3.5, Figure 3", ("large",),
        "The gap at 10 less at 1 billion tokens: interval below 0; then equal within 0.002 to the "
        "end (TOST), and there equal to -0.008 within 0.002 (TOST). All three support.",
        "prism study run large", rules.widens_then_stays,
    ),
    Claim(
        "three-heads", "Three heads keep over 95 % of the best gain", "Appendix C", ("small",),
        f"Where Config-7 gains at all ({INTERVAL} of its gain above 0), 0.95 of its gain less "
        "Prism's, seed by seed: interval below 0 supports, above 0 contradicts.",
        ABLATION, rules.share_of_best, of_main=False,
    ),
    Claim(
        "half", "At least half of the layers must have the base head count", "Section 2.2",
        ("small",),
        "Prism less each arm with fewer, that changes nothing else: "
        f"{INTERVAL} below 0 for all supports, above 0 for any contradicts.",
        ABLATION, rules.half_at_base,
    ),
    Claim(
        "inference", "No inference overhead", "abstract, Section 2.3", ALL,
        "Reading a prompt and decoding with one sequence, arm and baseline in interleaved rounds, "
        "ratio of tokens/s over seeds: both 95 % intervals above 0.99 support, one wholly below "
        "it contradicts.",
        TABLE_2, rules.no_overhead, hardware=H100,
    ),
    Claim(
        "gqa", "Composes with grouped-query attention", "Section 5", ("small",),
        f"At the small shape and budget with queries_per_kv above 1: {INTERVAL}, Prism less "
        "baseline, below 0 supports, above 0 contradicts. The paper reports no such run and names "
        "no scale; small is our choice.",
        "prism study run gqa", across=shared_keys,
    ),
)  # fmt: skip


def counts(results: Sequence[Result]) -> dict[str, int]:
    """How many claims have each verdict, in the order of the verdicts."""
    return {verdict.value: sum(one.verdict is verdict for one in results) for verdict in Verdict}
