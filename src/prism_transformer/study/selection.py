"""Some arms and seeds of a study (``--arms``, ``--seeds``).

Selected cells keep their names and folders, so that runs which the whole study has finished count
for a selection, and the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from prism_transformer.study.plan import Plan
from prism_transformer.study.spec import StudyError, a_copy

MOST_SEEDS = 10_000  # that a range may stand for
MOST_NAMED = 10  # seeds or arms in an error

Seeds = str | Sequence[int] | None
"""As text: ``0,1`` or ``0-7,10``."""
Arms = str | Sequence[str] | None
"""As text: ``uniform,prism``."""


def select(plan: Plan, seeds: Seeds = None, arms: Arms = None) -> Plan:
    """The runs of a study with these seeds and arms, in the study's own order."""
    if seeds is None and arms is None:
        return plan
    wanted = set(plan.study.seeds) if seeds is None else _known_seeds(plan, seeds)
    names = {arm.name for arm in plan.arms} if arms is None else _known_arms(plan, arms)
    ordered = [seed for seed in plan.study.seeds if seed in wanted]
    return replace(
        plan,
        study=plan.study.model_copy(update={"seeds": ordered}),
        arms=tuple(arm for arm in plan.arms if arm.name in names),
        cells=tuple(cell for cell in plan.cells if cell.arm in names and cell.seed in wanted),
        contrasts=tuple(each for each in plan.contrasts if names.issuperset(each.weights)),
        whole=plan.all,
    )


def _known_seeds(plan: Plan, seeds: str | Sequence[int]) -> set[int]:
    chosen = parse_seeds(seeds) if isinstance(seeds, str) else list(seeds)
    unknown = sorted(set(chosen) - set(plan.study.seeds))
    if unknown or not chosen:
        which = _listed(unknown) or "none"
        raise StudyError(
            f"--seeds: {which}: {plan.file} has {_listed(plan.study.seeds)}; more go into its "
            f"`seeds`, in {a_copy(plan.file)}"
        )
    return set(chosen)


def _known_arms(plan: Plan, arms: str | Sequence[str]) -> set[str]:
    known = [arm.name for arm in plan.arms]
    chosen = [name.strip() for name in arms.split(",")] if isinstance(arms, str) else list(arms)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise StudyError(
            f"--arms: no arm {_listed(map(repr, unknown))} in {plan.file}; it has "
            f"{', '.join(known)}"
        )
    if plan.study.baseline not in chosen:
        raise StudyError(
            f"--arms: {', '.join(chosen) or 'none'}: add {plan.study.baseline}, the baseline that "
            "others are held against"
        )
    return set(chosen)


def parse_seeds(text: str) -> list[int]:
    """Whole numbers and ranges, both ends counted: ``0-2,7`` is 0, 1, 2, 7."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (each.strip() for each in part.partition("-"))
        ends = [first, last] if dash else [first]
        if not all(re.fullmatch("[0-9]{1,19}", end) for end in ends):
            raise StudyError(f"--seeds {text!r}: write seeds as in 0,1 or 0-7, not {part!r}")
        low, high = int(ends[0]), int(ends[-1])
        if not low <= high < low + MOST_SEEDS:
            reason = "ends before it begins" if high < low else f"more than {MOST_SEEDS:,} seeds"
            raise StudyError(f"--seeds {text!r}: {part.strip()}: {reason}")
        found += range(low, high + 1)
    return found


def _listed(values: Iterable[object]) -> str:
    """The first of many, for an error that stays one line."""
    words = [str(value) for value in values]
    return ", ".join(words[:MOST_NAMED]) + (", ..." if len(words) > MOST_NAMED else "")
