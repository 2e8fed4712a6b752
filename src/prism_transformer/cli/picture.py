"""A study as people see it while it runs: loss curves side by side, or plain lines.

Drawn from what its workers tell: events of single runs (``Of``) make the picture, all others
(preparing data) go to the bars and lines that every command has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from prism_transformer.cli.progress import LINE_SECONDS, Bars, Lines, tell_line
from prism_transformer.cli.terminal import duration
from prism_transformer.core.progress import Advance, Begun, Event, Left, Measured, Note, Of, Tell
from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.plan import Cell
from prism_transformer.study.runs import RUN
from prism_transformer.training.run import Row, read_metrics
from prism_transformer.training.stopping import STOPPING

# One for each arm, as long as they last: told apart also without colours.
MARKS = "ox+*#%&@"
SEVERAL = -1  # arms at one place
COLOURS = ("blue", "red", "green", "magenta", "cyan", "yellow", "bright_blue", "bright_red")
SIGNS: dict[int | None, tuple[str, str]] = {
    None: (" ", ""), SEVERAL: ("=", ""), **dict(enumerate(zip(MARKS, COLOURS, strict=True)))
}  # fmt: skip

STAGES = {
    "train": "training",
    "eval": "scoring zero-shot tasks",
    "loss": "loss by position",
    "analyze": "looking at attention",
    "inference": "measuring the speed of inference",
}
HEIGHT = 12  # lines of the chart
LEAST_RANGE = 0.02  # nats from top to bottom: labels have three places
SEEDS_SHOWN = 12
RUNS_SHOWN = 8  # of those under way, a line each

Curve = dict[int, float]
"""Validation loss by step."""


class StudyWatch:
    """What is known of a study while it runs."""

    def __init__(self, console: Console, study: StudyFolder, elsewhere: Tell) -> None:
        self.console, self.plan = console, study.plan
        self.elsewhere = elsewhere
        """hears of what belongs to no single run"""
        self.cells = {cell.name: cell for cell in self.plan.cells}
        self.cell: Cell | None = None
        """the newest that was taken up"""
        self.now: dict[str, str] = {}
        """what each run under way does right now, by its name"""
        self.rates: dict[str, float] = {}
        """tokens per second of each run that is being trained"""
        self.curves: dict[str, Curve] = defaultdict(dict)
        self.finished: set[str] = set()
        self.steps_done = self.steps_left = 0
        for run in study.runs:
            name, steps = run.cell.name, run.cell.recipe.n_steps
            self.steps_left += max(0, steps - run.step)
            for row in read_metrics(run.folder) if run.begun else []:
                if row["kind"] == "val" and row["step"] <= run.step:
                    self.curves[name][row["step"]] = row["loss"]
            if run.begun and not run.queued(steps):
                self.finished.add(name)
        for before in study.earlier:
            self.finished.add(before.cell.name)
            self.curves[before.cell.name] = before.losses
        self.started = monotonic()

    def __call__(self, event: Event) -> None:
        """Take in what a worker tells."""
        if not isinstance(event, Of):
            self.elsewhere(event)
            return
        cell, told = self.cells[event.part], event.event
        if isinstance(told, Begun) and told.what in STAGES:
            self.now[cell.name] = STAGES[told.what]
            self.rates.pop(cell.name, None)
            self.say(cell, STAGES[told.what])
        elif isinstance(told, Measured):
            self._row(cell, told.row)
        elif isinstance(told, Advance) and told.what == RUN:
            self._advance(cell, told)
        elif told == Left(RUN):
            self._leave(cell)
        elif isinstance(told, Note) and told.line == STOPPING:
            # What else a run says of itself is in the picture; that it stops is in no number.
            tell_line(self.console, told.line)

    def _advance(self, cell: Cell, event: Advance) -> None:
        """A run is taken up, or one of its stages is done."""
        if event.done == 0:
            if not self.steps_done:  # the time that preparing took says nothing about training
                self.started = monotonic()
            self.cell, self.now[cell.name] = cell, ""
            self.say(cell, self.count)
        if event.done == event.total:
            self.finished.add(cell.name)
            self._leave(cell)

    def _leave(self, cell: Cell) -> None:
        """Nobody is at this run any more, done or not."""
        self.now.pop(cell.name, None)
        self.rates.pop(cell.name, None)

    def _row(self, cell: Cell, row: Row) -> None:
        if row["kind"] == "val":
            self.curves[cell.name][row["step"]] = row["loss"]
            gap = self.gap(cell, row["step"])
            versus = "" if gap is None else f", {gap:+.4f} to {self.plan.study.baseline}"
            self.say(cell, f"step {row['step']}, validation loss {row['loss']:.4f}{versus}")
        elif row["kind"] == "train":
            self.steps_done += 1
            self.rates[cell.name] = row["tokens_per_second"]
            self.now[cell.name] = (
                f"step {row['step']} of {cell.recipe.n_steps}, loss {row['loss']:.4f}, "
                f"{row['tokens_per_second']:,.0f} tokens/s"
            )
            self.say(cell, self.now[cell.name], every_time=False)

    def say(self, cell: Cell, text: str, *, every_time: bool = True) -> None:
        """Print a line where nothing is drawn; a picture has it in itself."""

    def at(self, arm: str, point: int, seed: int) -> Cell | None:
        """A cell; None where an arm is not tuned at a point that others are."""
        who = (arm, point, seed)
        return next((e for e in self.plan.cells if (e.arm, e.point, e.seed) == who), None)

    def gap(self, cell: Cell, step: int) -> float | None:
        """Loss minus the baseline's at the same step, where both are known."""
        twin = self.at(self.plan.study.baseline, cell.point, cell.seed)
        if twin is None or twin == cell:
            return None
        mine, its = self.curves[cell.name].get(step), self.curves[twin.name].get(step)
        return None if mine is None or its is None else mine - its

    @property
    def count(self) -> str:
        """How many cells are done, and how long the rest will take the workers of this machine."""
        text = f"{len(self.finished)} of {len(self.plan.cells)} runs done"
        if not self.steps_done:
            return text
        seconds = (monotonic() - self.started) / self.steps_done
        return f"{text}, about {duration(seconds * (self.steps_left - self.steps_done))} left"


