"""Schedules proposed for a new model shape, each with its source: the verb ``propose_learned``.

There are three sources: the paper's rule; the effects of layers, measured by a factorial study; and
block scores, measured in the weights of trained runs. The last two come from one small model. They
are carried to another shape by relative depth and by halvings of the base head count, which nobody
has tested; the reasons that come with each proposal say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log2, sqrt
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from prism_transformer.core.errors import InputError
from prism_transformer.core.sealed import SealedPart, read_sealed, typed, write_sealed
from prism_transformer.schedule import HeadSchedule, head_counts
from prism_transformer.schedules.design import RULES, propose
from prism_transformer.search.judge import CEILING, EFFECTS, Judgement, Verdicts
from prism_transformer.search.scores import BLOCKS, Blocks, blocks_apart
from prism_transformer.search.solve import Problem, best_within, frontier
from prism_transformer.study.collected import Collected
from prism_transformer.study.factorial import layer_effects, schedules
from prism_transformer.study.statistics import Array, t_test

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
    freedom: int | None = None
    """degrees of freedom of the slopes' errors; None in files of before it was kept"""
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
    facts = read_sealed(place)
    if "sources" not in facts:
        raise InputError(
            f"{place}: holds nothing that was learnt; `prism search evaluate` writes learned.json"
        )
    return typed(place, facts, Learned)


def effects_source(collected: Collected, verdicts: Verdicts | None = None) -> Source | None:
    """The effects of layers in a factorial study; None while it has no complete seed."""
    counts, found = collected.facts.factorial, layer_effects(collected)
    if counts is None or found is None:
        return None
    halvings = log2(counts.narrow / counts.wide)
    slopes = tuple(Slope(mean=e.mean / halvings, se=e.se / halvings) for e in found.layers)
    n_arms = len(schedules(len(slopes), counts.wide, counts.narrow))
    words = f"{collected.facts.parameters / 1e6:.2f}M parameters, study {collected.facts.name}"
    source = Source(
        name=EFFECTS, model=words, runs=n_arms * len(found.seeds), halvings=halvings, layers=slopes,
        freedom=found.freedom,
    )  # fmt: skip
    return _judged(source, verdicts, EFFECTS)


def blocks_alike(scores: Sequence[Blocks]) -> tuple[list[Blocks], tuple[str, ...]]:
    """The most runs whose block scores have a mean together; and why the others do not count."""
    groups = [[each for each in scores if not blocks_apart(each, one)] for one in scores]
    most = max(groups, key=len, default=[])
    others = [(each, blocks_apart(each, most[0])) for each in scores if each not in most]
    return most, tuple(f"{BLOCKS}: {each.run}: {reason}" for each, reason in others)


def blocks_source(scores: Sequence[Blocks], verdicts: Verdicts | None = None) -> Source | None:
    """Block scores of several runs that are alike, each layer's as a line through its head counts.

    None of one run, which has no error, nor where a layer was scored at its own count alone.
    """
    if len(scores) < 2 or any(len(own) < 2 for own in scores[0].losses):
        return None
    slopes, deepest = [], 0.0
    for layer in range(len(scores[0].losses)):
        each = [_slope(run, layer) for run in scores]
        slopes.append(Slope(mean=fmean(each), se=stdev(each) / sqrt(len(each))))
        deepest = max(deepest, *(log2(run.h_base / min(run.losses[layer])) for run in scores))
    words = f"d_model {scores[0].d_model}, {len(slopes)} layers"
    source = Source(
        name=BLOCKS, model=words, runs=len(scores), halvings=deepest, layers=tuple(slopes),
        freedom=len(scores) - 1,
    )  # fmt: skip
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
    shares = _shares(len(source.layers), n_layers)
    slopes = shares @ [slope.mean for slope in source.layers]
    counts = [
        n
        for n in head_counts(d_model)
        if n <= h_base and n % multiple == 0 and log2(h_base / n) <= source.halvings + 1e-9
    ]
    scores = [{n: slope * log2(h_base / n) for n in counts} for slope in slopes.tolist()]
    best = best_within(frontier(Problem(scores, h_base, rules, multiple=multiple)))
    steps = np.array([log2(h_base / n) for n in best.heads])
    # By measured layer: layers of a deeper model that lean on one of them share its error.
    se = float(np.linalg.norm(steps @ shares * [slope.se for slope in source.layers]))
    within = "within the paper's rules" if rules else "without the paper's rules"
    nothing = "" if steps.any() else f"nothing better than uniform was found {within}"
    return LearnedProposal(
        best.schedule, f"{source.name}, {within}", tuple(_reasons(source, best.score, se, nothing)),
        best.score, se,
    )  # fmt: skip


def _shares(n_measured: int, n_layers: int) -> Array:
    """What each layer takes of each that was measured, by relative depth: (layers, measured)."""
    places = np.linspace(0, n_measured - 1, n_layers)
    at = np.arange(n_measured)
    return np.maximum(0, 1 - np.abs(places[:, None] - at))


def _reasons(source: Source, gain: float, se: float, nothing: str) -> list[str]:
    """``nothing`` is said in place of a gain, where there is none."""
    low, high, _ = t_test(gain, se, source.freedom or inf)
    lines = [
        f"measured in {source.model}, {source.runs} runs; {NOBODY}",
        nothing
        or f"predicts {gain:+.4f} nats to uniform there (95 % {low:+.4f} to {high:+.4f}), "
        "flattered by having been chosen as the best of many",
    ]
    if source.tau is None or source.tau_interval is None:
        return [*lines, "how well it ranks schedules was not measured"]
    low, high = source.tau_interval
    ceiling = (
        ""
        if source.ceiling is None
        else f"; of those runs one half of the seeds ranks the other with {source.ceiling:+.2f}"
    )
    rank = f"ranks schedules trained alone with tau {source.tau:+.2f} ({low:+.2f} to {high:+.2f})"
    word = "which cannot be told from chance" if low <= 0 else "which is better than chance"
    return [*lines, f"{rank}, {word}{ceiling}"]
