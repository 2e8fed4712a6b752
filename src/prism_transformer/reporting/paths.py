"""Runs that changed their schedule on the way: whether the last schedule decides, or the way."""

from __future__ import annotations

from collections.abc import Sequence

from prism_transformer.core.table import Row, Table, words
from prism_transformer.figures.search import changed_on_the_way
from prism_transformer.figures.style import Tones
from prism_transformer.reporting.exhibits import Drawing, drawing, in_nats, make_table
from prism_transformer.reporting.views import View
from prism_transformer.search.paths import path_lines, paths_sentence, paths_table

FILL = "a study with arms `from` another, as reslice"
NOTE = (
    "Final loss of runs that changed their schedule at a share of training, less that of runs that "
    "kept the one they came from, and of runs that had the one they went to from the start; t "
    "intervals over seeds."
)
DRAWN = (
    "Lines join means over seeds, small dots are seeds. Where only the last schedule counts, a "
    "line is level up to late changes; where what a schedule does early stays, it is not."
)


def paths(views: Sequence[View]) -> Table:
    """Every arm that left another one."""
    changed = [(view, paths_table(view.collected)) for view in views if _changes(view)]
    rows: list[Row] = [{"study": view.name, **row} for view, table in changed for row in table.rows]
    columns = [*words("study"), *(in_nats(changed[0][1].columns) if changed else ())]
    return make_table(
        "paths", "Runs that changed their schedule on the way", columns, rows,
        [view for view, _ in changed], note=NOTE, fill=FILL,
        missing="no arm changed its schedule on the way",
    )  # fmt: skip


def path_figure(view: View, _: Tones) -> Drawing | None:
    """Final loss by the share of training at which the schedule changed."""
    lines = path_lines(view.collected) if _changes(view) else []
    if not lines:
        return None
    found = paths_table(view.collected)
    table = make_table(
        f"{view.key}-paths", found.title, in_nats(found.columns), found.rows, [view],
        note=DRAWN, fill=FILL,
    )  # fmt: skip
    says = [paths_sentence(found)]
    lead = "Final loss by where the schedule changed"
    return drawing(table, lambda _: changed_on_the_way(lines, view.baseline), lead, says=says)


def _changes(view: View) -> bool:
    return any("from" in arm.changes for arm in view.facts.arms)
