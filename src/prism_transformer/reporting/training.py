"""Training: Table 2 of the paper, its Figure 3, loss against speed, every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import hypot

from prism_transformer.core.table import (
    PAPER,
    Column,
    Interval,
    Row,
    Spread,
    Table,
    Value,
    signed,
    words,
)
from prism_transformer.data.mixture import given
from prism_transformer.figures.chart import Chart
from prism_transformer.figures.comparisons import curves, front
from prism_transformer.figures.sizes import across_sizes
from prism_transformer.figures.style import Tones
from prism_transformer.recipes.files import changed
from prism_transformer.reporting.exhibits import (
    NATS,
    STUDY,
    Drawing,
    drawing,
    make_table,
    over_seeds,
    seeds_note,
    spreads,
)
from prism_transformer.reporting.views import View
from prism_transformer.schedules import paper
from prism_transformer.study import metrics
from prism_transformer.study.collected import LEARNING_RATE, Facts, RunFacts
from prism_transformer.study.compare import RATES_BESIDE
from prism_transformer.study.statistics import gap_curve, pareto, summarise

EARLY = 0.1  # share of training whose gap does not set the axis of its figure


def results(views: Sequence[View]) -> Table:
    """Table 2: loss, rate and time of every arm."""
    places = hour_places(views)
    columns = [
        *words("study", "arm"), Column("seeds"), Column("validation loss", NATS, 4),
        Column("paper's loss", NATS, 4), Column("rate", "tokens/s", 0),
        Column("paper's rate", "tokens/s", 0), Column("training time", "h", places),
        Column("paper's wall-clock", "h", 2),
    ]  # fmt: skip
    rows: list[Row] = []
    for view in views:
        losses = view.scalar(metrics.FINAL_LOSS)
        rates = view.scalar(metrics.TOKENS_PER_SECOND).where(losses.notna())
        hours = view.scalar(metrics.SECONDS).where(losses.notna()) / 3600
        for arm in view.arms:
            scale = view.scale if view.paper_arm(arm) else None
            rows.append({
                "study": view.name, "arm": arm, "seeds": int(losses[arm].count()),
                "validation loss": over_seeds(losses[arm]),
                "paper's loss": _paper_loss(view, arm),
                "rate": over_seeds(rates[arm]),
                "paper's rate": scale.tokens_per_second if scale else None,
                "training time": over_seeds(hours[arm]),
                "paper's wall-clock": scale.hours if scale else None,
            })  # fmt: skip
    note = (
        "Mean and sample s.d. over runs that were trained to the end; a rate is each run's median "
        "step; training time is that of all steps, without validation and checkpoints. The paper: "
        "three seeds, 8 x H100."
    )
    if any(view.beside_others for view in views):
        note += f" {RATES_BESIDE}"
    return make_table("results", "Validation loss, rate and time", columns, rows, views, note=note)


def hour_places(views: Sequence[View]) -> int:
    """Decimals of an hour: two as the paper has, four where runs of a study take minutes."""
    longest = [view.scalar(metrics.SECONDS).max(axis=None) for view in views]
    return 4 if any(seconds < 900 for seconds in longest) else 2


def _paper_loss(view: View, arm: str) -> Value:
    kind, row = view.paper_arm(arm), view.paper_ablation(arm)
    if kind is not None and view.scale is not None:
        return Spread(view.scale.loss[kind], view.scale.loss_std[kind])
    return row.loss if row else None


def mixtures(views: Sequence[View]) -> Table | None:
    """What the corpora of each mixture give to training; None where nothing is mixed."""
    columns = [
        *words("study", "corpus"), Column("weight", digits=4), Column("seeds"),
        Column("share", "%", 2), Column("training tokens", places=0),
    ]  # fmt: skip
    rows: list[Row] = []
    for view in views:
        seeds = sorted({run.seed for run in view.runs}) or [view.recipe.train.seed]
        drawn = [given(changed(view.recipe, {"train.seed": each}, view.key)) for each in seeds]
        for parts in zip(*drawn, strict=True):
            rows.append({
                "study": view.name, "corpus": parts[0].folder, "weight": parts[0].weight,
                "seeds": len(seeds), "share": over_seeds(100 * part.share for part in parts),
                "training tokens": over_seeds(
                    part.windows * view.recipe.model.seq_len for part in parts
                ),
            })  # fmt: skip
    note = (
        "Share of the training windows from the first step to the last; the same for all arms of "
        "a seed. Weights are exact in every 1,000 windows. Validation is the slice of "
        "data.folder, whatever is mixed."
    )
    made = make_table("mixtures", "Corpora of the mixture", columns, rows, views, note=note)
    return made if rows else None


def runs(views: Sequence[View]) -> Table:
    """What became of every run."""
    columns = [
        *words("study", "run", "arm"), Column("seed"), *words("state"),
        Column("rate", "tokens/s", 0), Column("training time", "h", hour_places(views)),
        Column("peak memory", "GB", 2), *words("hardware", "failure"),
    ]  # fmt: skip
    rows: list[Row] = []
    for view in views:
        rates = view.scalar(metrics.TOKENS_PER_SECOND)
        hours = view.scalar(metrics.SECONDS) / 3600
        memory = view.scalar(metrics.MEMORY_BYTES) / 1e9
        for run in view.runs:
            at = (run.seed, run.arm)
            rows.append({
                "study": view.name, "run": run.run, "arm": run.arm, "seed": run.seed,
                "state": run.state, "rate": rates.at[at], "training time": hours.at[at],
                "peak memory": memory.at[at], "hardware": _place(run),
                "failure": run.failure,
            })  # fmt: skip
    return make_table("runs", "Every run", columns, rows, views, note="GB: 10^9 bytes.")


def _place(run: RunFacts) -> str:
    """The hardware of a run, and whether it had it for itself."""
    beside = "; beside other work" if run.beside_others else ""
    return f"{machine(run.hardware)}{beside}"


def machine(hardware: Facts | None) -> str:
    """The hardware of a run in a few words."""
    if not hardware:
        return ""
    if hardware.get("gpu"):
        return f"{hardware.get('gpus', 1)} x {hardware['gpu']}"
    cores = f", {hardware['cores']} cores" if hardware.get("cores") else ""
    return f"{hardware.get('processor', 'unknown processor')}{cores}"


# -- figures -------------------------------------------------------------------------------------


def tokens_unit(tokens: float) -> tuple[float, str]:
    """Tokens in thousands, millions or billions."""
    for size, name in ((1e9, "billions"), (1e6, "millions"), (1e3, "thousands")):
        if tokens >= size:
            return size, f"{name} of tokens"
    return 1.0, "tokens"


def _tokens(view: View) -> tuple[float, Column]:
    """The tokens that one step is worth on the axis of training, and that axis."""
    size, unit = tokens_unit(view.tokens)
    return view.batch_tokens / size, Column("training", unit, digits=4)


def _masked(view: View) -> bool:
    return view.facts.recipe.train.objective == "masked"


def loss_curves(view: View, tones: Tones) -> Drawing:
    """Validation loss of every arm over training."""
    each, axis = _tokens(view)
    columns = [*words("arm"), axis, Column("validation loss", NATS, 4), Column("seeds")]
    found = view.series(metrics.VAL_LOSS, "step")
    rows = [
        {"arm": arm, "training": each * step, "validation loss": loss, "seeds": wide.shape[1]}
        for arm, wide in found.items()
        for step, loss in zip(wide.index.to_numpy(float), spreads(wide), strict=True)
    ]
    of = " Of masked tokens only." if _masked(view) else ""
    table = make_table(
        f"{view.key}-loss", "Validation loss over training", columns, rows, [view], fill=STUDY,
        note=f"Means, bands one s.d. over seeds; {seeds_note(view, found)}.{of}",
        missing="no validation was collected",
    )  # fmt: skip
    lead = "Validation loss at the end of training, nats per token"
    return drawing(table, lambda t: curves(t, "training", ["validation loss"], tones), lead)


def gap_figure(view: View, tones: Tones) -> Drawing:
    """Figure 3a: each arm's gap to the baseline over training."""
    each, axis = _tokens(view)
    less = f"loss minus {view.baseline}'s"
    columns = [
        *words("arm"), axis, Column("gap", NATS, 4, sign=True, name=less),
        Column("95 % interval", NATS, 4, sign=True), Column("pairs"),
    ]  # fmt: skip
    paired = {arm: view.paired_series(metrics.VAL_LOSS, "step", arm) for arm in view.others}
    # A pair that has only begun shares no more than the loss before the first step.
    paired = {arm: gaps for arm, gaps in paired.items() if len(gaps) and gaps.index.max() > 0}
    rows: list[Row] = []
    for arm, gaps in paired.items():
        seen = gaps.index.to_numpy(float) * each
        curve = gap_curve(seen, gaps.to_numpy(float).T)
        rows += [
            {"arm": arm, "training": at, "gap": gap, "95 % interval": Interval(low, high),
             "pairs": gaps.shape[1]}
            for at, gap, low, high in zip(seen, spreads(gaps), curve.low, curve.high, strict=True)
        ]  # fmt: skip
    note = (
        f"Mean over pairs of one seed, bands one s.d. as in the paper; {seeds_note(view, paired)}. "
        "The gap's axis is that of the last nine tenths of training: what is farther off before is "
        "cut, and in the data, which has t intervals too."
    )
    if view.scale is not None and view.scale.name == "large":
        note += f" The paper: a plateau near {signed(paper.text().plateau, 3)} from 10 billion on."
    table = make_table(
        f"{view.key}-gap", "Gap to the baseline over training", columns, rows, [view], note=note,
        fill=STUDY, missing="no arm shares a seed with the baseline",
    )  # fmt: skip
    lead = f"Loss minus {view.baseline}'s at the end of training, below 0 is better"
    return drawing(table, lambda t: _whole(t, tones), lead)


