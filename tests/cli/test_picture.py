"""What is seen of a study while it runs."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from prism_transformer.cli.picture import STAGES, StudyLines, StudyPicture, chart
from prism_transformer.core.progress import Advance, Begun, Left, Measured, Note, Of, within
from prism_transformer.study.folder import load_study
from prism_transformer.training.stopping import STOPPING

STUDY = load_study("demo", "nowhere")
PLAN = STUDY.plan


def played(watcher: StudyLines | StudyPicture) -> None:
    """The first pair done, the second seed's baseline under way."""
    cells = [cell for cell in PLAN.cells if cell.arm != "reversed"]
    for index, cell in enumerate(cells[:3]):
        tell = within(watcher, cell.name)
        tell(Advance("run", 0, 1))
        tell(Begun("train"))
        tell(Begun("reading its data"))
        tell(Note("of what a run says of itself, nothing is shown"))
        for step in (0, 30, 60)[: 3 if index < 2 else 2]:
            tell(Measured({"kind": "val", "step": step, "loss": 8.0 - step / 30 - index / 100}))
        row = {"kind": "train", "step": 60, "loss": 6.0, "tokens_per_second": 5000.0}
        tell(Measured(row))
        if index < 2:
            tell(Advance("run", 1, 1))


def test_every_stage_has_words() -> None:
    run = STUDY.runs[0]
    assert run.to_do(run.cell.recipe.n_steps) == list(STAGES)


def test_a_terminal_shows_curves_progress_and_gaps() -> None:
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system=None)
    picture = StudyPicture(console, STUDY)
    played(picture)
    console.print(picture)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2 of 9 runs done" in shown
    assert "uniform-seed1: step 60 of 1024" in shown
    assert "-0.0100" in shown  # seed 0, at its end
    assert "o uniform" in shown
    assert "x prism" in shown
    assert "nothing is shown" not in shown


def test_all_runs_under_way_have_a_line_that_fits() -> None:
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    study = load_study("nano", "nowhere")
    picture = StudyPicture(console, study)
    for index, cell in enumerate(study.plan.cells[:10]):
        tell = within(picture, cell.name)
        tell(Advance("run", 0, 2))
        tell(Begun("train"))
        row = {"kind": "train", "step": index, "loss": 6.0, "tokens_per_second": 1000.0}
        tell(Measured(row))
    console.print(picture)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    assert [line.split(":")[0].strip() for line in lines[1:9]] == [
        cell.name for cell in study.plan.cells[:8]
    ]
    assert lines[9] == "  2 more; 10 runs at once, 10,000 tokens/s in all"
    picture(Of(study.plan.cells[0].name, Left("run")))  # one fails
    picture(Of(study.plan.cells[1].name, Advance("run", 2, 2)))  # one is done
    console.print(picture)
    shown = console.file.getvalue()[sum(map(len, lines)) :]  # type: ignore[attr-defined]
    assert "1 of 32 runs done" in shown
    assert "8 runs at once, 8,000 tokens/s in all" in shown


def test_a_terminal_shows_how_data_are_prepared_before_any_run() -> None:
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system=None)
    picture = StudyPicture(console, STUDY)
    picture(Advance("preparing", 5, 10, "texts"))
    console.print(picture)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0 of 9 runs done" in shown
    assert "preparing" in shown
    assert "5 of 10 texts" in shown


def test_a_pipe_gets_lines_with_the_gap() -> None:
    console = Console(file=StringIO(), width=100)
    watcher = StudyLines(console, STUDY)
    played(watcher)
    watcher(Note("FAILED  uniform-seed1: no room [left]"))
    watcher(Of("uniform-seed1", Note(STOPPING)))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "prism-seed0: step 60, validation loss 5.9900, -0.0100 to uniform" in lines
    assert lines[-2:] == ["FAILED  uniform-seed1: no room [left]", STOPPING]
    assert "nothing is shown" not in "".join(lines)
    assert any(line.startswith("uniform-seed1: 2 of 9 runs done, about ") for line in lines)


def test_a_chart_puts_values_where_they_belong() -> None:
    lines = [line.plain for line in chart([{0: 4.0, 10: 2.0}, {0: 4.0, 10: 3.0}], 10, 21, 3)]
    assert lines[0] == "   4.000 |" + "=" + " " * 20  # both curves
    assert lines[1].endswith("|" + " " * 20 + "x")
    assert lines[2] == "   2.000 |" + " " * 20 + "o"
    assert chart([{}], 10, 20) == []


def test_the_first_frame_has_an_axis_to_read() -> None:
    for curves in ([{0: 8.3}, {0: 8.3}], [{0: 8.3}, {0: 8.3004}], [{0: 8.3, 5: 7.1}]):
        lines = [line.plain for line in chart(curves, 60, 40)][:-1]
        ticks = [line.partition("|")[0].strip() for line in lines]
        ticks = [tick for tick in ticks if tick]
        assert len(ticks) == len(set(ticks)) == 5
        assert any(mark in line for line in lines for mark in "=ox")
