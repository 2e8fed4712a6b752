"""Loss against learning rate: each arm's curve, and its best rate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf, isfinite

from prism_transformer.core.table import Column, Row, Table, Value, words
from prism_transformer.figures.comparisons import against_rate
from prism_transformer.figures.style import Tones
from prism_transformer.reporting.answers import best_sentences, minus
from prism_transformer.reporting.exhibits import NATS, Drawing, drawing, in_nats, make_table
from prism_transformer.reporting.views import View
from prism_transformer.study.best_rates import ArmRates, Envelope
from prism_transformer.study.sentences import rates_said

ROOM = 2.5  # of what lies between the lowest mean and those beside the best, that a figure shows
TUNE = "a study with [tune], or with [sweep] optim.lr"
DRAWN = (
    "Dots are seeds, lines their means, stars the best rates; much higher losses are only in the "
    "data."
)
NOTE = (
    "The best rate is the lowest point of a parabola in the logarithm of the rate, through the "
    "lowest mean and its two neighbours; its 95 % interval, by the noise of all arms, also has the "
    "lowest points of cubics through one rate more, and that lowest rate. "
    "An end of the rates is never taken for the best."
)


def rates(views: Sequence[View]) -> Table:
    """Every arm that was tried at several rates."""
    found = [(view, view.envelope) for view in views if view.envelope]
    rows = [{"study": _name(view, each), **row} for view, each in found for row in each.table.rows]
    columns = [*words("study"), *in_nats(Envelope({}, (), (), tuned=True).table.columns)]
    return make_table(
        "rates", "Learning rate of each arm", columns, rows, [view for view, _ in found],
        note=NOTE, fill=TUNE, missing="no arm was tried at several learning rates",
    )  # fmt: skip


def _name(view: View, envelope: Envelope) -> str:
    rest = (f"{key}={value}" for key, value in envelope.values.items())
    return ", ".join([view.facts.name, *rest])


def rate_figure(view: View, tones: Tones) -> Drawing | None:
    """Loss at each rate, every seed shown, and the fitted best of each arm."""
    envelope = view.envelope
    if envelope is None:
        return None
    seeds = [f"seed {seed}" for seed in envelope.seeds]
    columns = [
        *words("arm"), Column("learning rate", digits=2), Column("validation loss", NATS, 4),
        *words("best"), *(Column(seed, NATS, 4) for seed in seeds),
    ]  # fmt: skip
    rows = [row for each in envelope.arms for row in _rows(each, seeds)]
    note = NOTE if not envelope.tuned else f"{NOTE} These seeds are not those of the comparison."
    table = make_table(
        f"{view.key}-rates", "Loss against learning rate", columns, rows, [view],
        note=f"{DRAWN} {note}",
        fill=TUNE, missing="no arm has complete runs at all rates",
    )  # fmt: skip
    draw = partial(
        against_rate, x="learning rate", y="validation loss", best="best", tones=tones,
        top=_top(envelope),
    )  # fmt: skip
    says = (*map(minus, rates_said(envelope)), *best_sentences(view))
    return drawing(table, draw, says=says)


def _rows(each: ArmRates, seeds: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
    for place, rate in enumerate(each.rates):
        here = [row[place] for row in each.losses]
        known = [loss for loss in here if isfinite(loss)]
        if known:
            row: dict[str, Value] = dict.fromkeys(seeds)
            row |= {s: loss for s, loss in zip(seeds, here, strict=True) if isfinite(loss)}
            mean = None if inf in here else sum(known) / len(known)
            row |= {"arm": each.arm, "learning rate": rate, "validation loss": mean, "best": ""}
            rows.append(row)
    if each.best and not each.best.edge:
        rows.append({
            **dict.fromkeys(seeds), "arm": each.arm, "learning rate": each.best.rate,
            "validation loss": each.best.loss, "best": "yes",
        })  # fmt: skip
    return rows


def _top(envelope: Envelope) -> float:
    """The highest loss that is drawn."""
    known = [each.best for each in envelope.arms if each.best]
    lows: list[float] = []
    near: list[float] = []
    for best in known:
        place = best.means.index(min(best.means))
        beside = [mean for mean in best.means[max(0, place - 1) : place + 2] if isfinite(mean)]
        lows, near = [*lows, min(best.means)], [*near, *beside]
    if not near:
        return inf
    return min(lows) + ROOM * (max(near) - min(lows)) if max(near) > min(lows) else inf
