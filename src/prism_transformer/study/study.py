"""A study from the plan to the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prism_transformer.errors import InputError
from prism_transformer.folders import write_whole
from prism_transformer.study.cell import CellRun, Values, run_of
from prism_transformer.study.collect import collect
from prism_transformer.study.fairness import check_fair
from prism_transformer.study.plan import Cell, Plan
from prism_transformer.study.queue import QUEUE_FILE, Queue, trial_key
from prism_transformer.study.table import COLLECTED, Collected, write_collected
from prism_transformer.train.run import read_environment

COPY = "study.toml"  # the study file as it was last used


@dataclass(frozen=True)
class Home:
    """The folder of a study, and the database its workers share."""

    plan: Plan
    folder: Path
    storage: str | None = None

    def run_of(self, cell: Cell) -> CellRun:
        """The run of a cell."""
        return run_of(self.plan, self.folder, cell)

    def check(self) -> None:
        """Refuse what is there already and would not be a fair part of this study."""
        runs = [self.run_of(cell) for cell in self.plan.cells]
        for run in runs:
            run.check_recipe()
        check_fair(
            self.plan, [(run.cell, read_environment(run.folder)) for run in runs if run.begun]
        )

    def begin(self, queue: Queue, cells: Sequence[tuple[Cell, int]] | None = None) -> None:
        """Put into the queue what is to do: all cells to their end, or those given."""
        self.check()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / COPY, self.plan.file.read_bytes())
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be written: {error.strerror}") from None
        if cells is None:
            cells = [(cell, cell.recipe.n_steps) for cell in self.plan.cells]
        queue.fill(cells, self._done(cells), self._undone(cells))

    def _done(self, cells: Sequence[tuple[Cell, int]]) -> dict[str, Values]:
        """What run folders say is done, whatever a queue remembers."""
        found = {}
        for cell, until in cells:
            run = self.run_of(cell)
            if run.begun and not run.to_do(until):
                found[trial_key(cell.name, until)] = run.values(until)
        return found

    def _undone(self, cells: Sequence[tuple[Cell, int]]) -> set[str]:
        """Runs that are trained and lack a stage.

        Those that are not even trained may have been on another machine, whose folder is not seen
        from here.
        """
        found = set()
        for cell, until in cells:
            run = self.run_of(cell)
            if run.step >= until and run.to_do(until):
                found.add(trial_key(cell.name, until))
        return found

    def failures(self) -> dict[str, str]:
        """Why cells failed, as the queue remembers; nothing where there is no queue."""
        if self.storage is None and not (self.folder / QUEUE_FILE).is_file():
            return {}
        return Queue(self.plan, self.folder, self.storage).failures()

    def collect(
        self, others: Sequence[Path] = (), out: Path | None = None, note: str = ""
    ) -> Collected:
        """Write the table of all runs, those in other folders included, and a remark on them."""
        found = collect(self.plan, [self.folder, *others], self.failures())
        if note:
            found.facts["note"] = note
        write_collected(out or self.folder / COLLECTED, found)
        return found
