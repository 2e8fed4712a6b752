"""What a wide head is worth in each layer, of a factorial study."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan

from prism_transformer.core.table import Column, Row, Table, signed, words
from prism_transformer.figures.comparisons import intervals
from prism_transformer.figures.style import REST, Tones
from prism_transformer.reporting.answers import minus
from prism_transformer.reporting.exhibits import (
    NATS,
    Drawing,
    drawing,
    in_nats,
    interval,
    make_table,
)
from prism_transformer.reporting.views import View
from prism_transformer.study.factorial import LayerEffects
from prism_transformer.study.sentences import layers_said

FACTORIAL = "a study with [factorial]"
NOTHING = LayerEffects((), (), nan, 0, nan, nan, {})  # whose tables have columns alone
MISSING = "no factorial study has a seed that is complete in all arms of its design"
WORTH = (
    "The loss with a wide head in the layer less that with narrow ones: negative is better. "
    "Intervals are by the noise of runs about their arm and seed."
)
SUM = (
    "Predicted: the sum of the layers' effects, to which only the runs of the design contribute; a "
    "head count between its two stands between them, on a scale of log heads. The residual, with "
    'its 95 % interval, is what a schedule, or a contrast, is worth beyond its layers; "all less '
    'none" is the schedule with every layer wide less that with none.'
)


def effects(views: Sequence[View]) -> Table:
    """Every layer of every factorial study."""
    made = {view.name: view.layers.table for view in views if view.layers}
    title = "What a wide head is worth in each layer"
    return _joined("layer-effects", title, made, NOTHING.table, views, WORTH)


def beyond(views: Sequence[View]) -> Table:
    """Schedules and contrasts, with what is left of them beyond their layers."""
    made = {view.name: view.layers.beyond_table for view in views if view.layers}
    title = "Schedules held against the sum of their layers"
    return _joined("beyond-layers", title, made, NOTHING.beyond_table, views, SUM)


def _joined(
    key: str, title: str, made: dict[str, Table], empty: Table, views: Sequence[View], note: str
) -> Table:
    """The tables of several studies as one."""
    columns = [*words("study"), *in_nats(empty.columns)]
    rows: list[Row] = [{"study": name, **row} for name, table in made.items() for row in table.rows]
    factorial = [view for view in views if view.layers]
    return make_table(
        key, title, columns, rows, factorial, note=note, fill=FACTORIAL, missing=MISSING
    )


def layer_figure(view: View, tones: Tones) -> Drawing | None:
    """The effect of each layer with its interval, then what is left of schedules beyond them."""
    found = view.layers
    if found is None:
        return None
    columns = [
        *words("arm"), Column("effect", NATS, 4, sign=True, name="loss, wide less narrow"),
        Column("95 % interval", NATS, 4, sign=True), Column("paper's", NATS, 4, sign=True),
    ]  # fmt: skip
    rows: list[Row] = [
        {"arm": f"layer {layer}", "effect": each.mean, "paper's": None,
         "95 % interval": interval(each)}
        for layer, each in enumerate(found.layers)
    ]  # fmt: skip
    rows += [
        {"arm": f"{arm}, residual", "effect": each.residual, "paper's": None,
         "95 % interval": interval(each)}
        for arm, each in found.beyond.items()
    ]  # fmt: skip
    table = make_table(
        f"{view.key}-layers", "What a wide head is worth in each layer", columns, rows, [view],
        note=f"{WORTH} {_fit(found)}{_held(found)}", fill=FACTORIAL, missing=MISSING,
    )  # fmt: skip
    main = tones.get(view.main or "", REST)
    own = {str(row["arm"]): main for row in rows}
    own |= {f"{arm}, residual": tones.get(arm, REST) for arm in found.beyond}
    says = [minus(layers_said(found))]
    return drawing(
        table, lambda t: intervals(t, "effect", "95 % interval", "paper's", own), says=says
    )


def _fit(found: LayerEffects) -> str:
    seeds = f"{len(found.seeds)} seed{'s' if len(found.seeds) > 1 else ''}"
    if isnan(found.p):
        return f"{seeds}: whether layers act one by one cannot be told."
    return (
        f"{seeds}; beyond the sum of their layers arms differ with F {found.lack_of_fit:.2f}, "
        f"p {found.p:.2g} (lack of fit)."
    )


def _held(found: LayerEffects) -> str:
    said = (
        f"{arm} is predicted at {each.predicted:.4f} and ended at {each.observed:.4f} "
        f"({signed(each.residual)}, p {each.p:.2g})"
        for arm, each in found.beyond.items()
    )
    told = "; ".join(said)
    return (
        f" Below the layers, what is left of schedules beyond the sum of theirs: {told}."
        if told
        else ""
    )
