"""Figures of what was trained: schedules, loss, and the gap over training and over scales."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

from prism_transformer import paper
from prism_transformer.plots.figures import head_schedules
from prism_transformer.report.drawing import Lines, Picture, Point, curves, differences
from prism_transformer.report.figures import (
    STUDY,
    Drawing,
    Tones,
    absent,
    band,
    data_table,
    listed,
    most_seeds,
    paired_rows,
    seeds_note,
    spread_of,
    tokens_unit,
)
from prism_transformer.report.maps import heads_map, scale_gaps, size_label
from prism_transformer.report.palette import INK, Tone
from prism_transformer.report.table import Cell, Column, Row, interval, number, signed, text
from prism_transformer.report.tables import paper_gap, words
from prism_transformer.report.views import View
from prism_transformer.study.statistics import gap_curve, summarise

BESIDE = 1.12  # the paper's points, moved a little to the right of ours
EARLY = 0.1  # share of training that the figure of the gap leaves out: it would set the axis


def schedule_figure(view: View, tones: Tones) -> Drawing:
    """Figure 1: the baseline beside the main arm, or the one arm there is."""
    key = f"{view.key}-schedules"
    arms = [view.baseline] + ([view.main] if view.main else [])
    columns = [*words("arm"), Column("layer"), Column("heads"), Column("head width", "channels")]
    rows = [
        Row((text(arm), number(layer, 0), number(n, 0), number(view.d_model / n, 0)), arm)
        for arm in view.arms
        for layer, n in enumerate(view.schedule(arm).heads)
    ]
    if len(arms) == 1:
        picture = heads_map({arms[0]: view.schedule(arms[0])}, view.d_model)
    else:
        left, right = (view.schedule(arm) for arm in arms)
        picture = Picture(head_schedules(left, right, view.d_model))
        for ax, arm in zip(picture.figure.axes, arms, strict=True):
            for layer, bar in enumerate(ax.patches):
                n = view.schedule(arm).heads[layer]
                tip = f"{arm}, layer {layer}: {n} heads of width {view.d_model // n}"
                picture.mark(bar, None, [tip])
    told = "; ".join(f"{arm} {view.schedule(arm)}" for arm in arms)
    alt = f"Heads in each layer, written heads x layers: {told}."
    note = "One bar a layer, one block a head; all arms are in the data."
    data = data_table(key, columns, rows)
    return Drawing(key, "Head schedules", picture, alt, data, note, view.command)


def schedule_map(view: View, tones: Tones) -> Drawing | None:
    """Every arm's heads at a glance, where there are more than two."""
    if len(view.arms) < 3:
        return None
    schedules = {arm: view.schedule(arm) for arm in view.arms}
    picture = heads_map(schedules, view.d_model)
    alt = "Heads in each layer: " + listed([f"{arm} {s}" for arm, s in schedules.items()])
    note = "A cell is a layer; a number is the heads of its phase, the colour their width."
    key, title = f"{view.key}-schedule-map", "Schedules of all arms"
    return Drawing(key, title, picture, alt, None, note, view.command)


def loss_curves(view: View, tones: Tones) -> Drawing:
    """Validation loss of every arm over training."""
    title, key = "Validation loss over training", f"{view.key}-loss"
    found = view.series("val_loss", "step")
    if not found:
        return absent(view, "loss", title, "no validation was collected", STUDY)
    scale, name = tokens_unit(view.tokens)
    series, rows = [], []
    for arm, wide in found.items():
        seen = wide.index.to_numpy(float) * view.batch_tokens
        one, told = band(arm, tones[arm], seen / scale, wide, f"{{}} {name} of tokens")
        series.append(one)
        rows += told
    columns = [
        *words("arm"), Column("tokens", name), Column("loss", "nats/token"),
        Column("s.d.", "nats/token"), Column("seeds"),
    ]  # fmt: skip
    picture = curves([Lines(series, "validation loss, nats/token")], f"training tokens, {name}")
    ends = listed([f"{one.arm} {one.y[-1]:.4f} after {one.x[-1]:.3g} {name}" for one in series])
    note = f"Means, bands one s.d. over seeds; {seeds_note(view, most_seeds(found))}."
    alt = f"Validation loss over training tokens, nats per token: {ends}"
    data = data_table(key, columns, rows)
    return Drawing(key, title, picture, alt, data, note, view.command)


