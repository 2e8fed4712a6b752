"""Schedules proposed for a new model shape, each with its source: the verb ``propose_learned``.

There are three sources: the paper's rule; the effects of layers, measured by a factorial study; and
block scores, measured in the weights of trained runs. The last two come from one small model. They
are carried to another shape by relative depth and by halvings of the base head count, which nobody
has tested; the reasons that come with each proposal say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2, sqrt
from pathlib import Path
from statistics import fmean, stdev

from prism_transformer.core.sealed import SealedPart, read_sealed, typed, write_sealed
from prism_transformer.schedule import HeadSchedule, head_counts
from prism_transformer.schedules.design import RULES, propose
from prism_transformer.search.judge import CEILING, EFFECTS, Judgement, Verdicts
from prism_transformer.search.scores import BLOCKS, Blocks
from prism_transformer.search.solve import Problem, best_within, frontier
from prism_transformer.study.collected import Collected
from prism_transformer.study.factorial import layer_effects

PACKAGED = Path(__file__).with_name("learned.json")
NOBODY = "nobody has tested whether that carries over to another shape"


class Slope(SealedPart):
    """What halving one layer's heads is worth, nats; below 0 is better."""

    mean: float
    se: float


class Source(SealedPart):
    """What was learnt of layers in one model."""

    name: str
    """layer effects, or blocks"""
    model: str
    """in words: its size and what it was trained on"""
    runs: int
    halvings: float
    """of the base head count that were measured; no more is proposed"""
    layers: tuple[Slope, ...]
    tau: float | None = None
    """with which it ranked schedules that were trained alone"""
    tau_interval: tuple[float, float] | None = None
    ceiling: float | None = None
    """what those runs themselves reach"""


class Learned(SealedPart):
    """Everything that proposals may start from."""

    format: int = 1
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class LearnedProposal:
    """A schedule for some model, where it comes from, and how sure that is."""

    schedule: HeadSchedule
    source: str
    reasons: tuple[str, ...]
    gain: float | None = None
    """predicted loss less uniform's, nats; None where nothing was measured"""
    se: float | None = None


def write_learned(file: Path, learned: Learned) -> None:
    """Write what was learnt, whole or not at all."""
    write_sealed(file, learned.model_dump(mode="json"))


def read_learned(file: Path | None = None) -> Learned:
    """What was learnt: what ships with the package, or a file of one's own."""
    place = file or PACKAGED
    return typed(place, read_sealed(place), Learned)


def effects_source(collected: Collected, verdicts: Verdicts | None = None) -> Source | None:
    """The effects of layers in a factorial study; None while it has no complete seed."""
    counts, found = collected.facts.factorial, layer_effects(collected)
    if counts is None or found is None:
        return None
    halvings = log2(counts.narrow / counts.wide)
    slopes = tuple(Slope(mean=e.mean / halvings, se=e.se / halvings) for e in found.layers)
    runs = 2 * len(found.layers) * len(found.seeds)
    words = f"{collected.facts.parameters / 1e6:.2f}M parameters, study {collected.facts.name}"
    source = Source(name=EFFECTS, model=words, runs=runs, halvings=halvings, layers=slopes)
    return _judged(source, verdicts, EFFECTS)


def blocks_source(scores: Sequence[Blocks], verdicts: Verdicts | None = None) -> Source | None:
    """Block scores of several runs of one shape, each layer's as a line through its head counts."""
    if len(scores) < 2:  # one run has no error
        return None
    slopes, deepest = [], 0.0
    for layer in range(len(scores[0].losses)):
        each = [_slope(run, layer) for run in scores]
        slopes.append(Slope(mean=fmean(each), se=stdev(each) / sqrt(len(each))))
        deepest = max(deepest, *(log2(run.h_base / min(run.losses[layer])) for run in scores))
    words = f"d_model {scores[0].d_model}, {len(slopes)} layers"
    source = Source(
        name=BLOCKS, model=words, runs=len(scores), halvings=deepest, layers=tuple(slopes)
    )
    return _judged(source, verdicts, BLOCKS)


def _slope(run: Blocks, layer: int) -> float:
    """Of a line through the origin, which is the layer as it was trained."""
    own = HeadSchedule.parse(run.schedule).heads[layer]
    points = [(log2(own / n), score) for n, score in run.scores[layer].items() if n != own]
    return sum(x * y for x, y in points) / sum(x * x for x, _ in points)


