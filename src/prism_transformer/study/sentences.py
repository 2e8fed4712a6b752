"""A comparison in sentences, which claim no more than its seeds can show.

The adjusted p decides. Where there are too few seeds for any sign-flip p to decide, the p by the
pooled error of all arms does, and the sentence says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, isnan

from prism_transformer.core.table import number_of
from prism_transformer.study.best_rates import BestRate, Envelope
from prism_transformer.study.collected import LooksFacts, SearchFacts, StudyFacts
from prism_transformer.study.compare import ArmContrast, Comparison
from prism_transformer.study.contrast_tables import digits
from prism_transformer.study.contrasts import PRISM, Contrast, Lost, against, described, once
from prism_transformer.study.factorial import LayerEffects
from prism_transformer.study.lengths import Lengths
from prism_transformer.study.peeking import Peeks
from prism_transformer.study.statistics import ALPHA, MOST_PAIRS, Paired, detectable_shift


def sentences(comparison: Comparison) -> list[str]:
    """Everything that a comparison says: arms, contrasts, what was lost, when it was looked at."""
    told = [sentence(each) for each in comparison.told]
    told += [
        sentence(each) for envelope in comparison.envelopes for each in once(envelope.contrasts)
    ]
    for read in filter(None, comparison.lengths):
        told += [f"{rise_in(read)}: {sentence(each)}" for each in read.told]
    return told + remarks(comparison)


def remarks(comparison: Comparison) -> list[str]:
    """What is to be said of a study as a whole."""
    found = [layers_said(each) for each in comparison.layers if each]
    found += [line for each in comparison.envelopes for line in rates_said(each)]
    found += _looks(comparison)
    if comparison.lost:
        found.append(_lost_runs(comparison.lost))
    if comparison.search is not None:
        found.append(_search(comparison.search))
    if said := untuned_said(comparison.untuned):
        found.append(f"{said[0].upper()}{said[1:]}.")
    return [*found, *comparison.doubts]


def answer(facts: StudyFacts, comparison: Comparison) -> list[str]:
    """What a study says in plain words, for each point of its sweep, then what to doubt about it.

    Of one arm: Prism where there is one, else the first. The sentences on arms and contrasts have
    the numbers behind it.
    """
    arms = dict.fromkeys(row.arm.name for row in comparison.rows)
    main = next((arm for arm in arms if arm.lower() == PRISM), next(iter(arms), None))
    rows = [row for row in comparison.rows if row.arm.name == main]
    told = [f"Answer: {plainly(row, row.arm.name, row.baseline.name)}" for row in rows]
    for each in (each for envelope in comparison.envelopes for each in envelope.contrasts):
        if main and each.name == against(main, facts.baseline):
            told.append(f"Answer: {plainly(each, main, facts.baseline)}")
    doubts = "; ".join(_doubts(facts, comparison, rows))
    return [*told, f"Doubt: {doubts}."]


def plainly(row: Contrast, arm: str, baseline: str) -> str:
    """What an arm's difference to another says, in plain words."""
    gap = row.difference
    at = "".join(
        f" at {value} {key}" if isinstance(value, str) else f" at {key} = {value}"
        for key, value in row.values.items()
    )
    if gap is None:
        return f"none yet{at}; no seed is complete in both {arm} and {baseline}."
    size = f"{abs(gap.mean):.{digits(gap)}f} nats {'lower' if gap.mean < 0 else 'higher'}"
    seeds = number_of(gap.n, "seed")
    if not row.decided:
        return (
            f"undecided{at}. {arm} ends {size} than {baseline} in the mean of {seeds}, "
            "which chance can do as well."
        )
    return f"{arm} ends {size} than {baseline}{at}, more than chance does in {seeds}."


def _doubts(facts: StudyFacts, comparison: Comparison, rows: list[ArmContrast]) -> Iterator[str]:
    seen = [row.pooled.detectable for row in rows if row.pooled]
    if seen:
        yield f"a study like this one misses differences below {min(seen):.2g} nats"
    else:
        yield "seeds are too few to tell a difference from noise"
    if comparison.peeks:
        yield peeked(comparison.peeks)
    if comparison.lost:
        yield failed(comparison.lost)
    if said := untuned_said(comparison.untuned):
        yield said
    yield f"models of {facts.parameters / 1e6:.3g}M parameters say nothing of larger ones"


