"""Progress as people see it, on a terminal and elsewhere."""

from __future__ import annotations

import io
from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console

from prism_transformer.cli import progress as module
from prism_transformer.cli.progress import Bars, Lines, show_progress, tell_line
from prism_transformer.core.progress import Advance, Begun, Event, Measured, Note, Of, Tell


def console_of(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, highlight=False)


def output(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined]


def training() -> Iterator[Event]:
    yield Advance("step", 0, 5, detail="validating")
    yield Note("step 0  validation loss 8.0000  (1.0 s)")
    for step in range(1, 5):
        used = "  41% of peak" if step > 2 else ""
        yield Measured({"step": step})
        yield Advance("step", step, 5, detail=f"loss {8 - step:.4f}  12,346 tokens/s{used}")
    yield Note("step 5  validation loss 4.2500  (1.0 s)")
    yield Advance("step", 5, 5)


@pytest.mark.parametrize("terminal", [True, False])
def test_training_is_shown(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_SECONDS", 0)
    console = console_of(terminal)
    with show_progress(console) as tell:
        for event in training():
            tell(event)
            if isinstance(tell, Bars):
                tell.progress.refresh()
    text = output(console)
    assert "step 0  validation loss 8.0000  (1.0 s)\n" in text
    assert "step 5  validation loss 4.2500  (1.0 s)\n" in text
    assert "41% of peak" in text
    if terminal:
        assert "━━━" in text
        assert "4 of 5 loss 4.0000  12,346 tokens/s  41% of peak" in text
    else:
        assert "step 2 of 5  loss 6.0000  12,346 tokens/s  about 0 s left\n" in text


def test_lines_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))  # a second each time somebody looks
    monkeypatch.setattr(module, "monotonic", lambda: float(next(clock)))
    console = console_of(False)
    tell: Tell = Lines(console)
    for done in range(1, 101):
        tell(Advance("reading", done * 1e6, 200e6, "bytes"))
    lines = output(console).splitlines()
    assert len(lines) == 10
    # A megabyte a second since the first, which came with one megabyte.
    assert lines[0] == "reading 10 of 200 MB  1.0 MB/s  about 3.2 min left"


def test_work_that_goes_on_is_not_faster_for_it() -> None:
    bars = Bars(console_of(True))
    bars(Advance("step", 5000, 6000))
    (task,) = bars.progress.tasks
    assert task.completed == 5000
    assert task.speed is None


def test_a_bar_goes_when_its_work_ends_or_the_next_begins() -> None:
    bars = Bars(console_of(True))
    bars(Begun("checking"))
    bars(Of("a run", Advance("step", 1, 3)))
    assert [task.description for task in bars.progress.tasks] == ["step"]
    bars(Advance("step", 3, 3))
    assert not bars.progress.tasks


def test_a_reader_that_is_gone_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    console = console_of(False)

    def broken(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(module, "say", broken)
    tell_line(console, "x")
    assert console.quiet


@pytest.mark.parametrize(("done", "total"), [(12, 120), (112_345, 143_750)])
def test_a_bar_fits_eighty_columns(done: int, total: int) -> None:
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    bars = Bars(console)
    detail = "loss 8.3123  1,812,345 tokens/s  38% of peak"
    bars(Advance("step", done, total, detail=detail))
    console.print(bars.progress.get_renderable())
    (line,) = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(line) <= 80
    assert f"{done:,} of {total:,} loss 8.3123  1,812,345 tokens/s" in line
    assert line.endswith("-:--:--")  # nothing was cut off
