"""Runs that change their schedule midway: whether the last schedule decides, or the way there."""

from __future__ import annotations

from collections.abc import Sequence

from prism_transformer.core.table import Column, Interval, Row, Table, number_of, signed, words
from prism_transformer.schedule import HeadSchedule
from prism_transformer.study.arms import Arm
from prism_transformer.study.collected import Collected, finite
from prism_transformer.study.statistics import paired

FROM, TO = "to where it came from", "to where it went"

Line = tuple[str, list[tuple[float, list[float]]]]
"""A name, and by share of training the losses of all seeds."""


def _arms(collected: Collected) -> list[Arm]:
    return [Arm.of(facts) for facts in collected.facts.arms]


def _throughout(arms: list[Arm], schedule: HeadSchedule) -> str | None:
    """The arm that was trained under a schedule from its first step to its last."""
    return next((a.name for a in arms if a.origin is None and a.schedule == schedule), None)


def paths_table(collected: Collected) -> Table:
    """A row for each arm that left another: its loss less that of both, all the way through."""
    arms, losses = _arms(collected), finite(collected.final_loss())
    rows: list[Row] = []
    for arm in arms:
        if arm.origin is None:
            continue
        name = arm.name
        ends = {FROM: arm.origin.arm, TO: _throughout(arms, arm.schedule) or name}
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
    pairs = [key for name in (FROM, TO) for key in (name, f"{name}, 95 %")]
    columns = (
        *words("arm", "from", "to"), Column("at"), Column("seeds"),
        *(Column(key, "nats", 4, sign=True) for key in pairs),
    )  # fmt: skip
    return Table("paths", columns, tuple(rows), title="Runs that changed their schedule on the way")


def paths_sentence(table: Table) -> str:
    """What the changes did, a sentence for each direction; nothing where none is measured.

    A gain that is structural shows in the difference to where a run came from, and leaves none to
    where it went; what is left there is a matter of path.
    """
    known = [row for row in table.rows if isinstance(row[FROM], float)]
    parts = []
    for start, end in dict.fromkeys((str(row["from"]), str(row["to"])) for row in known):
        mine = [row for row in known if (row["from"], row["to"]) == (start, end)]
        sides = [f"to {start} throughout: {_differences(mine, FROM)}"]
        if any(isinstance(row[TO], float) for row in mine):
            sides.append(f"to {end} throughout: {_differences(mine, TO)}")
        parts.append(f"from {start} to {end}, {'; '.join(sides)}.")
    if not parts:
        return ""
    seeds = sorted({int(str(row["seeds"])) for row in known})
    many = f"{seeds[0]} or more seeds" if len(seeds) > 1 else number_of(seeds[0], "seed")
    head = f"Final loss of runs that changed, nats, {many} each: {parts[0]}"
    return " ".join((head, *(f"F{part[1:]}" for part in parts[1:])))


def _differences(rows: Sequence[Row], side: str) -> str:
    return ", ".join(
        f"{signed(float(str(row[side])))} at {float(str(row['at'])):.0%}"
        f"{_ends(row[f'{side}, 95 %'])}"
        for row in rows
        if isinstance(row[side], float)
    )


def _ends(interval: object) -> str:
    if not isinstance(interval, Interval):
        return ""
    return f" ({signed(interval.low)} to {signed(interval.high)})"


def path_lines(collected: Collected) -> list[Line]:
    """For each direction the losses less the baseline's, by the share at which arms changed."""
    arms, losses = _arms(collected), finite(collected.final_loss())
    less = losses.sub(losses[collected.baseline], axis=0)
    lines: list[Line] = []
    for start in dict.fromkeys(arm.origin.arm for arm in arms if arm.origin):
        mine = [arm for arm in arms if arm.origin and arm.origin.arm == start]
        end = _throughout(arms, mine[0].schedule)
        points = [(0.0, end)] if end else []
        points += [(arm.origin.share, arm.name) for arm in mine if arm.origin] + [(1.0, start)]
        values = [(share, less[name].dropna().tolist()) for share, name in points]
        line = [(share, each) for share, each in values if each]
        if len(line) > 1:
            lines.append((f"{start} to {end or mine[0].schedule}", line))
    return lines