def sentence(row: Contrast) -> str:
    """What a contrast says."""
    at = "".join(f"{key}={value}, " for key, value in row.values.items())
    who = at + row.name
    told = described(row.weights)
    if not isinstance(row, ArmContrast) and told.replace(" minus ", " against ") != row.name:
        who += f" ({told})"
    gap, lost = row.difference, _lost(row)
    if gap is None:
        arms = "both arms" if len(row.weights) == 2 else "all its arms"
        return f"{who}: no seed is complete in {arms}{lost}."
    places = digits(gap)
    if gap.n == 1:
        return f"{who}: {gap.mean:+.{places}f} nats, one seed: no interval{lost}."
    if not any(gap.differences):
        return f"{who}: the same loss in all {gap.n} seeds{lost}."
    verdict = _clear(row, gap) if row.decided else _undecided(row, gap, places)
    return (
        f"{who}: {gap.mean:+.{places}f} nats ({100 * gap.confidence:g} % interval "
        f"{gap.low:+.{places}f} to {gap.high:+.{places}f}, {gap.n} seeds): {verdict}{lost}."
    )


def _clear(row: Contrast, gap: Paired) -> str:
    lower = gap.mean < 0
    agreeing = sum(each < 0 if lower else each > 0 for each in gap.differences)
    share = "all" if agreeing == gap.n else f"{agreeing} of"
    better = "lower (better)" if lower else "higher (worse)"
    return f"{better} in {share} {gap.n} seeds; {_tested(row, gap)}"


def _undecided(row: Contrast, gap: Paired, places: int) -> str:
    but = ", though the interval of this one comparison excludes 0" if gap.excludes_zero else ""
    if isnan(row.limit):
        but = ": no look is planned at so many seeds"
    seen = row.pooled.detectable if row.pooled else gap.detectable
    count = f"about {row.seeds_needed:,}" if row.seeds_needed else f"not even {MOST_PAIRS:,}"
    several = row.comparisons > 1  # both numbers are of a p that nothing is adjusted for
    return (
        f"undecided{but}; {_tested(row, gap)}; {'asked this alone, ' * several}such a study sees "
        f"{seen:.{places}f} or more in four of five cases, and {count} seeds would see "
        f"{row.effect:g}"
    )


def _tested(row: Contrast, gap: Paired) -> str:
    """The p that decides, and what it is adjusted for."""
    several = row.comparisons > 1
    at = f" (only below {row.limit:.2g} decides)" if row.limit < ALPHA else ""
    if row.by_flips or row.pooled is None or isnan(row.limit):
        adjusted = f", {row.adjusted_p:.3g} adjusted for {row.comparisons} comparisons"
        return f"sign-flip p {gap.p:.3g}{adjusted if several else ''}{at}"
    pooled, adjusted = row.pooled, f", {row.pooled.adjusted_p:.3g} after Holm over "
    adjusted += f"{row.comparisons} comparisons"
    where = f", {pooled.mean:+.{digits(gap)}f} nats when adjusted for missing runs," * row.moved
    return (
        f"{gap.n} seeds give no sign-flip p below {gap.p_floor:.2g}; by the pooled error "
        f"({number_of(pooled.freedom, 'degree')} of freedom){where} p {pooled.p:.3g}"
        f"{adjusted if several else ''}{at}"
    )


# -- what is missing, and when it was looked at ----------------------------------------------------


def _lost(row: Contrast) -> str:
    """Which of its seeds a contrast lacks because a run failed."""
    if not row.lost:
        return ""
    seeds = {each.seed for each in row.lost}
    said = ", ".join(f"{each.arm} {each.how} in seed {each.seed}" for each in row.lost)
    are = "are" if len(seeds) > 1 else "is"
    return f"; {number_of(seeds, 'seed')} {are} not in it: {said}"


