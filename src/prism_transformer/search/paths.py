"""Whether a schedule acts by what a model ends with or by its path: runs that change midway."""

from __future__ import annotations

from prism_transformer.core.table import Column, Interval, Row, Table, signed, words
from prism_transformer.study.arms import Arm
from prism_transformer.study.collected import Collected, finite
from prism_transformer.study.statistics import paired

FROM, TO = "to where it came from", "to where it went"


def paths_table(collected: Collected) -> Table:
    """A row for each arm that left another: its loss less that of both, all the way through."""
    arms = {facts.name: Arm.of(facts) for facts in collected.facts.arms}
    losses = finite(collected.final_loss())
    rows: list[Row] = []
    for name, arm in arms.items():
        if arm.origin is None:
            continue
        throughout = [
            other.name
            for other in arms.values()
            if other.origin is None and other.schedule == arm.schedule
        ]
        ends = {FROM: arm.origin.arm, TO: throughout[0] if throughout else name}
        row: dict[str, str | float | Interval | None] = {
            "arm": name, "from": ends[FROM], "to": ends[TO], "at": arm.origin.share,
            "seeds": int(losses[name].notna().sum()),
        }  # fmt: skip
        for key, other in ends.items():
            apart = (losses[name] - losses[other]).dropna()
            known = paired(apart) if len(apart) and other != name else None
            row[key] = None if known is None else known.mean
            bounded = known is not None and known.n > 1
            row[f"{key}, 95 %"] = Interval(known.low, known.high) if known and bounded else None
        rows.append(row)
    columns = (
        *words("arm", "from", "to"), Column("at"), Column("seeds"),
        *(
            Column(key, "nats", 4, sign=True)
            for name in (FROM, TO)
            for key in (name, f"{name}, 95 %")
        ),
    )  # fmt: skip
    return Table("paths", columns, tuple(rows), title="Runs that changed their schedule on the way")


def paths_sentence(table: Table) -> str:
    """What the changes did, in one sentence; nothing where none is measured."""
    known = [row for row in table.rows if isinstance(row[FROM], float)]
    parts = []
    for start in dict.fromkeys(str(row["from"]) for row in known):
        mine = [row for row in known if row["from"] == start]
        each = [
            f"{signed(float(str(row[FROM])))} at {float(str(row['at'])):.0%}"
            f"{_ends(row[f'{FROM}, 95 %'])}"
            for row in mine
        ]
        parts.append(f"from {start} to {mine[0]['to']}, to {start} throughout: {', '.join(each)}")
    if not parts:
        return ""
    seeds = min(int(str(row["seeds"])) for row in known)
    return f"Final loss of runs that changed, nats, {seeds} or more seeds each: {'; '.join(parts)}."


def _ends(interval: object) -> str:
    if not isinstance(interval, Interval):
        return ""
    return f" ({signed(interval.low)} to {signed(interval.high)})"