def _whole(table: Table, tones: Tones) -> Chart:
    """The gap over the logarithm of tokens, from the first validation on, cut as its later part."""
    begun = [row for row in table.rows if float(str(row["training"])) > 0]
    chart = curves(replace(table, rows=tuple(begun)), "training", ["gap"], tones, log_x=True)
    last = max(float(str(row["training"])) for row in begun)
    late = [row["gap"] for row in begun if float(str(row["training"])) >= EARLY * last]
    ends = [
        g.mean + s * (g.sd if g.sd == g.sd else 0)
        for g in late
        if isinstance(g, Spread)
        for s in (-1, 1)
    ]
    low, high = min(*ends, 0.0), max(*ends, 0.0)
    room = 0.08 * (high - low) or 1e-4
    chart.figure.axes[0].set_ylim(low - room, high + room)
    return chart


def scales_figure(views: Sequence[View], tones: Tones) -> Drawing:
    """Figure 3b: the final gap against model size, ours beside the paper's."""
    columns = [
        *words("study", "arm", "source"), Column("parameters"),
        Column("gap", NATS, 4, sign=True, name="loss minus baseline's"), Column("pairs"),
    ]  # fmt: skip
    ours = [row for view in views if (row := _final_gap(view))]
    theirs: list[Row] = [
        {"study": scale.name, "arm": None, "source": PAPER,
         "parameters": round(float(scale.params.removesuffix("M")) * 1e6),
         "gap": Spread(scale.gap, hypot(*scale.loss_std.values())), "pairs": paper.text().seeds}
        for scale in paper.scales().values()
    ]  # fmt: skip
    note = (
        "Whiskers: one s.d., propagated from both arms as the paper does; it ignores that runs of "
        "one seed are paired. Diamonds: the paper's, drawn a little to the right. Studies of one "
        "size stand side by side about it; encoders and swept learning rates are left out."
    )
    table = make_table(
        "gap-scales", "Gap across scales", columns, [*ours, *theirs] if ours else [], views,
        note=note, fill=STUDY, missing="no study has a complete pair of runs",
    )  # fmt: skip
    lead = "Final gap by parameters"
    return drawing(table, lambda t: across_sizes(t, "parameters", "gap", tones), lead)


