"""Progress as people see it: bars on a terminal, a line now and then elsewhere.

The one place that draws what verbs tell (``core/progress.py``), and the one throttle.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from prism_transformer.cli.terminal import duration, say
from prism_transformer.core.characters import visible
from prism_transformer.core.progress import Advance, Begun, Event, Note, Of, Tell

LINE_SECONDS = 10  # between lines where there is no terminal
BYTES = "bytes"
BESIDE = 17  # columns of the shortest bar, the time left, and the gaps between all


@contextmanager
def show_progress(console: Console) -> Iterator[Tell]:
    """A function to tell events to; bars go when the block ends, lines stay."""
    if not console.is_terminal:
        yield Lines(console)
        return
    bars = Bars(console)
    with bars.progress:
        yield bars


def tell_line(console: Console, line: str) -> None:
    """Print, or go quiet where nobody reads any more: that is no reason to stop training."""
    try:
        say(console, line)
    except BrokenPipeError:
        console.quiet = True


class Lines:
    """For a log file or a pipe."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.begun: dict[str, tuple[float, float]] = {}  # when each work began, and with how much
        self.last = monotonic()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Of):
            self(event.event)
        elif isinstance(event, Note):
            tell_line(self.console, event.line)
        elif isinstance(event, Advance):
            self._advance(event)

    def _advance(self, event: Advance) -> None:
        now = monotonic()
        started, first = self.begun.setdefault(event.what, (now, event.done))
        if event.done == event.total:
            del self.begun[event.what]
        elif now - self.last >= LINE_SECONDS:
            self.last = now
            rate = (event.done - first) / (now - started) if now > started else 0.0
            tell_line(self.console, _line(event, rate))


def _line(event: Advance, rate: float) -> str:
    parts = [f"{event.what} {_count(event.done, event.total, event.unit)}"]
    parts += [event.detail] if event.detail else [_rate(rate, event.unit)] if rate else []
    if rate and event.total:
        parts.append(f"about {duration((event.total - event.done) / rate)} left")
    return "  ".join(parts)


def _count(done: float, total: float | None, unit: str) -> str:
    scale, name = (1e6, "MB") if unit == BYTES else (1, unit)
    size = f" of {total / scale:,.0f}" if total else ""
    return f"{done / scale:,.0f}{size} {name}".rstrip()


def _rate(rate: float, unit: str) -> str:
    return f"{rate / 1e6:.1f} MB/s" if unit == BYTES else f"{rate:.3g}/s"


class _Counts(ProgressColumn):
    def render(self, task: Task) -> Text:
        """How much of how much, in the unit of the work."""
        return Text(_count(task.completed, task.total, task.fields["unit"]))


class _Detail(ProgressColumn):
    def __init__(self, console: Console, column: Column) -> None:
        super().__init__(column)
        self.console = console

    def render(self, task: Task) -> Text:
        """What the work says of itself, or else its rate; on a narrow terminal less of it."""
        rate = "" if task.speed is None else _rate(task.speed, task.fields["unit"])
        parts = str(task.fields["detail"] or rate).split("  ")
        count = _count(task.completed, task.total, task.fields["unit"])
        room = self.console.width - len(task.description) - len(count) - BESIDE
        while len(parts) > 1 and len("  ".join(parts)) > room:
            parts.pop()
        return Text("  ".join(parts))


class Bars:
    """For a terminal: one bar for each work under way."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.tasks: dict[str, TaskID] = {}
        # On a narrow terminal the bar gives way, and no number does.
        bar = BarColumn(None, table_column=Column(min_width=4, max_width=40))
        full = Column(no_wrap=True)
        words = TextColumn("{task.description}", table_column=full)
        left = TimeRemainingColumn(table_column=full)
        columns = (words, bar, _Counts(full), _Detail(console, full), left)
        self.progress = Progress(*columns, console=console, transient=True)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Of):
            self(event.event)
        elif isinstance(event, Note):
            tell_line(self.console, event.line)
        elif isinstance(event, Begun):
            self._advance(Advance(event.what, 0))
        elif isinstance(event, Advance):
            self._advance(event)

    def _advance(self, event: Advance) -> None:
        event = replace(event, what=visible(event.what), detail=visible(event.detail))
        if event.what not in self.tasks:
            for name in list(self.tasks):  # what began before and never said that it ended
                self.progress.remove_task(self.tasks.pop(name))
            # Work that goes on begins with what is done: it must not count as speed.
            self.tasks[event.what] = self.progress.add_task(
                event.what, completed=int(event.done), total=event.total, unit=event.unit, detail=""
            )
        self.progress.update(
            self.tasks[event.what], completed=event.done, total=event.total, detail=event.detail
        )
        if event.done == event.total:
            self.progress.remove_task(self.tasks.pop(event.what))