def _judged(source: Source, verdicts: Verdicts | None, predictor: str) -> Source:
    """The same with how well it ranked schedules, where that was measured on most of them."""
    judged = verdicts.judged if verdicts else ()
    mine = [each for each in judged if each.predictor == predictor]
    if not mine:
        return source
    best: Judgement = max(mine, key=lambda each: (each.arms, each.seeds))
    tops = [e.tau for e in judged if (e.predictor, e.truth) == (CEILING, best.truth)]
    ceiling = tops[0] if tops and tops[0] == tops[0] else None  # NaN with one seed
    return source.model_copy(
        update={"tau": best.tau, "tau_interval": best.tau_interval, "ceiling": ceiling}
    )


def propose_learned(
    d_model: int,
    n_layers: int,
    h_base: int,
    *,
    queries_per_kv: int = 1,
    tensor_parallel: int = 1,
    learned: Learned | None = None,
) -> list[LearnedProposal]:
    """The best schedule of each source for a model shape: the paper's rule, then what was learnt.

    Each that was learnt comes twice where they differ: within the paper's rules and without them.
    """
    shared = {"queries_per_kv": queries_per_kv, "tensor_parallel": tensor_parallel}
    paper = propose(d_model, n_layers, h_base, most=1, **shared)[0]
    reasons = (*paper.reasons, "the paper found such schedules better; no loss was measured here")
    found = [LearnedProposal(paper.schedule, "the paper's rule", reasons)]
    for source in (learned or read_learned()).sources:
        known: set[HeadSchedule] = set()
        for rules in (RULES, frozenset[str]()):
            each = _proposal(
                source, d_model, n_layers, h_base, rules, queries_per_kv * tensor_parallel
            )
            if each.schedule not in known:
                found.append(each)
            known.add(each.schedule)
    return found


def _proposal(
    source: Source, d_model: int, n_layers: int, h_base: int, rules: frozenset[str], multiple: int
) -> LearnedProposal:
    slopes = [_at_depth(source, layer / max(1, n_layers - 1)) for layer in range(n_layers)]
    counts = [
        n
        for n in head_counts(d_model)
        if n <= h_base and n % multiple == 0 and log2(h_base / n) <= source.halvings + 1e-9
    ]
    scores = [{n: slope.mean * log2(h_base / n) for n in counts} for slope in slopes]
    best = best_within(frontier(Problem(scores, h_base, rules, multiple=multiple)))
    steps = [log2(h_base / n) for n in best.heads]
    se = sqrt(sum((x * slope.se) ** 2 for x, slope in zip(steps, slopes, strict=True)))
    within = "within the paper's rules" if rules else "without the paper's rules"
    nothing = "" if any(steps) else f"nothing better than uniform was found {within}"
    return LearnedProposal(
        best.schedule, f"{source.name}, {within}", tuple(_reasons(source, best.score, se, nothing)),
        best.score, se,
    )  # fmt: skip


def _at_depth(source: Source, depth: float) -> Slope:
    """The slope at a share of the depth, between the layers that were measured."""
    place = depth * (len(source.layers) - 1)
    low = min(int(place), len(source.layers) - 2) if len(source.layers) > 1 else 0
    high, share = min(low + 1, len(source.layers) - 1), place - low
    one, other = source.layers[low], source.layers[high]
    return Slope(
        mean=(1 - share) * one.mean + share * other.mean,
        se=sqrt(((1 - share) * one.se) ** 2 + (share * other.se) ** 2),
    )


def _reasons(source: Source, gain: float, se: float, nothing: str) -> list[str]:
    """``nothing`` is said in place of a gain, where there is none."""
    ends = f"{gain - 1.96 * se:+.4f} to {gain + 1.96 * se:+.4f}"
    lines = [
        f"measured in {source.model}, {source.runs} runs; {NOBODY}",
        nothing
        or f"predicts {gain:+.4f} nats to uniform there (95 % {ends}), flattered by having been "
        "chosen as the best of many",
    ]
    if source.tau is None or source.tau_interval is None:
        return [*lines, "how well it ranks schedules was not measured"]
    low, high = source.tau_interval
    ceiling = (
        "" if source.ceiling is None else f"; such runs themselves reach {source.ceiling:+.2f}"
    )
    rank = f"ranks schedules trained alone with tau {source.tau:+.2f} ({low:+.2f} to {high:+.2f})"
    word = "which is no better than chance" if low <= 0 else "which is better than chance"
    return [*lines, f"{rank}, {word}{ceiling}"]
