"""Figures of what was measured on trained models: benchmarks, attention, positions, speed."""

from __future__ import annotations

import numpy as np

from prism_transformer.plots.profiles import compare_profiles
from prism_transformer.report.benchmarks import diagnostic_note, factor, scores_title, unit
from prism_transformer.report.drawing import (
    Lines,
    Panel,
    Picture,
    Point,
    bar_panels,
    curves,
    plain_name,
    scatter,
)
from prism_transformer.report.figures import (
    ANALYZE,
    LOSS,
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
)
from prism_transformer.report.table import PLUS_MINUS, Column, Row, number, signed, text
from prism_transformer.report.tables import EVALUATE, layers_below_base, paper_arm, words
from prism_transformer.report.views import View
from prism_transformer.study.statistics import pareto, summarise

MOST_BARS = 8


def benchmark_figure(view: View, tones: Tones) -> Drawing:
    """Figure 2: zero-shot scores, a panel for each benchmark."""
    key, scored = f"{view.key}-benchmarks", [task for task, _ in view.tasks()]
    title = scores_title(scored)
    arms = list(dict.fromkeys([view.baseline, view.main or view.baseline, *view.others]))
    panels, rows = [], []
    for task, metric in view.tasks():
        wide = view.scalar(f"eval.{task}.{metric}") * factor(metric)
        bars = []
        for arm in arms:
            if not wide[arm].count():
                continue
            found = summarise(wide[arm].dropna())
            printed = _printed(view, arm, task)
            sd = found.sd if found.n > 1 else 0.0
            around = f" {PLUS_MINUS} {sd:.1f}" if found.n > 1 else ""
            tip = f"{arm}, {task} {metric}: {found.mean:.1f}{around}"
            bars.append(Point(arm, tones[arm], 0.0, found.mean, y_error=sd, tip=tip, paper=printed))
            cells = (
                text(arm), text(task), text(metric), number(found.mean, 1), number(found.sd, 1),
                number(found.n, 0), number(printed, 1),
            )  # fmt: skip
            rows.append(Row(cells, arm))
        if bars:
            label = f"{metric}, {unit(metric)}" if unit(metric) else metric.replace("_", " ")
            panels.append(Panel(task, label, tuple(bars[:MOST_BARS])))
    if not panels:
        return absent(view, "benchmarks", title, "no run was scored on a benchmark", EVALUATE)
    columns = [
        *words("arm", "task", "metric"), Column("mean"), Column("s.d."), Column("seeds"),
        Column("paper's"),
    ]  # fmt: skip
    alt = f"{title}: " + listed([bar.tip for panel in panels for bar in panel.bars])
    note = "Means over seeds, whiskers one s.d.; accuracies in percent, perplexity lower is better."
    note += diagnostic_note(scored)
    if len(arms) > MOST_BARS:
        note += f" The first {MOST_BARS} of {len(arms)} arms; all are in the data."
    data = data_table(key, columns, rows)
    return Drawing(key, title, bar_panels(panels), alt, data, note, view.command)


def _printed(view: View, arm: str, task: str) -> float | None:
    kind = paper_arm(view, arm)
    return view.scale.benchmarks[kind].get(task) if view.scale and kind else None


def attention_figure(view: View, tones: Tones) -> Drawing:
    """Figure 4: attention distance by layer, and its difference to the baseline."""
    title, key = "Attention distance by layer", f"{view.key}-attention"
    found = view.series("attention.distance", "index")
    if view.main is None or view.main not in found or view.baseline not in found:
        why = "no pair of arms was analyzed" if view.main else "there is one arm only"
        return absent(view, "attention", title, why, ANALYZE)
    arms = (view.baseline, view.main)
    each = [[found[arm][seed].to_numpy() for seed in found[arm]] for arm in arms]
    n_progressive = layers_below_base(view, view.main)
    colours = (tones[arms[0]].light, tones[arms[1]].light)
    names = (plain_name(arms[0]), plain_name(arms[1]))
    figure = compare_profiles(each[0], each[1], names, n_progressive, colours=colours)
    picture = Picture(figure)
    columns = [
        *words("arm"), Column("layer"), Column("distance", "tokens"), Column("s.d.", "tokens"),
        Column("seeds"),
    ]  # fmt: skip
    rows = []
    for arm, wide in found.items():
        layers = wide.index.to_numpy(float)
        one, told = band(arm, tones[arm], layers, wide, "layer {}")
        rows += told
        if arm in arms:
            line = figure.axes[0].lines[arms.index(arm)]
            picture.mark(line, arm, one.tips)
    gap = np.mean(each[1], axis=0) - np.mean(each[0], axis=0)
    tips = [f"layer {layer}: {signed(value, 2)} tokens" for layer, value in enumerate(gap)]
    picture.mark(figure.axes[1].lines[1], None, tips)
    lowest, highest = int(np.argmin(gap)), int(np.argmax(gap))
    alt = (
        f"Mean attention distance of {arms[0]} and {arms[1]} by layer; the difference is lowest at "
        f"layer {lowest}, {signed(gap[lowest], 2)} tokens, and highest at layer {highest}, "
        f"{signed(gap[highest], 2)} tokens."
    )
    note = (
        "Queries of the last half of the context. Bands one s.d. over seeds, propagated on the "
        f"right, as in the paper; {seeds_note(view, most_seeds(found))}. All arms are in the data."
    )
    data = data_table(key, columns, rows)
    return Drawing(key, title, picture, alt, data, note, view.command)


