"""What a study says first: its question, the answer, the doubt, in plain words; numbers after."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prism_transformer.core.table import MINUS, number_of, signed
from prism_transformer.models.cost import size_text
from prism_transformer.reporting.views import View
from prism_transformer.study.compare import ArmContrast, untuned
from prism_transformer.study.contrast_tables import digits
from prism_transformer.study.contrasts import Contrast, against, described, once
from prism_transformer.study.lengths import SCALING, Lengths
from prism_transformer.study.metrics import NO_SCALING, SECONDS
from prism_transformer.study.peeking import peeks
from prism_transformer.study.sentences import failed, peeked, plainly, sentence, untuned_said

MOST_SENTENCES = 8


@dataclass(frozen=True)
class Answer:
    """What stands at the top of a page."""

    question: str
    answer: str
    doubt: str
    numbers: tuple[str, ...]
    """the sentences behind it"""


def answer_of(views: Sequence[View], *, live: bool = False) -> Answer:
    """Of one study, at all points of its sweep.

    While runs come in, nothing is decided: who looks after every run and stops where it pleases
    finds differences that are none.
    """
    facts = views[0].facts
    question = facts.question or f"What did {facts.name} find?"
    rows = _rows(views)
    doubt = "; ".join(_doubts(views, rows))
    doubt = f"{_begun(doubt)}." if doubt else ""
    if live:
        return Answer(question, _so_far(views, rows), "Nothing is decided before the end.", ())
    if not rows:
        return Answer(question, "One arm only: there is nothing to compare it with.", doubt, ())
    told = tuple(minus(sentence(row)) for row in rows)
    if len(rows) == 1 and rows[0].difference is not None:
        main = views[0].main or ""
        said = plainly(rows[0], main, views[0].baseline) + _asked(views, rows[0])
        # Who reads runs beyond their context asks for that first.
        beyond = _beyond(views[0])
        said = f"{beyond} At the training context: {said}" if beyond else _begun(said)
        return Answer(question, said, doubt, told)
    return Answer(question, _over_points(views[0], rows), doubt, told)


def _rows(views: Sequence[View]) -> list[Contrast]:
    """The main arm against the baseline: at each arm's best rate where known, else at each point.

    None of a study of one arm.
    """
    for view in views:
        name = against(view.main or "", view.baseline)
        for each in view.envelope.contrasts if view.envelope else ():
            if each.name == name and each.difference is not None:
                return [each]
    return [view.main_contrast for view in views if view.main_contrast is not None]


def _asked(views: Sequence[View], main: Contrast) -> str:
    """What became of the contrasts that a study names, where the main one was asked.

    At each arm's best rate, in a sweep that found it.
    """
    view = views[0]
    named = {each.name for each in view.facts.contrasts}
    there = [each for view in views for each in (view.envelope.contrasts if view.envelope else ())]
    here = [each for each in there if each.values == main.values] or view.contrasts
    known = [each for each in here if each.name in named and each.weights != main.weights]
    clear = [f"{each.name} ({_told(each)})" for each in known if each.decided]
    open_ = [each.name for each in known if not each.decided and each.difference is not None]
    too = " too" if main.decided else ""
    said = [f"Decided{too}: {', '.join(clear)}."] if clear else []
    said += [f"Undecided: {', '.join(open_)}."] if open_ else []
    return "".join(f" {each}" for each in said)


def _beyond(view: View) -> str:
    """How runs read on beyond their training context, where that was asked."""
    found = view.lengths
    if found is None:
        return ""
    said = []
    for scaling in dict.fromkeys((NO_SCALING, found.best)):
        here = [each for each in found.contrasts if each.values[SCALING] == scaling]
        clear = [_told(each) for each in here if each.decided]
        sure = f"decided: {', '.join(clear)}" if clear else "nothing is decided between arms"
        said.append(f"{_rises(found, scaling)} ({sure})")
    return f"{_read_on(found)}{'; '.join(said)}."


def _told(contrast: Contrast) -> str:
    """What is held against what, and by how much it is apart."""
    apart = contrast.difference
    return described(contrast.weights) + (f": {signed(apart.mean)}" if apart else "")


def rises_said(found: Lengths) -> str:
    """By how much each arm's loss rises at the longest length, under every scaling."""
    return f"{_read_on(found)}{'; '.join(_rises(found, each) for each in found.at_longest)}."


def _read_on(found: Lengths) -> str:
    times = f"{found.times:g} times the training context"
    return f"In sequences of {found.longest:,} tokens, {times}, the mean loss changes, in nats: "


def _rises(found: Lengths, scaling: str) -> str:
    each = found.at_longest[scaling].mean().dropna()
    rises = ", ".join(f"{arm} {signed(float(rise))}" for arm, rise in each.items())
    how = "positions as they are" if scaling == NO_SCALING else f"scaling {scaling}"
    least = ", the least rise" if scaling == found.best and len(found.at_longest) > 1 else ""
    return f"with {how}{least}, {rises}"