def failed(lost: Sequence[Lost]) -> str:
    """How many runs failed, and how many of them by diverging."""
    diverged = sum(each.diverged for each in lost)
    runs = f"{number_of(lost, 'run')} failed"
    return f"{runs}, {diverged} of them by diverging" if diverged else runs


def _lost_runs(lost: Sequence[Lost]) -> str:
    if not any(each.diverged for each in lost):
        return f"{failed(lost)}: differences are of the other seeds."
    return (
        f"{failed(lost)}: differences are of the seeds that all arms survived, and an arm that "
        "diverges is worse than they say."
    )


def layers_said(effects: LayerEffects) -> str:
    """What a factorial study says of its layers, and whether their sum is all."""
    clear = [f"{n} ({e.mean:+.4f})" for n, e in enumerate(effects.layers) if e.adjusted_p < ALPHA]
    error = effects.layers[0].se
    seen = detectable_shift(effects.freedom) * error
    if clear:
        worth = f"A wide head changes the loss in layers {', '.join(clear)}"
    else:
        worth = "Of no layer by itself is it shown that a wide head changes the loss"
    said = (
        f"{worth}, by p adjusted for {len(effects.layers)} layers and an error of {error:.4f} "
        f"each, with which one layer, asked alone, shows {seen:.4f} or more in four of five cases"
    )
    if isnan(effects.p):
        return f"{said}; one seed cannot tell whether layers act one by one."
    seeds = number_of(effects.seeds, "seed")
    fit = f"F {effects.lack_of_fit:.2f}, p {effects.p:.2g}, {seeds}"
    more = "are more than" if effects.p < ALPHA else "cannot be told from"
    left = "; ".join(
        f"{name} {each.residual:+.4f} ({each.low:+.4f} to {each.high:+.4f})"
        for name, each in effects.beyond.items()
    )
    return (
        f"{said}. Schedules {more} the sum of their layers ({fit}); what is left of each with its "
        f"95 % interval, unadjusted: {left}."
    )


def _search(found: SearchFacts) -> str:
    """What choosing among many arms does to the best of them, and whether it was made good."""
    rungs = f" Its rungs: {found.rungs}." if found.rungs else ""
    if found.confirmed:
        return (
            "These are the finalists of a search, trained once more with seeds that did not choose "
            f"them: nothing here is flattered by the choice.{rungs}"
        )
    said = (
        "Arms were dropped by a search, and the best of many is flattered by the choice: its "
        "difference is larger here than it will be again"
    )
    if not found.confirm:
        return f"{said}; `confirm` in [search] trains the finalists with fresh seeds.{rungs}"
    seeds = ", ".join(map(str, found.confirm))
    return f"{said}; the finalists are confirmed with seeds {seeds}.{rungs}"


def rates_said(envelope: Envelope) -> Iterator[str]:
    """Which rate is each arm's own, and how that was found."""
    at = "".join(f"{key}={value}, " for key, value in envelope.values.items())
    found = [each for each in envelope.arms if each.best and not each.best.edge]
    said = ", ".join(f"{each.arm} {_rate(each.best)}" for each in found if each.best)
    seeds = ", ".join(map(str, envelope.seeds))
    if found and envelope.tuned:
        many = "seeds" if len(envelope.seeds) > 1 else "seed"
        yield (
            f"Each arm was trained at its own best learning rate, found with {many} {seeds}, which "
            f"the comparison does not have: {said}."
        )
    elif found:
        yield (
            f"Best learning rates: {at}{said}. They were chosen from the same runs, which flatters "
            "every arm a little; a study with [tune] compares fresh ones."
        )
    for arm, best in envelope.at_edge.items():
        end = "lowest" if best.edge == "low" else "highest"
        yield f"{at}{arm} is best at the {end} rate tried, {best.rate:g}: add rates beyond it."


def _rate(best: BestRate) -> str:
    known = isfinite(best.low) and isfinite(best.high)
    return f"{best.rate:g}" + (f" (95 % {best.low:.2g} to {best.high:.2g})" if known else "")


