"""A study as people see it while it runs: loss curves side by side, or plain lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from prism_transformer.study.cell import CellRun, Values, run_of
from prism_transformer.study.plan import Cell, Plan
from prism_transformer.terminal import duration, say
from prism_transformer.train.run import Row, read_metrics

# One for each arm, as long as they last: told apart also without colours.
MARKS = "ox+*#%&@"
SEVERAL = -1  # arms at one place
COLOURS = ("blue", "red", "green", "magenta", "cyan", "yellow", "bright_blue", "bright_red")

STAGES = {
    "train": "training",
    "eval": "scoring zero-shot tasks",
    "loss": "loss by position",
    "analyze": "looking at attention",
    "inference": "measuring the speed of inference",
}
HEIGHT = 12  # lines of the chart
LINE_SECONDS = 10  # between lines where there is no terminal
SEEDS_SHOWN = 12

Curve = dict[int, float]
"""Validation loss by step."""


class Watching:
    """What is known of a study while it runs; told by the worker."""

    def __init__(self, console: Console, plan: Plan, folder: Path) -> None:
        self.console = console
        self.plan = plan
        self.curves: dict[str, Curve] = defaultdict(dict)
        self.finished: set[str] = set()
        self.cell: Cell | None = None
        self.now = ""
        self.steps_left = 0
        for cell in plan.cells:
            run = run_of(plan, folder, cell)
            self.steps_left += max(0, cell.recipe.n_steps - run.step)
            if run.begun:
                self._remember(run)
        self.steps_done = 0
        self.started = monotonic()

    def _remember(self, run: CellRun) -> None:
        for row in read_metrics(run.folder):
            if row["kind"] == "val" and row["step"] <= run.step:
                self.curves[run.cell.name][row["step"]] = row["loss"]
        if not run.to_do(run.cell.recipe.n_steps):
            self.finished.add(run.cell.name)

    def begin(self, cell: Cell, until: int) -> None:
        """A cell is taken up."""
        self.cell = cell
        self.now = ""

    def stage(self, what: str) -> None:
        """What is being done with it now."""
        self.now = STAGES[what]

    def row(self, row: Row) -> None:
        """A row of its metrics."""
        assert self.cell is not None
        if row["kind"] == "val":
            self.curves[self.cell.name][row["step"]] = row["loss"]
        elif row["kind"] == "train":
            self.steps_done += 1
            self.now = (
                f"step {row['step']} of {self.cell.recipe.n_steps}, loss {row['loss']:.4f}, "
                f"{row['tokens_per_second']:,.0f} tokens/s"
            )

    def end(self, cell: Cell, outcome: Values | str) -> None:
        """It is done, or failed with a reason."""
        if isinstance(outcome, str):
            say(self.console, f"FAILED  {cell.name}: {outcome}")
        else:
            self.finished.add(cell.name)

    def twin(self, cell: Cell) -> Cell:
        """The baseline's cell of the same point and seed."""
        return self.plan.cell(self.plan.study.baseline, cell.point, cell.seed)

    def gap(self, cell: Cell, step: int) -> float | None:
        """Loss less the baseline's at the same step, where both are known."""
        mine, its = self.curves[cell.name].get(step), self.curves[self.twin(cell).name].get(step)
        return None if mine is None or its is None or cell == self.twin(cell) else mine - its

    @property
    def count(self) -> str:
        """How many cells are done, and how long the rest will take one worker alone."""
        text = f"{len(self.finished)} of {len(self.plan.cells)} runs done"
        if not self.steps_done:
            return text
        seconds = (monotonic() - self.started) / self.steps_done
        return f"{text}, about {duration(seconds * (self.steps_left - self.steps_done))} left"


class Lines(Watching):
    """For a log file or a pipe: a line now and then."""

    last = 0.0

    def begin(self, cell: Cell, until: int) -> None:
        """A cell is taken up."""
        super().begin(cell, until)
        say(self.console, f"{cell.name}: {self.count}")

    def stage(self, what: str) -> None:
        """What is being done with it now."""
        super().stage(what)
        assert self.cell is not None
        say(self.console, f"{self.cell.name}: {self.now}")

    def row(self, row: Row) -> None:
        """A row of its metrics."""
        super().row(row)
        assert self.cell is not None
        if row["kind"] == "val":
            gap = self.gap(self.cell, row["step"])
            versus = "" if gap is None else f", {gap:+.4f} to {self.plan.study.baseline}"
            say(
                self.console,
                f"{self.cell.name}: step {row['step']}, validation loss {row['loss']:.4f}{versus}",
            )
        elif row["kind"] == "train" and monotonic() - self.last >= LINE_SECONDS:
            self.last = monotonic()
            say(self.console, f"{self.cell.name}: {self.now}")


