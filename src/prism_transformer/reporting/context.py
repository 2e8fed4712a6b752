"""Beyond the training context: the loss in longer sequences, and what is found again in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from prism_transformer.core.table import Column, Row, Table, words
from prism_transformer.eval.retrieval import CHOICES, DEPTHS, LENGTHS, task_name
from prism_transformer.figures.comparisons import by_length
from prism_transformer.figures.style import Tones
from prism_transformer.reporting.answers import minus, rises_said
from prism_transformer.reporting.contrasts import cells
from prism_transformer.reporting.exhibits import NATS, Drawing, drawing, make_table, over_seeds
from prism_transformer.reporting.views import View
from prism_transformer.study import metrics
from prism_transformer.study.contrasts import described
from prism_transformer.study.lengths import SCALING, Lengths
from prism_transformer.study.sentences import sentence

LONGER = "a study with `times` in [loss]"
RISES = (
    Column("pairs"), Column("difference", NATS, 4, sign=True),
    Column("95 % interval", NATS, 4, sign=True), Column("pooled difference", NATS, 4, sign=True),
    Column("pooled 95 % interval", NATS, 4, sign=True), Column("flip p", places=3),
    Column("flip p, max-T", places=3), Column("pooled p, Holm", places=3),
    *words("decided by", "verdict"),
)  # fmt: skip
RETRIEVE = "prism eval RUN --tasks passkey,needle, then prism study collect"


def rises(views: Sequence[View]) -> Table:
    """Contrasts of how much the loss rises at the longest length, for each scaling."""
    columns = [
        *words("study", SCALING, "contrast", "what"), Column("length", "tokens"), *RISES,
    ]  # fmt: skip
    found = [(view, view.lengths) for view in views if view.lengths]
    rows = [row for view, lengths in found for row in _contrasts(view, lengths)]
    note = (
        "The rise is a run's loss in sequences of that length less its own at the training "
        "context, on the same text; below 0 is better for the arm named first. All scalings are "
        "one family: max-T over joint sign flips, pooled p by the error of all arms after Holm."
    )
    return make_table(
        "rises", "Rise of the loss beyond the training context", columns, rows,
        [view for view, _ in found], note=note, fill=LONGER,
        missing="no study read its runs at longer lengths",
    )  # fmt: skip


def _contrasts(view: View, found: Lengths) -> Iterator[Row]:
    for each in found.contrasts:
        if known := cells(each):
            yield {
                "study": view.name, SCALING: str(each.values[SCALING]), "contrast": each.name,
                "what": described(each.weights), "length": found.longest,
                **{column.key: known[column.key] for column in RISES},
            }  # fmt: skip


def length_figure(view: View, tones: Tones) -> Drawing | None:
    """Loss against the length of sequences, a panel for each scaling, every seed shown."""
    found = view.lengths
    if found is None:
        return None
    seeds = [f"seed {seed}" for seed in view.facts.seeds]
    columns = [
        *words("arm", SCALING), Column("length", "tokens", name="length of sequences"),
        Column("loss", NATS, 4), Column("rise", NATS, 4, sign=True),
        *(Column(seed, NATS, 4) for seed in seeds),
    ]  # fmt: skip
    rows = [row for arm in view.arms for row in _losses(found, arm, seeds)]
    note = (
        f"Trained in sequences of {found.context:,} tokens; the same text at every length. Thin "
        "lines are seeds, marks their means. none: positions as they are; linear interpolates "
        "them, ntk raises the base, yarn decides for each frequency; each to the length read."
    )
    table = make_table(
        f"{view.key}-lengths", "Loss beyond the training context", columns, rows, [view],
        note=note, fill=LONGER,
    )  # fmt: skip
    says = (rises_said(found), *map(minus, map(sentence, found.told)))
    draw = partial(by_length, panel=SCALING, x="length", y="loss", tones=tones)
    return drawing(table, draw, "Mean loss at the longest length", says=says)


def _losses(found: Lengths, arm: str, seeds: Sequence[str]) -> Iterator[Row]:
    for scaling, by_tokens in found.losses.items():
        for length in sorted(by_tokens):
            values, rise = by_tokens[length][arm], found.rises(scaling, length)[arm]
            if (mean := over_seeds(values)) is None:
                continue
            each = {
                seed: float(value) if value == value else None
                for seed, value in zip(seeds, values, strict=True)
            }
            own = length == found.context
            yield {
                "arm": arm, SCALING: scaling, "length": length, "loss": mean,
                "rise": None if own else over_seeds(rise), **each,
            }  # fmt: skip


# -- passkey and needle ----------------------------------------------------------------------------


def retrieval(views: Sequence[View]) -> Table:
    """What is found again, by depth and by length."""
    columns = [
        *words("study", "arm", "task"), Column("length", "characters"), Column("seeds"),
        Column("chance", "%", 0), *(Column(f"depth {depth} %", "%", 1) for depth in DEPTHS),
        Column("all depths", "%", 1),
    ]  # fmt: skip
    rows = [row for view in views for task in CHOICES for row in _found_again(view, task)]
    note = (
        "Accuracy, mean and s.d. over seeds, at each depth: how much of the text stands before "
        "what is asked for. A text that is longer than the model's context loses its beginning, "
        "and with it what stood there: then chance is all that can be reached."
    )
    return make_table(
        "retrieval", "Passkey and needle", columns, rows, views, note=note, fill=RETRIEVE,
        missing="no run was asked for a passkey or a needle",
    )  # fmt: skip


def _found_again(view: View, task: str) -> Iterator[Row]:
    """A row for each arm and each length at which any of its runs were asked."""
    # All arms at once: reading one metric out of a study's table takes milliseconds.
    scores = {
        length: {
            depth: 100 * view.scalar(metrics.eval_score(task_name(task, length, depth), "acc"))
            for depth in DEPTHS
        }
        for length in LENGTHS
    }
    for arm in view.arms:
        for length, by_depth in scores.items():
            own = {depth: score[arm].dropna() for depth, score in by_depth.items()}
            if seeds := max(map(len, own.values())):
                mean = sum(own.values()) / len(own)  # of each seed
                yield {
                    "study": view.name, "arm": arm, "task": task, "length": length, "seeds": seeds,
                    "chance": 100 / CHOICES[task],
                    **{f"depth {depth} %": over_seeds(score) for depth, score in own.items()},
                    "all depths": over_seeds(mean),
                }  # fmt: skip