def gap_figure(view: View, tones: Tones) -> Drawing:
    """Figure 3a: each arm's gap to the baseline over training."""
    title, key = "Gap to the baseline over training", f"{view.key}-gap"
    scale, name = tokens_unit(view.tokens)
    found = view.series("val_loss", "step")
    series, rows, most = [], [], 0
    for arm in view.others:
        gaps = paired_rows(found, view.baseline, arm)
        if gaps.empty:
            continue
        seen = gaps.index.to_numpy(float) * view.batch_tokens
        curve = gap_curve(seen, gaps.to_numpy(float).T)
        for t, mean, sd, low, high in zip(
            seen, curve.mean, spread_of(gaps), curve.low, curve.high, strict=True
        ):
            cells = (
                text(arm), Cell(f"{t / scale:g}", t / scale), number(mean, sign=True), number(sd),
                interval(low, high), number(gaps.shape[1], 0),
            )  # fmt: skip
            rows.append(Row(cells, arm))
        late = gaps[seen >= EARLY * seen[-1]]
        where = late.index.to_numpy(float) * view.batch_tokens / scale
        one, _ = band(arm, tones[arm], where, late, f"{{}} {name} of tokens", sign=True)
        series.append(one)
        most = max(most, gaps.shape[1])
    if not series:
        return absent(view, "gap", title, "no arm shares a seed with the baseline", STUDY)
    columns = [
        *words("arm"), Column("tokens", name), Column("gap", "nats/token"),
        Column("s.d.", "nats/token"), Column("95 % interval", "nats/token"), Column("pairs"),
    ]  # fmt: skip
    lines = Lines(series, f"loss less {view.baseline}'s, nats/token", zero=True)
    picture = curves([lines], f"training tokens, {name}")
    ends = listed([f"{one.arm} {signed(one.y[-1])} after {one.x[-1]:.3g} {name}" for one in series])
    note = (
        f"Mean over pairs of one seed, bands one s.d. as in the paper; {seeds_note(view, most)}. "
        "The first tenth of training is only in the data, which has t intervals too."
    )
    if view.scale is not None and view.scale.name == "large":
        note += f" The paper: a plateau near {signed(paper.text().plateau, 3)} from 10 billion on."
    alt = f"Loss less {view.baseline}'s over training tokens, below 0 is better: {ends}"
    data = data_table(key, columns, rows)
    return Drawing(key, title, picture, alt, data, note, view.command)


def difference_figure(view: View, tones: Tones) -> Drawing:
    """Final differences to the baseline, every seed shown."""
    title, key = "Final difference to the baseline", f"{view.key}-differences"
    points, rows = [], []
    for arm in view.others:
        test, printed = view.row(arm).difference, paper_gap(view, arm)
        if test is None:
            continue
        known = test.n > 1
        told = f", 95 % {signed(test.low)} to {signed(test.high)}" if known else ", one pair"
        point = Point(
            arm, tones[arm], test.mean, 0.0, x_error=test.high - test.mean if known else 0.0,
            tip=f"{arm}: {signed(test.mean)}{told}", each=test.differences, paper=printed,
        )  # fmt: skip
        points.append(point)
        cells = (
            text(arm), number(test.n, 0), number(test.mean, sign=True),
            interval(test.low, test.high), number(printed, sign=True),
        )  # fmt: skip
        rows.append(Row(cells, arm))
    if not points:
        return absent(view, "differences", title, "no complete pair of runs", STUDY)
    columns = [
        *words("arm"), Column("pairs"), Column("difference", "nats/token"),
        Column("95 % interval", "nats/token"), Column("paper's", "nats/token"),
    ]  # fmt: skip
    picture = differences(points, f"validation loss less {view.baseline}'s, nats/token")
    note = "Small dots are seeds, bars the 95 % t interval of the mean; below 0 is better."
    if any(point.paper is not None for point in points):
        note += " Diamonds: the paper's."
    alt = f"Final loss less {view.baseline}'s: " + listed([point.tip for point in points])
    data = data_table(key, columns, rows)
    return Drawing(key, title, picture, alt, data, note, view.command)


def scales_figure(views: Sequence[View], tones: Tones) -> Drawing:
    """Figure 3b: the final gap against model size, ours beside the paper's."""
    title, key = "Gap across scales", "gap-scales"
    columns = [
        *words("study", "source"), Column("parameters"), Column("gap", "nats/token"),
        Column("propagated s.d.", "nats/token"), Column("pairs"),
    ]  # fmt: skip
    points, rows = [], []
    for view in views:
        wide = view.scalar("final_val_loss")
        if view.main is None or wide[[view.baseline, view.main]].dropna().empty:
            continue
        both = wide[[view.baseline, view.main]].dropna()
        ours, base = summarise(both[view.main]), summarise(both[view.baseline])
        gap, error = ours.mean - base.mean, hypot(ours.sd, base.sd)
        size: float = view.parameters
        points.append(_scale_point(view.name, tones[view.main], size, gap, error))
        cells = (
            text(view.name), text("ours"), number(size, 0), number(gap, sign=True), number(error),
            number(ours.n, 0),
        )  # fmt: skip
        rows.append(Row(cells))
    if not points:
        return absent(None, key, title, "no study has a complete pair of runs", STUDY)
    ink = Tone("ink", INK, INK, "D")
    for scale in paper.scales().values():
        error = hypot(*scale.loss_std.values())
        size = float(scale.params.removesuffix("M")) * 1e6
        points.append(_scale_point("paper", ink, size, scale.gap, error, BESIDE))
        cells = (
            text(scale.name), text("paper"), number(size, 0), number(scale.gap, sign=True),
            number(error), number(paper.text().seeds, 0),
        )  # fmt: skip
        rows.append(Row(cells, paper=True))
    alt = "Final gap by parameters: " + listed([point.tip for point in points])
    note = (
        "Whiskers: one s.d., propagated from both arms as the paper does; it ignores that runs of "
        "one seed are paired. Diamonds: the paper's, drawn a little to the right."
    )
    command = "; ".join(dict.fromkeys(view.command for view in views))
    picture = scale_gaps(points, "parameters", "main arm's loss less baseline's, nats/token")
    return Drawing(key, title, picture, alt, data_table(key, columns, rows), note, command)


def _scale_point(
    name: str, tone: Tone, size: float, gap: float, error: float, beside: float = 1.0
) -> Point:
    tip = f"{name}, {size_label(size)}: {signed(gap)}"
    return Point(name, tone, beside * size, gap, y_error=0.0 if error != error else error, tip=tip)
