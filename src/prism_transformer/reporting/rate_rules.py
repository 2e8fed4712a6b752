"""The rule of the claim that the gain is there with each arm at its own learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from prism_transformer.reporting.rules import NATS, uniform
from prism_transformer.reporting.verdicts import Check, Judged, below, contrasted
from prism_transformer.reporting.views import View
from prism_transformer.study.best_rates import BestRate
from prism_transformer.study.collected import LEARNING_RATE, finite
from prism_transformer.study.contrasts import Lost, lost_runs


@dataclass(frozen=True)
class OwnRates:
    """The main arm against uniform ones, each at its own learning rate, in one study."""

    judged: Judged
    lost: Sequence[Lost] = ()
    """runs that failed, and so are in no pair"""
    why_not: str = ""
    """why it does not decide"""


def own_rates(view: View) -> OwnRates | None:
    """From [tune], from a sweep of learning rates (at its first point), or from rates in the file.

    None where the study has nothing of the kind.
    """
    asked = _asked(view)
    if view.main not in asked or len(asked) < 2:
        return None
    if view.envelope is not None and not view.envelope.tuned:
        return _swept(view, asked)
    found = all(view.facts.tuned(arm) for arm in asked)
    own = all(view.facts.tuned(arm) or LEARNING_RATE in view.changes(arm) for arm in asked)
    if view.swept or not own:
        return None
    rates = {arm: view.rate(arm) for arm in asked}
    edges = view.envelope.at_edge if view.envelope else {}
    lost = [run for run in view.lost if run.arm in asked]
    why_not = "" if found else "rates that were given, not found"
    return OwnRates(_judged(view, view.losses, rates), lost, _at_edge(asked, edges) or why_not)


def _asked(view: View) -> list[str]:
    """The main arm and the uniform ones, where they change nothing but heads and rate."""
    arms = [arm for arm in view.arms if arm == view.main or uniform(view, arm)]
    return [arm for arm in arms if set(view.changes(arm)) <= {LEARNING_RATE}]


def _swept(view: View, asked: Sequence[str]) -> OwnRates | None:
    """Losses as the study's comparison has them: each seed's, read off its arm's parabola."""
    envelope = view.envelope
    assert envelope is not None
    best = {each.arm: each.best for each in envelope.arms if each.best}
    if not best.keys() >= set(asked):
        return None
    losses = pd.DataFrame(
        {each.arm: each.best.at_best(each.losses) for each in envelope.arms if each.best},
        index=list(envelope.seeds),
    )
    # Where a run diverged its rate counts as worse than all others, so it is not left out.
    points = range(len(view.collected.points))
    failed = (run for point in points for run in lost_runs(view.collected, point))
    lost = [run for run in failed if run.arm in asked and not run.diverged]
    rates = {arm: best[arm].rate for arm in asked}
    why_not = "another scale" if envelope.values else _at_edge(asked, envelope.at_edge)
    return OwnRates(_judged(view, finite(losses), rates), lost, why_not)


def _at_edge(asked: Sequence[str], edges: dict[str, BestRate]) -> str:
    return "a best rate is at the edge of the grid" if edges.keys() & set(asked) else ""


def _judged(view: View, losses: pd.DataFrame, rates: dict[str, float]) -> Judged:
    """The main arm less each other that has a rate of its own."""
    main = view.main or ""
    checks = []
    for arm in (arm for arm in rates if arm != main):
        who = f"{main} at {rates[main]:g} minus {arm} at {rates[arm]:g}"
        found = contrasted(losses, {main: 1.0, arm: -1.0})
        check = Check(f"{who}: no pair", False)
        if found is not None:
            check = below(found, who, NATS, view.facts.effect)
        checks.append(replace(check, arms=(main, arm)))
    return Judged(tuple(checks))
