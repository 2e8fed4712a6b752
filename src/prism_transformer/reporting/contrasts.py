"""What differences of loss can bear: arms against the baseline, and arms against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from prism_transformer.core.table import Column, Row, Table, Value, signed, words
from prism_transformer.figures.chart import Chart
from prism_transformer.figures.comparisons import intervals
from prism_transformer.figures.style import REST, Tones
from prism_transformer.reporting.answers import arm_sentences, contrast_sentences
from prism_transformer.reporting.exhibits import NATS, STUDY, Drawing, drawing, interval, make_table
from prism_transformer.reporting.views import View
from prism_transformer.study.best_rates import AT_BEST
from prism_transformer.study.contrasts import Contrast, described, once
from prism_transformer.study.lengths import SCALING
from prism_transformer.study.metrics import NO_SCALING

NOTE = (
    "t interval of the mean of the pairs; pooled: by the error of all arms of a study, as of a "
    "randomised block design, with its degrees of freedom; where runs are missing, the pooled "
    "difference is adjusted for them; least detectable: the true difference found in four of five "
    "such studies, by the pooled error; flip p: exact sign flips, two-sided; max-T: the same "
    "adjusted, step-down over joint flips, for all differences and contrasts of the study; pooled "
    "p: t test by the pooled error; Holm: adjusted for the same ones. Flips decide, or the pooled "
    "error where so few seeds have no flip p that could; where both do, each at half of the 5 %; "
    "one seed decides nothing."
)
NO_PAPERS: Mapping[str, float | None] = MappingProxyType({})
MOST_ROWS = 8  # that a figure at the top of a page has room for
BEARS = [
    Column("pairs"), Column("difference", NATS, 4, sign=True),
    Column("95 % interval", NATS, 4, sign=True), Column("pooled difference", NATS, 4, sign=True),
    Column("pooled 95 % interval", NATS, 4, sign=True), Column("degrees of freedom"),
    Column("s.d. of pairs", NATS, 4), Column("least detectable", NATS, 4), Column("flip p"),
    Column("flip p, max-T"), Column("flip p, Holm"), Column("least flip p"), Column("pooled p"),
    Column("pooled p, Holm"), *words("decided by", "verdict"),
]  # fmt: skip


def differences(views: Sequence[View]) -> Table:
    """Each arm less its baseline, seed by seed, and what that can bear."""
    columns = [
        *words("study", "arm"), *BEARS, Column("paper's", NATS, 4, sign=True),
        *words("seed by seed"),
    ]  # fmt: skip
    rows = [
        {"study": view.name, "arm": arm, **found, "paper's": view.paper_gap(arm)}
        for view in views
        for arm in view.others
        if (found := cells(view.compared[arm]))
    ]
    note = f"Validation loss, arm minus baseline of the same seed: negative is better. {NOTE}"
    title = "Differences to the baseline"
    return make_table("differences", title, columns, rows, views, note=note, fill=STUDY)


def contrasts(views: Sequence[View]) -> Table:
    """Arms less arms, as studies name them, seed by seed."""
    columns = [*words("study", "contrast", "what"), *BEARS, *words("seed by seed")]
    rows = [
        {"study": view.name, "contrast": each.name, "what": described(each.weights), **found}
        for view in views
        for each in view.contrasts
        if (found := cells(each))
    ]
    rows += [
        {"study": view.facts.name, "contrast": f"{each.name}, {AT_BEST} rate",
         "what": described(each.weights), **found}
        for view in views
        for each in (once(view.envelope.contrasts) if view.envelope else ())
        if (found := cells(each))
    ]  # fmt: skip
    note = f"Validation loss, weighted by arm, within seeds. {NOTE}"
    fill, missing = "a study with [contrasts]", "no study has contrasts with complete seeds"
    return make_table(
        "contrasts", "Contrasts", columns, rows, views, note=note, fill=fill, missing=missing
    )


def overview(studies: Sequence[Sequence[View]]) -> Table:
    """What each study asked, a row for each contrast: all that a README has room for.

    Of a sweep over learning rates these are arms at their best ones; of a study that reads its
    runs in longer sequences also how their loss rises at the longest, plain and scaled best.
    """
    shown = ("difference", "95 % interval", "pairs", "verdict")
    columns = (*words("study", "contrast"), *(each for each in BEARS if each.key in shown))
    rows: list[Row] = []
    for first, *_ in studies:
        if first.envelope and first.envelope.contrasts:
            asked = first.envelope.contrasts
        else:
            asked = tuple(filter(None, [first.main_contrast, *first.contrasts]))
        rows += [
            {"study": first.facts.name, "contrast": described(each.weights)}
            | {key: found[key] for key in shown}
            for each in once(asked)
            if (found := cells(each))
        ]
        rows += [{"study": first.facts.name, **row} for row in _rises(first, shown)]
    return Table("overview", columns, tuple(rows))


def _rises(view: View, shown: Sequence[str]) -> Iterator[Row]:
    """Contrasts of the rise at the longest length, positions as they are and scaled best."""
    found = view.lengths
    if found is None:
        return
    for each in found.contrasts:
        scaling = str(each.values[SCALING])
        if scaling in (NO_SCALING, found.best) and (told := cells(each)):
            how = "" if scaling == NO_SCALING else f", {scaling}"
            name = f"{described(each.weights)}: rise at {found.longest} tokens{how}"
            yield {"contrast": name} | {key: told[key] for key in shown}


def cells(contrast: Contrast) -> dict[str, Value]:
    """What a contrast can bear, under the headings of ``BEARS``; {} where no seed is complete."""
    test, pooled = contrast.difference, contrast.pooled
    if test is None:
        return {}
    return {
        "pairs": test.n, "difference": test.mean, "95 % interval": interval(test),
        "pooled difference": pooled.mean if pooled else None,
        "pooled 95 % interval": interval(pooled),
        "degrees of freedom": pooled.freedom if pooled else None, "s.d. of pairs": test.sd,
        "least detectable": pooled.detectable if pooled else test.detectable, "flip p": test.p,
        "flip p, max-T": contrast.adjusted_p, "flip p, Holm": contrast.holm_p,
        "least flip p": test.p_floor, "pooled p": pooled.p if pooled else None,
        "pooled p, Holm": pooled.adjusted_p if pooled else None,
        "decided by": contrast.decided_by, "verdict": contrast.verdict,
        "seed by seed": ", ".join(map(signed, test.differences)),
    }  # fmt: skip


# -- figures -------------------------------------------------------------------------------------


def difference_figure(view: View, tones: Tones) -> Drawing:
    """Final differences to the baseline, every seed shown."""
    less = f"validation loss minus {view.baseline}'s"
    rows = {arm: view.compared[arm] for arm in view.others}
    papers = {arm: view.paper_gap(arm) for arm in view.others}
    title = "Final difference to the baseline"
    table = _by_seed(view, "differences", title, less, rows, papers)
    return _drawn(
        table, tones, f"Final loss minus {view.baseline}'s", arm_sentences(view)[: len(view.others)]
    )


def are_many(view: View) -> bool:
    """Whether so many arms differ from the baseline that a screen does not hold them."""
    return len(view.others) > MOST_ROWS


def leading_figure(view: View, tones: Tones) -> Drawing | None:
    """Of many arms the main one and those that ended lowest; all stand in their own figure."""
    if not are_many(view):
        return None
    tests = {arm: view.compared[arm].difference for arm in view.others}
    means = {arm: test.mean for arm, test in tests.items() if test}
    ranked = sorted(means, key=lambda arm: (arm != view.main, means[arm]))  # the main arm first
    shown = ranked[:MOST_ROWS]
    table = _by_seed(
        view, "leading", "Final difference to the baseline, lowest arms",
        f"validation loss minus {view.baseline}'s", {arm: view.compared[arm] for arm in shown},
        {arm: view.paper_gap(arm) for arm in shown},
        more=f" The lowest of {len(means)} arms: being chosen for that flatters them.",
    )  # fmt: skip
    return _drawn(table, tones, f"Final loss minus {view.baseline}'s")


def points_figure(views: Sequence[View], tones: Tones) -> Drawing:
    """The main arm less the baseline at each point of a sweep."""
    first = views[0]
    rows = {
        ", ".join(f"{key}={value}" for key, value in view.swept.items()): view.main_contrast
        for view in views
        if view.main_contrast is not None
    }
    table = _by_seed(
        first, "points", "Final difference at each setting",
        f"{first.main}'s loss minus {first.baseline}'s", rows,
    )  # fmt: skip
    own = tones.get(first.main or "", REST)
    return _drawn(table, dict.fromkeys(rows, own), f"{first.main} minus {first.baseline}")


def contrast_figure(view: View, tones: Tones) -> Drawing | None:
    """The contrasts of a study, every seed shown, each in the tone of its first arm."""
    if not view.contrasts:
        return None
    rows = {each.name: each for each in view.contrasts}
    table = _by_seed(
        view, "contrasts", "Final contrasts", "validation loss", rows,
        missing="no contrast has a complete seed",
    )  # fmt: skip
    firsts = {name: max(each.weights, key=each.weights.__getitem__) for name, each in rows.items()}
    own = {name: tones.get(arm, REST) for name, arm in firsts.items()}
    return _drawn(table, own, "Contrasts", contrast_sentences(view))


def _by_seed(
    view: View,
    key: str,
    title: str,
    name: str,
    contrasts: Mapping[str, Contrast],
    papers: Mapping[str, float | None] = NO_PAPERS,
    *,
    missing: str = "no complete pair of runs",
    more: str = "",
) -> Table:
    """A row for each contrast, a column for each seed, and the paper's value where it has one."""
    seeds = [f"seed {seed}" for seed in view.facts.seeds]
    columns = [
        *words("arm"), Column("pairs"), Column("difference", NATS, 4, sign=True, name=name),
        Column("95 % interval", NATS, 4, sign=True), Column("paper's", NATS, 4, sign=True),
        *(Column(seed, NATS, 4, sign=True) for seed in seeds),
    ]  # fmt: skip
    rows: list[Row] = []
    for label, contrast in contrasts.items():
        if test := contrast.difference:
            paired = zip(contrast.seeds, test.differences, strict=True)
            rows.append({
                **dict.fromkeys(seeds), **{f"seed {seed}": each for seed, each in paired},
                "arm": label, "pairs": test.n, "difference": test.mean,
                "95 % interval": interval(test), "paper's": papers.get(label),
            })  # fmt: skip
    note = "Small dots are seeds, bars the 95 % t interval of the mean; below 0 is better."
    if any(row["paper's"] is not None for row in rows):
        note += " Diamonds: the paper's."
    return make_table(
        f"{view.key}-{key}", title, columns, rows, [view], note=note + more, fill=STUDY,
        missing=missing,
    )  # fmt: skip


def _drawn(table: Table, tones: Tones, lead: str, says: Sequence[str] = ()) -> Drawing:
    def draw(made: Table) -> Chart:
        return intervals(made, "difference", "95 % interval", "paper's", tones)

    return drawing(table, draw, lead, says=says)