def _final_gap(view: View) -> Row | None:
    """The main arm less the baseline at the end, with the s.d. of both.

    The loss of masked tokens is another quantity, and stands beside no other; rates that are swept
    are shown against each other.
    """
    if view.main is None or _masked(view) or LEARNING_RATE in view.swept:
        return None
    both = view.scalar(metrics.FINAL_LOSS)[[view.baseline, view.main]].dropna()
    if both.empty:
        return None
    ours, base = summarise(both[view.main]), summarise(both[view.baseline])
    return {
        "study": view.name, "arm": view.main, "source": "ours", "parameters": view.parameters,
        "gap": Spread(ours.mean - base.mean, hypot(ours.sd, base.sd)), "pairs": ours.n,
    }  # fmt: skip


def pareto_figure(view: View, tones: Tones) -> Drawing:
    """Loss against speed: arms that none beats in both are joined."""
    columns = [
        *words("arm"), Column("validation loss", NATS, 4), Column("rate", "tokens/s", 0),
        *words("on the front"),
    ]  # fmt: skip
    losses, rates = view.scalar(metrics.FINAL_LOSS), view.rates_alone
    points: dict[str, tuple[Spread, Spread]] = {}
    for arm in view.arms:
        both = losses[arm].notna() & rates[arm].notna()
        loss, rate = over_seeds(losses[arm][both]), over_seeds(rates[arm][both])
        if loss and rate:
            points[arm] = loss, rate
    best = pareto([(loss.mean, rate.mean) for loss, rate in points.values()]) if points else ()
    rows: list[Row] = [
        {"arm": arm, "validation loss": loss, "rate": rate,
         "on the front": "yes" if place in best else "no"}
        for place, (arm, (loss, rate)) in enumerate(points.items())
    ]  # fmt: skip
    note = (
        "Means over seeds, whiskers one s.d. (none for arms in grey). The line joins the "
        "arms that none beats in both; no account is taken of noise."
    )
    table = make_table(
        f"{view.key}-pareto", "Loss against speed", columns, rows, [view], note=note, fill=STUDY,
        missing=f"no run is complete{' that was trained alone' if view.beside_others else ''}",
    )  # fmt: skip
    names = ", ".join(str(row["arm"]) for row in rows if row["on the front"] == "yes")
    alt = f"Loss against tokens per second. On the front: {names}."
    draw = partial(front, x="rate", y="validation loss", on_front="on the front", tones=tones)
    return drawing(table, draw, alt=alt)
