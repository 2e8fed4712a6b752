"""What the commands say of a study: its plan, its comparison, the rungs of a search."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from prism_transformer.study.compare import arm_rows, compare, sentence
from prism_transformer.study.forecast import seconds_left
from prism_transformer.study.plan import Plan
from prism_transformer.study.search import Standing
from prism_transformer.study.study import Home
from prism_transformer.study.table import Collected
from prism_transformer.terminal import duration, print_staircase, row_table, say

ARMS_DRAWN = 4  # staircases before a table takes over


def print_plan(console: Console, home: Home, device: str) -> None:
    """The arms of a study, how many runs they are, and how long those take."""
    found = home.plan
    if found.study.question:
        say(console, found.study.question)
    if len(found.arms) <= ARMS_DRAWN:
        for arm in found.arms:
            console.print(f"\n[bold]{arm.name}[/bold]  {arm.schedule}")
            print_staircase(console, arm.schedule)
    else:
        rows = [
            {"arm": arm.name, "schedule": str(arm.schedule), "mean heads": arm.schedule.mean_heads}
            for arm in found.arms
        ]
        console.print(row_table(rows))
    seconds, why = seconds_left(found, home.folder, device)
    done = sum(not home.run_of(cell).to_do(cell.recipe.n_steps) for cell in found.cells)
    swept = f" x {len(found.points)} points" if len(found.points) > 1 else ""
    say(
        console,
        f"\n{found.name}: {len(found.arms)} arms x {len(found.study.seeds)} seeds{swept} = "
        f"{len(found.cells)} runs of {found.base.n_steps:,} steps, {done} done; "
        f"training takes about {duration(seconds)} on this machine ({why})",
    )


def print_comparison(console: Console, found: Collected) -> None:
    """A table of the arms, and a sentence on each."""
    comparison = compare(found)
    # Schedules stand in the plan, and leave no room here.
    rows = [
        {key: value for key, value in row.items() if key != "schedule"}
        for row in arm_rows(comparison)
    ]
    console.print()
    console.print(row_table(rows))
    for row in comparison.rows:
        say(console, sentence(row))


def print_rung(console: Console, plan: Plan, rung: Sequence[Standing]) -> None:
    """How arms stand at a rung of a search."""
    last = rung[0].step == plan.base.n_steps
    say(console, f"\nstep {rung[0].step} of {plan.base.n_steps}: {len(rung)} arms")
    rows = [
        {
            "arm": each.arm,
            "schedule": each.schedule,
            "loss": f"{each.loss:.4f}",
            f"to {plan.study.baseline}": f"{each.difference:+.4f}",
            "tokens/s": f"{each.tokens_per_second:,.0f}",
            "Pareto front" if last else "goes on": "yes" if each.kept else "",
        }
        for each in rung
    ]
    console.print(row_table(rows))