def untuned_said(rates: Mapping[str, tuple[float, ...]]) -> str:
    """At which learning rates arms were trained that nothing tuned; nothing where all were."""
    if not rates:
        return ""
    kinds = dict.fromkeys(rates.values())
    if len(kinds) > 1:
        said = "; ".join(
            f"{_rates(kind)} for {', '.join(arm for arm in rates if rates[arm] == kind)}"
            for kind in kinds
        )
        return f"learning rates were tuned for no arm: {said}"
    (kind,) = kinds
    if len(kind) > 1:
        few = "too few to show a best one"
        return f"learning rates {_rates(kind)} were used for all arms and tuned for none: {few}"
    return f"one learning rate, {_rates(kind)}, was used for all arms and tuned for none"


def _rates(rates: Sequence[float]) -> str:
    return " and ".join(f"{rate:g}" for rate in rates)


def rise_in(read: Lengths) -> str:
    """What contrasts of longer sequences are of."""
    return f"rise of the loss in {read.longest:,} tokens"


# -- when it was looked at -------------------------------------------------------------------------


def _looks(comparison: Comparison) -> Iterator[str]:
    """Which looks were planned, and what was seen that they do not pay for."""
    seen = comparison.peeks
    if comparison.looks:
        planned = ", ".join(f"{look.seeds} (p below {look.limit:.2g})" for look in comparison.looks)
        here = _this_look(comparison)
        verb = "are planned now" if seen and seen.plans else "were planned"
        yield f"Looks {verb} at these numbers of seeds: {planned}; {here}."
    if seen:
        yield _peeked(comparison, seen)


def _this_look(comparison: Comparison) -> str:
    now = next((at for at in comparison.looks if at.seeds == comparison.settled), None)
    if now is None and not comparison.settled:
        return "no seed is whole in all arms yet, and nothing is decided before the first look"
    if now is None:
        whole = f"{number_of(comparison.settled, 'seed')} whole in all arms"
        return f"with {whole} this is none of them, and decides nothing"
    spent = f", with {100 * now.spent:.2g} % of error spent by now" * (comparison.peeks is None)
    return f"this is the one at {now.seeds}{spent}"


def _peeked(comparison: Comparison, seen: Peeks) -> str:
    whole = f"with {', then with '.join(map(str, seen.looked))}"
    if not comparison.looks and not seen.plans:
        return (
            f"Seeds were added after the study had been seen: {whole}. If nothing differs, p < "
            f"{ALPHA} comes up at one of these with a chance of {100 * seen.alarms:.2g} %, not 5 "
            "%; a study that names its `looks` beforehand pays for them."
        )
    plans = " and ".join(map(_plan, seen.plans))
    told = [f"It was collected before with {plans}"] if plans else []
    told += [f"As a whole it was seen {whole} seeds"] if seen.looked else []
    if comparison.looks and seen.unplanned:
        one = len(seen.unplanned) == 1
        are = "is no look that is" if one else "are no looks that are"
        told[-1] += f", of which {', '.join(map(str, seen.unplanned))} {are} planned now"
    told.append("No planned looks pay for that, so an error of 5 % is not claimed")
    if not isnan(seen.alarms):
        more = ", or of the looks to come," * any(
            look.seeds > max(seen.looked) for look in comparison.looks
        )
        told[-1] += (
            f": if nothing differs, p falls below its limit at one of these{more} with a chance of "
            f"about {100 * seen.alarms:.2g} %"
        )
    return f"{'. '.join(told)}."


def _plan(looks: LooksFacts | None) -> str:
    if looks is None:
        return "no looks planned"
    return f"looks planned at {', '.join(map(str, looks.seeds))} ({looks.spending})"


def peeked(seen: Peeks) -> str:
    """The same as a doubt."""
    what = "its looks were changed" if seen.plans else "seeds were added"
    said = f"{what} after it had been seen"
    if isnan(seen.alarms):
        return said
    return f"{said}: of studies without a difference about {100 * seen.alarms:.2g} % find one"