def position_figure(view: View, tones: Tones) -> Drawing:
    """Loss by position in the context, and its difference to the baseline."""
    title, key = "Loss by position in the context", f"{view.key}-positions"
    found = view.series("loss_at_position", "index")
    if not found:
        return absent(view, "positions", title, "no loss by position was collected", LOSS)
    series, gaps, rows = [], [], []
    for arm, wide in found.items():
        where = "positions to {}"
        one, told = band(arm, tones[arm], wide.index.to_numpy(float), wide, where)
        series.append(one)
        rows += told
        paired = paired_rows(found, view.baseline, arm)
        if arm != view.baseline and not paired.empty:
            places = paired.index.to_numpy(float)
            gaps.append(band(arm, tones[arm], places, paired, where, sign=True)[0])
    panels = [Lines(series, "loss, nats/token")]
    if gaps:
        panels.append(Lines(gaps, f"loss less {view.baseline}'s, nats/token", zero=True))
    columns = [
        *words("arm"), Column("position up to"), Column("loss", "nats/token"),
        Column("s.d.", "nats/token"), Column("seeds"),
    ]  # fmt: skip
    picture = curves(panels, "position in the context, tokens (end of bin)", log_x=True)
    ends = listed([f"{one.arm} {one.y[0]:.3f} to {one.y[-1]:.3f}" for one in series])
    alt = f"Loss from the first to the last positions of the context: {ends}"
    note = f"Means over seeds, bands one s.d.; {seeds_note(view, most_seeds(found))}."
    data = data_table(key, columns, rows)
    return Drawing(key, title, picture, alt, data, note, view.command)


def pareto_figure(view: View, tones: Tones) -> Drawing:
    """Loss against speed: arms that none beats in both are joined."""
    title, key = "Loss against speed", f"{view.key}-pareto"
    losses, rates = view.scalar("final_val_loss"), view.scalar("tokens_per_second")
    points, rows = [], []
    for arm in view.arms:
        both = losses[arm].notna() & rates[arm].notna()
        if not both.any():
            continue
        loss, rate = summarise(losses[arm][both]), summarise(rates[arm][both])
        tip = f"{arm}: {loss.mean:.4f} nats/token at {rate.mean:,.0f} tokens/s"
        points.append(
            Point(
                arm, tones[arm], rate.mean, loss.mean, tip=tip,
                x_error=rate.sd if rate.n > 1 else 0.0, y_error=loss.sd if loss.n > 1 else 0.0,
            )
        )  # fmt: skip
    if not points:
        return absent(view, "pareto", title, "no run is complete", STUDY)
    best = {points[place].name for place in pareto([(p.y, p.x) for p in points])}
    for p in points:
        cells = (
            text(p.name), number(p.y), number(p.y_error), number(p.x, 0), number(p.x_error, 0),
            text("yes" if p.name in best else "no"),
        )  # fmt: skip
        rows.append(Row(cells, p.name))
    columns = [
        *words("arm"), Column("loss", "nats/token"), Column("s.d.", "nats/token"),
        Column("rate", "tokens/s"), Column("s.d.", "tokens/s"), *words("on the front"),
    ]  # fmt: skip
    picture = scatter(points, sorted(best), "rate, tokens/s", "validation loss, nats/token")
    names = ", ".join(p.name for p in points if p.name in best)
    alt = f"Loss against tokens per second. On the front: {names}."
    note = (
        "Means over seeds, whiskers one s.d. (none for arms in grey). The line joins the "
        "arms that none beats in both; no account is taken of noise."
    )
    data = data_table(key, columns, rows)
    return Drawing(key, title, picture, alt, data, note, view.command)