def _over_points(view: View, rows: Sequence[Contrast]) -> str:
    known = [row.difference for row in rows if row.difference is not None]
    if not known:
        return f"Nothing yet: no seed is complete in both {view.main} and {view.baseline}."
    lower, n = sum(gap.mean < 0 for gap in known), len(known)
    decided = sum(row.decided for row in rows)
    missing = f"; {len(rows) - n} of {len(rows)} have no complete pair" if n < len(rows) else ""
    sure = f"decided at {decided}" if decided else "undecided at every one"
    return (
        f"{view.main} ends lower than {view.baseline} at {lower} of {n} settings, {sure}{missing}."
    )


def _so_far(views: Sequence[View], rows: Sequence[Contrast]) -> str:
    runs = [run for view in views for run in view.runs]
    done = sum(run.state == "complete" for run in runs)
    said = f"Nothing yet: {done} of {len(runs)} runs are complete."
    known = [row.difference for row in rows if row.difference is not None]
    if not known:
        return said
    gap = known[0]
    size = f"{abs(gap.mean):.{digits(gap)}f} nats {'lower' if gap.mean < 0 else 'higher'}"
    seeds = number_of(gap.n, "seed")
    main, base = views[0].main, views[0].baseline
    at = "".join(f"at {key} = {value} " for key, value in rows[0].values.items())
    return f"{said} So far {main} {at}ends {size} than {base}, in the mean of {seeds}."


def _doubts(views: Sequence[View], rows: Sequence[Contrast]) -> Iterator[str]:
    """What speaks against taking the answer for more than it is, the weightiest first."""
    first = views[0]
    if len(views) == 1 and (closest := _closest(first)):
        other, gap = closest
        yield f"its closest control, {other}, is {abs(gap):.3f} nats away, which is undecided"
    known = [row for row in rows if row.difference is not None]
    if known and not any(row.pooled for row in known):
        yield "seeds are too few to tell a difference from noise"
    if rows and (seen := peeks(first.facts)):
        yield peeked(seen)
    if rows and (said := untuned_said(untuned(first.facts))):
        yield said
    if lost := [run for view in views for run in view.lost]:
        yield failed(lost)
    if first.scale is None:
        yield f"models of {size_text(first.parameters)} parameters say nothing of larger ones"


def _closest(view: View) -> tuple[str, float] | None:
    """The arm that the main arm cannot be told from, where it is better than the baseline."""
    main = view.main_contrast
    if main is None or not main.decided or main.difference is None or main.difference.mean > 0:
        return None
    found = [
        (min(each.weights, key=each.weights.__getitem__), each.difference.mean)
        for each in view.contrasts
        if each.difference is not None
        and not each.decided
        and len(each.weights) == 2
        and each.weights.get(view.main or "", 0) > 0
        and view.baseline not in each.weights
    ]
    return min(found, key=lambda pair: abs(pair[1]), default=None)


def _begun(text: str) -> str:
    """With a capital, unless it begins with a name."""
    small = ("its ", "one ", "learning ", "seeds ", "models ", "undecided", "none ")
    return text[0].upper() + text[1:] if text.startswith(small) else text


def minus(text: str) -> str:
    """With signs that are not hyphens."""
    return re.sub(r"(?<=[ (])-(?=\d)", MINUS, text)


# -- the rest of what a study says -----------------------------------------------------------------


def state(view: View) -> str:
    """How many runs are complete, how long they took, and what became of the others."""
    counts = Counter(run.state for run in view.runs)
    done = f"{counts.pop('complete', 0)} of {len(view.runs)} runs complete"
    if seconds := view.scalar(SECONDS).sum(axis=None):
        shown = f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
        done += f" ({shown} of training in all)"
    rest = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
    return f"{done}; {rest}: these results are partial" if rest else done


def arm_sentences(view: View) -> tuple[str, ...]:
    """Each arm against the baseline, the main one first; of many arms the main one alone.

    Not what the study asks for under a name: that stands among its contrasts.
    """
    if view.main is None:
        return ("One arm only: there is nothing to compare it with.",)
    others = [arm for arm in view.others if arm != view.main]
    few = len(others) < MOST_SENTENCES
    rows = [view.compared[arm] for arm in (view.main, *(others if few else ()))]
    asked: list[Contrast] = [*rows, *view.contrasts]
    told = [sentence(each) for each in once(asked) if isinstance(each, ArmContrast)]
    told += [] if few else [f"{number_of(others, 'more arm')} stand in the tables."]
    return tuple(map(minus, told))


def contrast_sentences(view: View) -> tuple[str, ...]:
    """Each contrast, if they are few or were asked for."""
    few = len(view.contrasts) <= MOST_SENTENCES or bool(view.facts.contrasts)
    return tuple(minus(sentence(each)) for each in (view.contrasts if few else ()))


def best_sentences(view: View) -> tuple[str, ...]:
    """Contrasts of arms at their best rates."""
    found = view.envelope.contrasts if view.envelope else ()
    return tuple(minus(sentence(each)) for each in once(found))


def sentences(view: View) -> tuple[str, ...]:
    """What the comparison says at this point, arms and contrasts, then remarks on the whole."""
    if view.main is None:
        return arm_sentences(view)
    return (*arm_sentences(view), *contrast_sentences(view), *map(minus, view.remarks))
