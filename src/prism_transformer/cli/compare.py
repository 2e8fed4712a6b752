"""``prism compare``: runs of no study against each other, and how any comparison is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prism_transformer.cli.options import Json
from prism_transformer.cli.terminal import make_console, print_json, print_table, say
from prism_transformer.core.table import NONE

if TYPE_CHECKING:
    from rich.console import Console

    from prism_transformer.core.table import Table
    from prism_transformer.study.compare import Comparison
    from prism_transformer.study.contrasts import Contrast


def compare(*runs: Path, baseline: str | None = None, as_json: Json = False) -> None:
    """Compare runs seed by seed, as a study does; refused where that would be unfair.

    Runs of one schedule and otherwise one recipe are an arm. Arms of one seed must have started
    from the same weights and seen the same data in the same order.

    Parameters
    ----------
    runs
        Run folders, at least two.
    baseline
        What the others are held against: a run, its name with or without the seed, or a schedule.
        The first run when left out.
    """
    from prism_transformer.study.api import compare_runs

    result = compare_runs(runs, baseline)
    if as_json:
        print_json(result.comparison.to_json())
        return
    console, facts = make_console(), result.collected.facts
    for arm in facts.arms:
        changes = "".join(f", {key} = {value}" for key, value in arm.changes.items())
        say(console, f"{arm.name}: {arm.schedule}{changes}")
    for run in facts.runs:
        if run.state != "complete":
            say(console, f"{run.run}: not trained to its end, so not compared")
    print_comparison(console, result.comparison)


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Tables of arms, of contrasts and of layers, if there are any, and a sentence on each."""
    from prism_transformer.study.contrasts import once
    from prism_transformer.study.sentences import remarks

    # Schedules stand in the plan, seeds and what an adjusted p comes from below: no room here.
    _print_without(console, comparison.table, "schedule")
    if comparison.contrasts:
        _print_without(console, comparison.contrast_table, "seed by seed", "flip p", "pooled p")
    for effects in filter(None, comparison.layers):
        _print_without(console, effects.table)
        _print_without(console, effects.beyond_table)
    _say_each(console, comparison.told)
    for envelope in comparison.envelopes:
        _print_without(console, envelope.table, "rates")
        _say_each(console, once(envelope.contrasts))
    for read in filter(None, comparison.lengths):
        _print_without(console, read.table)
        _say_each(console, read.told)
    for line in remarks(comparison):
        say(console, line)


def _say_each(console: Console, contrasts: Sequence[Contrast]) -> None:
    """A sentence on each contrast, and below it every seed."""
    from prism_transformer.study.contrast_tables import digits, seed_by_seed
    from prism_transformer.study.sentences import sentence

    places = max((digits(each.difference) for each in contrasts if each.difference), default=4)
    for each in contrasts:
        say(console, sentence(each))
        if each.seeds:
            seeds = "seeds" if len(each.seeds) > 1 else "seed"
            named = ", ".join(map(str, each.seeds))
            say(console, f"    {seeds} {named}: {seed_by_seed(each, places)}")


def _print_without(console: Console, table: Table, *left_out: str) -> None:
    """The table without these columns, and without those that say nothing of any row."""
    columns = tuple(
        column
        for column in table.columns
        if column.key not in left_out
        and any(column.text(value) != NONE for value in table.values(column.key))
    )
    rows = tuple({column.key: row[column.key] for column in columns} for row in table.rows)
    if rows:
        say(console, f"\n{table.title}")
        print_table(console, replace(table, columns=columns, rows=rows))
        if table.note:
            say(console, table.note)