class Picture(Watching):
    """For a terminal: drawn anew a few times a second."""

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [self._heading()]
        if self.cell is not None:
            parts += [*self._chart(self.cell), self._gaps()]
        return Group(*parts)

    def _heading(self) -> Text:
        elapsed = duration(monotonic() - self.started)
        text = Text(f"{self.plan.name}: {self.count}, {elapsed} so far", style="bold")
        if self.cell is not None:
            text.append(f"   {self.cell.name}: {self.now}", style="not bold")
        return text

    def _chart(self, cell: Cell) -> Iterator[Text]:
        """Loss curves of every arm with this cell's seed."""
        arms = [arm.name for arm in self.plan.arms][: len(MARKS)]
        if cell.arm not in arms:
            arms[-1] = cell.arm
        curves = {
            arm: self.curves.get(self.plan.cell(arm, cell.point, cell.seed).name, {})
            for arm in arms
        }
        width = max(20, min(self.console.width - 12, 90))
        yield from chart(list(curves.values()), cell.recipe.n_steps, width)
        legend = Text(f"{'':9}validation loss, seed {cell.seed}: ")
        for index, arm in enumerate(curves):
            legend.append(f" {MARKS[index]} {arm}", style=COLOURS[index])
        yield legend.append("   = several")

    def _gaps(self) -> Table:
        """Newest difference to the baseline of every arm, seed by seed."""
        table = Table(box=None, pad_edge=False, header_style="")
        baseline = self.plan.study.baseline
        seeds = self.plan.study.seeds[:SEEDS_SHOWN]
        table.add_column(f"less {baseline}, nats")
        for seed in seeds:
            table.add_column(f"seed {seed}", justify="right")
        point = 0 if self.cell is None else self.cell.point
        for arm in [arm.name for arm in self.plan.arms if arm.name != baseline][: len(MARKS)]:
            cells = [self.plan.cell(arm, point, seed) for seed in seeds]
            table.add_row(arm, *(self._newest(cell) for cell in cells))
        return table

    def _newest(self, cell: Cell) -> str:
        steps = self.curves[cell.name].keys() & self.curves[self.twin(cell).name].keys()
        gap = self.gap(cell, max(steps)) if steps else None
        end = "" if steps and max(steps) == cell.recipe.n_steps else "..."
        return "" if gap is None else f"{gap:+.4f}{end}"


def chart(curves: Sequence[Curve], n_steps: int, width: int, height: int = HEIGHT) -> list[Text]:
    """Curves as characters; where several meet there is one sign for all."""
    values = [loss for curve in curves for loss in curve.values()]
    if not values:
        return []
    low, high = min(values), max(values)
    cells: dict[tuple[int, int], int] = {}  # (row, column): which curve
    for index, curve in enumerate(curves):
        for step, loss in curve.items():
            column = round(step / n_steps * (width - 1))
            row = round((high - loss) / ((high - low) or 1) * (height - 1))
            cells[row, column] = SEVERAL if cells.get((row, column), index) != index else index
    lines = []
    for row in range(height):
        label = high - (high - low) * row / (height - 1)
        line = Text(f"{label:8.3f} |" if row % 3 == 0 or row == height - 1 else f"{'':8} |")
        for column in range(width):
            found = cells.get((row, column))
            if found is None or found == SEVERAL:
                line.append(" " if found is None else "=")
            else:
                line.append(MARKS[found], style=COLOURS[found])
        lines.append(line)
    lines.append(Text(f"{'':8} +{'-' * width}\n{'step':>8}  0{n_steps:>{width - 1}}"))
    return lines


@contextmanager
def watched(console: Console, plan: Plan, folder: Path) -> Iterator[Watching]:
    """Somebody for the worker to tell; what they show goes when the block ends."""
    if not console.is_terminal:
        yield Lines(console, plan, folder)
        return
    picture = Picture(console, plan, folder)
    with Live(picture, console=console, refresh_per_second=4, transient=True):
        yield picture