class StudyLines(StudyWatch):
    """For a log file or a pipe: a line now and then."""

    def __init__(self, console: Console, study: StudyFolder) -> None:
        super().__init__(console, study, Lines(console))
        self.last = 0.0

    def say(self, cell: Cell, text: str, *, every_time: bool = True) -> None:
        """Print a line; of those that come with every step, one now and then."""
        if every_time or monotonic() - self.last >= LINE_SECONDS:
            self.last = self.last if every_time else monotonic()
            tell_line(self.console, f"{cell.name}: {text}")


class StudyPicture(StudyWatch):
    """For a terminal: drawn anew a few times a second."""

    def __init__(self, console: Console, study: StudyFolder) -> None:
        self.bars = Bars(console)
        super().__init__(console, study, self.bars)

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [*self._heading()]
        if self.bars.tasks:  # rich draws one live display at a time: the bars are in the picture
            parts.append(self.bars.progress.get_renderable())
        if self.cell is not None:
            parts += [*self._chart(self.cell), self._gaps()]
        return Group(*parts)

    def _heading(self) -> Iterator[Text]:
        """How far the study is, and a line for each run under way."""
        elapsed = duration(monotonic() - self.started)
        yield Text(f"{self.plan.name}: {self.count}, {elapsed} so far", style="bold")
        # Told by other threads while we draw: a copy.
        runs, rates = list(self.now.items()), list(self.rates.values())
        width = max((len(name) for name, _ in runs), default=0)
        for name, text in runs[:RUNS_SHOWN]:
            line = f"  {name}:{'':{width - len(name)}} {text}"
            yield Text(line, no_wrap=True, overflow="ellipsis")
        if len(runs) > 1:
            more = f"{len(runs) - RUNS_SHOWN} more; " if len(runs) > RUNS_SHOWN else ""
            yield Text(f"  {more}{len(runs)} runs at once, {sum(rates):,.0f} tokens/s in all")

    def _chart(self, cell: Cell) -> Iterator[Text]:
        """Loss curves of every arm with this cell's seed."""
        arms = [arm.name for arm in self.plan.arms][: len(MARKS)]
        if cell.arm not in arms:
            arms[-1] = cell.arm
        cells = {arm: self.at(arm, cell.point, cell.seed) for arm in arms}
        curves = {arm: self.curves.get(at.name, {}) for arm, at in cells.items() if at}
        width = max(20, min(self.console.width - 12, 90))
        yield from chart(list(curves.values()), cell.recipe.n_steps, width)
        marked = [(f" {MARKS[index]} {arm}", COLOURS[index]) for index, arm in enumerate(curves)]
        title = f"{'':9}validation loss, seed {cell.seed}: "
        yield Text.assemble(title, *marked, "   = several")

    def _gaps(self) -> Table:
        """Newest difference to the baseline of every arm, seed by seed."""
        table = Table(box=None, pad_edge=False, header_style="")
        baseline, seeds = self.plan.study.baseline, self.plan.study.seeds[:SEEDS_SHOWN]
        table.add_column(f"difference to {baseline}, nats")
        for seed in seeds:
            table.add_column(f"seed {seed}", justify="right")
        point = 0 if self.cell is None else self.cell.point
        for arm in [arm.name for arm in self.plan.arms if arm.name != baseline][: len(MARKS)]:
            cells = [self.at(arm, point, seed) for seed in seeds]
            table.add_row(arm, *(self._newest(cell) for cell in cells))
        return table

    def _newest(self, cell: Cell | None) -> str:
        twin = self.at(self.plan.study.baseline, cell.point, cell.seed) if cell else None
        if cell is None or twin is None:
            return ""
        steps = self.curves[cell.name].keys() & self.curves[twin.name].keys()
        gap = self.gap(cell, max(steps)) if steps else None
        end = "" if steps and max(steps) == cell.recipe.n_steps else "..."
        return "" if gap is None else f"{gap:+.4f}{end}"


