"""Schedules and models: Tables 1, 4 and 5 of the paper, and its Figure 1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from prism_transformer.core.table import PAPER, Column, Row, Table, words
from prism_transformer.figures.chart import listed
from prism_transformer.figures.schedules import heads_map, staircases
from prism_transformer.figures.style import Tones
from prism_transformer.reporting.exhibits import NATS, Drawing, drawing, make_table, over_seeds
from prism_transformer.reporting.views import View, percent
from prism_transformer.schedules import paper
from prism_transformer.study.compare import RATES_BESIDE
from prism_transformer.study.metrics import FINAL_LOSS


def configurations(views: Sequence[View]) -> Table:
    """Table 1: the models and how long they train."""
    columns = [
        *words("study", "source"), Column("parameters"), Column("layers"), Column("d_model"),
        Column("h_base"), Column("context", "tokens"), Column("batch", "tokens"),
        Column("peak learning rate"), Column("training tokens"),
        Column("tokens per parameter", places=1),
    ]  # fmt: skip
    rows: list[Row] = []
    for view in views:
        recipe = view.recipe
        rows.append({
            "study": view.name, "source": "ours", "parameters": view.parameters,
            "layers": len(view.schedule(view.baseline)), "d_model": view.d_model,
            "h_base": view.h_base, "context": recipe.model.seq_len, "batch": view.batch_tokens,
            "peak learning rate": recipe.optim.lr, "training tokens": view.tokens,
            "tokens per parameter": view.tokens / view.parameters,
        })  # fmt: skip
        if scale := view.scale:
            rows.append({
                "study": view.name, "source": PAPER, "parameters": scale.params,
                "layers": scale.n_layers, "d_model": scale.d_model, "h_base": scale.h_base,
                "context": paper.text().context, "batch": scale.batch,
                "peak learning rate": scale.lr, "training tokens": scale.tokens,
                "tokens per parameter": None,
            })  # fmt: skip
    note = "Tokens in whole steps. The paper prints rounded sizes."
    return make_table("configurations", "Model configurations", columns, rows, views, note=note)


def ablation(views: Sequence[View]) -> Table:
    """Table 5: schedules with what they gain and what they cost."""
    columns = [
        *words("study", "arm", "schedule"), Column("mean heads", places=2),
        Column("layers at base", "%", 0), Column("validation loss", NATS, 4),
        Column("difference", NATS, 4, sign=True), Column("paper's", NATS, 4, sign=True),
        Column("rate change", "%", 1, sign=True), Column("95 % interval", "%", 1, sign=True),
        Column("paper's rate change", "%", 1, sign=True, name="paper's"),
    ]  # fmt: skip
    rows: list[Row] = []
    for view in views:
        losses = view.scalar(FINAL_LOSS)
        for arm in view.arms:
            against = view.compared.get(arm)  # none of the baseline
            found = against.difference if against else None
            speed = against.throughput if against else None
            change, ends = percent(speed) if speed else (None, None)
            known = view.paper_ablation(arm)
            rows.append({
                "study": view.name, "arm": arm, "schedule": _described(view, arm),
                "mean heads": view.schedule(arm).mean_heads,
                "layers at base": 100 * view.share_at_base(arm),
                "validation loss": over_seeds(losses[arm]),
                "difference": found.mean if found else None,
                "paper's": view.paper_gap(arm),
                "rate change": change, "95 % interval": ends,
                "paper's rate change": known.throughput_change if known else None,
            })  # fmt: skip
    note = "Differences and rates against the baseline of the same seed; negative loss is better."
    if any(view.beside_others for view in views):
        note += f" {RATES_BESIDE}"
    return make_table("ablation", "Schedules: gain and cost", columns, rows, views, note=note)


def _described(view: View, arm: str) -> str:
    changes = view.changes_told(arm)
    return f"{view.schedule(arm)}" + (f"; {changes}" if changes else "")


def schedules(views: Sequence[View]) -> Table:
    """Table 4: the heads of every arm."""
    columns = [
        *words("study", "arm", "source"), Column("d_model"), Column("layers"), Column("h_base"),
        *words("schedule", "head widths"), Column("mean heads", places=2),
    ]  # fmt: skip
    rows: list[Row] = []
    for view, arm in [(each, arm) for each in views for arm in each.arms]:
        schedule = view.schedule(arm)
        widths = (str(view.d_model // phase.n_heads) for phase in schedule.phases)
        row: Row = {
            "study": view.name, "arm": arm, "source": "ours", "d_model": view.d_model,
            "layers": len(schedule), "h_base": view.h_base, "schedule": str(schedule),
            "head widths": ", ".join(widths), "mean heads": schedule.mean_heads,
        }  # fmt: skip
        rows.append(row)
        if view.paper_arm(arm) == "prism":  # which says that the paper has just this schedule
            rows.append({**row, "source": PAPER})
    note = "3x2 reads: 3 heads for 2 layers. Widths in channels, one for each phase."
    return make_table("schedules", "Head schedules", columns, rows, views, note=note)


# -- figures -------------------------------------------------------------------------------------


def _heads(view: View, name: str, title: str, note: str) -> Table:
    """A row for each arm and layer."""
    columns = [*words("arm"), Column("layer"), Column("heads"), Column("head width", "channels")]
    rows: list[Row] = [
        {"arm": arm, "layer": layer, "heads": n, "head width": view.d_model // n}
        for arm in view.arms
        for layer, n in enumerate(view.schedule(arm).heads)
    ]
    return make_table(f"{view.key}-{name}", title, columns, rows, [view], note=note)


def _told(view: View, arms: Sequence[str]) -> str:
    return listed([f"{arm} {view.schedule(arm)}" for arm in arms])


def schedule_figure(view: View, tones: Tones) -> Drawing:
    """Figure 1: the baseline beside the main arm, or the one arm there is."""
    arms = [view.baseline] + ([view.main] if view.main else [])
    note = "One bar a layer, one block a head; all arms are in the data."
    table = _heads(view, "schedules", "Head schedules", note)
    alt = f"Heads in each layer, written heads x layers: {_told(view, arms)}"
    return drawing(table, partial(staircases, arms=arms), alt=alt)


def schedule_map(view: View, tones: Tones) -> Drawing | None:
    """Every arm's heads at a glance, where there are more than two."""
    if len(view.arms) < 3:
        return None
    note = "A cell is a layer; a number is the heads of its phase, the colour their width."
    note += _beside_heads(view)
    table = _heads(view, "schedule-map", "Schedules of all arms", note)
    alt = f"Heads in each layer: {_told(view, view.arms)}"
    return drawing(table, partial(heads_map, arms=view.arms), alt=alt)


def _beside_heads(view: View) -> str:
    """What arms change that a picture of their heads does not show."""
    told = {arm: view.changes_told(arm) for arm in view.arms}
    said = "; ".join(f"{arm}: {changes}" for arm, changes in told.items() if changes)
    return (
        f" Heads are those at the end of training. Beside them arms change: {said}." if said else ""
    )
