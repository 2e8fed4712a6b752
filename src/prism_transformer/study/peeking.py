"""What was seen of a study before now, and what of it no plan of looks pays for.

To add seeds after having seen a whole study is to look twice, which raises false alarms. Looks pay
for that if they were planned before anything was seen, and if they are all there were. So a
collected folder remembers the plans under which it was collected, and how many seeds were there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path

from prism_transformer.core.errors import InputError
from prism_transformer.study.collected import (
    STUDY_FILE,
    ArmFacts,
    Collected,
    LooksFacts,
    PlanFacts,
    StudyFacts,
    read_facts,
)
from prism_transformer.study.looks import false_alarms, plan_looks
from prism_transformer.study.statistics import ALPHA


def looked_again(collected: Collected, folder: Path) -> Collected:
    """The same, with the looks that an earlier result in this folder records, and this one."""
    if not (folder / STUDY_FILE).is_file():  # its facts alone are read, its tables may be missing
        return with_looks_of(collected, ())
    try:
        before = read_facts(folder)
    except InputError as error:
        hint = "what was looked at before is not known: put it back, or remove the folder"
        raise InputError(f"{error}; {hint}") from None
    return with_looks_of(collected, [replace(collected, facts=before)])


def with_looks_of(collected: Collected, earlier: Iterable[Collected]) -> Collected:
    """The same, with the looks at earlier results of this study, and this one."""
    facts = collected.facts
    seen = [each for each in earlier if _same(each.facts, facts)]
    plans: list[PlanFacts] = []
    for plan in (plan for each in (*seen, collected) for plan in _plans(each)):
        same = next((place for place, each in enumerate(plans) if each.looks == plan.looks), None)
        if same is None:
            plans.append(plan)
        else:
            looked = tuple(dict.fromkeys((*plans[same].looked, *plan.looked)))
            plans[same] = PlanFacts(looks=plan.looks, looked=looked)
    looked = tuple(dict.fromkeys(n for plan in plans for n in plan.looked))
    more = {"plans": tuple(plans), "looked": looked}
    return replace(collected, facts=facts.model_copy(update=more))


def _same(before: StudyFacts, now: StudyFacts) -> bool:
    """Whether all that was seen then is asked now: more seeds go into a copy, of another name."""
    arms, then = ({_identity(arm) for arm in facts.arms} for facts in (now, before))
    return before.name == now.name or then <= arms


def _identity(arm: ArmFacts) -> tuple[tuple[int, ...], str]:
    return arm.heads, str(sorted(arm.changes.items()))


def _plans(collected: Collected) -> tuple[PlanFacts, ...]:
    """Plans under which a study was collected, what it is now included."""
    facts, n = collected.facts, len(collected.facts.seeds)
    whole = (n,) if collected.settled == n else ()
    if not whole and all(run.state != "complete" for run in facts.runs):
        return _kept(facts)  # nothing was there to be seen
    return (*_kept(facts), PlanFacts(looks=facts.looks, looked=whole))


def _kept(facts: StudyFacts) -> tuple[PlanFacts, ...]:
    """As the folder has them; an older one has kept how often it was looked at, but no plans."""
    older = (PlanFacts(looks=facts.looks, looked=facts.looked),) if facts.looked else ()
    return facts.plans or older


@dataclass(frozen=True)
class Peeks:
    """What was seen of a study that its looks, as it plans them now, do not pay for."""

    plans: tuple[LooksFacts | None, ...]
    """other ones under which it was collected; None where no looks were planned"""
    looked: tuple[int, ...]
    """numbers of seeds with which it was collected as a whole, ascending; one seed shows no p"""
    unplanned: tuple[int, ...]
    """those of them that are no looks as planned now"""
    alarms: float
    """chance that, if nothing differs, a t test gives a p below its limit at one of these, or of
    the looks to come; the limit is what decided then, and 0.05 where nothing was to decide. NaN
    where plans were changed before anything whole was seen: nobody knows what was seen then"""


def peeks(facts: StudyFacts) -> Peeks | None:
    """None where everything that was seen is as planned, or was seen once."""
    plans, looked = _kept(facts), tuple(sorted(n for n in set(facts.looked) if n > 1))
    others = [plan for plan in plans if plan.looks != facts.looks]
    planned = _limits(facts.looks)
    unplanned = tuple(n for n in looked if n not in (planned or looked[-1:]))
    if not others and not unplanned:
        return None
    limits = {n: limit for n, limit in planned.items() if n > max(looked, default=0)}
    for plan in plans:
        known = _limits(plan.looks)
        for n in set(plan.looked) & set(looked):
            limits[n] = max(limits.get(n, 0.0), known.get(n, ALPHA))
    whole = unplanned or any(plan.looked for plan in others)
    chance = false_alarms(tuple(limits), tuple(limits.values())) if whole else nan
    return Peeks(tuple(plan.looks for plan in others), looked, unplanned, chance)


def _limits(looks: LooksFacts | None) -> dict[int, float]:
    """Below what p decides, by number of seeds."""
    known = plan_looks(looks.seeds, looks.spending) if looks else ()
    return {at.seeds: at.limit for at in known}