def chart(curves: Sequence[Curve], n_steps: int, width: int, height: int = HEIGHT) -> list[Text]:
    """Curves as characters; where several meet there is one sign for all."""
    values = [loss for curve in curves for loss in curve.values()]
    if not values:
        return []
    low, high = min(values), max(values)
    # At first all losses may be one: an axis whose labels differ all the same, around them.
    room = max(0.0, LEAST_RANGE - (high - low)) / 2
    low, high = low - room, high + room
    cells: dict[tuple[int, int], int] = {}  # (row, column): which curve
    for index, curve in enumerate(curves):
        for step, loss in curve.items():
            column = round(step / n_steps * (width - 1))
            row = round((high - loss) / (high - low) * (height - 1))
            cells[row, column] = SEVERAL if cells.get((row, column), index) != index else index
    lines = []
    for row in range(height):
        label = high - (high - low) * row / (height - 1)
        line = Text(f"{label:8.3f} |" if row % 3 == 0 or row == height - 1 else f"{'':8} |")
        for column in range(width):
            line.append(*SIGNS[cells.get((row, column))])
        lines.append(line)
    lines.append(Text(f"{'':8} +{'-' * width}\n{'step':>8}  0{n_steps:>{width - 1}}"))
    return lines


@contextmanager
def show_study(console: Console, study: StudyFolder) -> Iterator[Tell]:
    """A function to tell events of a study to; the picture goes when the block ends, lines stay."""
    if not console.is_terminal:
        yield StudyLines(console, study)
        return
    picture = StudyPicture(console, study)
    with Live(picture, console=console, refresh_per_second=4, transient=True):
        yield picture
