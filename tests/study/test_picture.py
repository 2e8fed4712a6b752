"""What is seen of a study while it runs."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console

from prism_transformer.study.cell import run_of
from prism_transformer.study.file import find_study
from prism_transformer.study.picture import STAGES, Lines, Picture, chart
from prism_transformer.study.plan import make_plan

PLAN = make_plan(find_study("demo"))


def played(console: Console, kind: type[Lines] | type[Picture]) -> Lines | Picture:
    """The first pair done, the second seed's baseline under way."""
    watcher = kind(console, PLAN, Path("nowhere"))
    for index, cell in enumerate(PLAN.cells[:3]):
        watcher.begin(cell, 60)
        watcher.stage("train")
        for step in (0, 30, 60)[: 3 if index < 2 else 2]:
            watcher.row({"kind": "val", "step": step, "loss": 8.0 - step / 30 - index / 100})
        watcher.row({"kind": "train", "step": 60, "loss": 6.0, "tokens_per_second": 5000.0})
        if index < 2:
            watcher.end(cell, (6.0, 5000.0))
    return watcher


def test_every_stage_has_words() -> None:
    run = run_of(PLAN, Path("nowhere"), PLAN.cells[0])
    assert run.to_do(run.cell.recipe.n_steps) == list(STAGES)


def test_a_terminal_shows_curves_progress_and_gaps() -> None:
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system=None)
    picture = played(console, Picture)
    console.print(picture)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2 of 6 runs done" in shown
    assert "uniform-seed1: step 60 of 60" in shown
    assert "-0.0100" in shown  # seed 0, at its end
    assert "o uniform" in shown
    assert "x prism" in shown


def test_a_pipe_gets_lines_with_the_gap() -> None:
    console = Console(file=StringIO(), width=100)
    watcher = played(console, Lines)
    watcher.end(PLAN.cells[2], "no room [left]")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "prism-seed0: step 60, validation loss 5.9900, -0.0100 to uniform" in lines
    assert "FAILED  uniform-seed1: no room [left]" in lines
    assert any(line.startswith("uniform-seed1: 2 of 6 runs done, about ") for line in lines)


def test_a_chart_puts_values_where_they_belong() -> None:
    lines = [line.plain for line in chart([{0: 4.0, 10: 2.0}, {0: 4.0, 10: 3.0}], 10, 21, 3)]
    assert lines[0] == "   4.000 |" + "=" + " " * 20  # both curves
    assert lines[1].endswith("|" + " " * 20 + "x")
    assert lines[2] == "   2.000 |" + " " * 20 + "o"
    assert chart([{}], 10, 20) == []
