"""The folder of a study: what is planned, what is there, what is still to do.

studies/NAME/
  study.toml    the study file as it was last used
  rates.json    the learning rate of each arm, where the study tunes them (``tuning.py``)
  tuning/       what found them: a study of its own
  runs/         a run folder for each cell of the plan
  queue.db      who works on what; can be made again from the run folders at any time
  claims/       locks of the workers of this machine
  workers/      what worker processes have printed, where they have
  slurm/        jobs, with their scripts and logs (``slurm.py``)
  collected/    the table of everything that was found
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path

from prism_transformer.core.disk import write_whole, writing
from prism_transformer.core.table import Column, Row, Table, words
from prism_transformer.study.collect import collect
from prism_transformer.study.collected import (
    COLLECTED,
    CONTRASTS_FILE,
    Collected,
    TuningFacts,
    read_collected,
    without_rates,
    write_collected,
)
from prism_transformer.study.compare import compare
from prism_transformer.study.earlier import EarlierRun, find_earlier
from prism_transformer.study.peeking import looked_again
from prism_transformer.study.plan import Cell, Plan, make_plan
from prism_transformer.study.queue import QUEUE_FILE, Queue, trial_key
from prism_transformer.study.runs import StudyRun, check_fair, run_of
from prism_transformer.study.selection import Arms, Seeds, select
from prism_transformer.study.sharing import HEARTBEAT
from prism_transformer.study.spec import StudyError, find_study
from prism_transformer.study.tuning import (
    TUNING,
    Rates,
    find_rates,
    rates_of,
    read_rates,
    with_rates,
    write_rates,
)
from prism_transformer.training.run import reached

STUDIES = Path("studies")  # where the folders of studies are unless a place is given


@dataclass(frozen=True)
class StudyFolder:
    """A plan with the folder of its runs and the database that its workers share."""

    plan: Plan
    folder: Path
    storage: str | None = None
    """an SQLite file in the folder where there is none"""
    collected: Mapping[str, EarlierRun] = field(default_factory=dict)
    """cells that collected folders hold complete, by name"""
    tuning: TuningFacts | None = None
    """which rates were found, of a study with [tune]"""

    @property
    def rates(self) -> Rates:
        """How far its tuning is."""
        return find_rates(self.plan, self.folder, self.tuning)

    @property
    def tuner(self) -> StudyFolder:
        """The study of the runs that find its rates."""
        return StudyFolder(self.rates.plan, self.folder / TUNING, self.storage)

    @property
    def runs(self) -> list[StudyRun]:
        """The runs of this folder in the planned order, begun or not, without ``earlier`` ones."""
        runs = [self.run_of(cell) for cell in self.plan.cells]
        return [run for run in runs if run.begun or run.cell.name not in self.collected]

    @property
    def earlier(self) -> list[EarlierRun]:
        """Cells that were collected before and are not begun here."""
        mine = {run.cell.name for run in self.runs}
        names = [cell.name for cell in self.plan.cells if cell.name not in mine]
        return [self.collected[name] for name in names]

    def run_of(self, cell: Cell) -> StudyRun:
        return run_of(self.plan, self.folder, cell)

    def check(self) -> None:
        """Refuse runs in the folder that would not be a fair part of this study."""
        runs = self.runs
        for run in runs:
            run.check_recipe()
        check_fair(self.plan, runs, self.earlier)

    @property
    def left(self) -> list[tuple[Cell, int]]:
        """Cells of a tuning study that are not done, each with its last step.

        A run that diverged counts as done, since it would diverge again.
        """
        left = [run.cell for run in self.runs if not run.diverged and run.queued()]
        return [(cell, cell.recipe.n_steps) for cell in left]

    def check_stuck(self) -> None:
        """Refuse to go on where an arm's rate cannot be found."""
        if self.tuning and (stuck := self.rates.stuck):
            raise StudyError(
                f"{self.plan.file}: {'; '.join(stuck.values())}, and an end is never taken for the "
                "best; give [tune] other rates in another --out, or a larger `extend`"
            )

    def queue(self, heartbeat: int = HEARTBEAT) -> Queue:
        """The queue, which may be empty or not begun."""
        collected = [each.cell.name for each in self.earlier]
        return Queue(self.plan, self.folder, self.storage, heartbeat, collected)

    def begin(self, queue: Queue, cells: Sequence[tuple[Cell, int]] | None = None) -> None:
        """Fill the queue: with all cells to their last step, or with these to a step each."""
        if self.plan.untuned:
            raise StudyError(
                f"{self.plan.file}: the learning rate of {', '.join(self.plan.untuned)} is not "
                "found yet; `prism study run` tunes first"
            )
        self.check()
        self.keep_file()
        if cells is None:
            cells = [(cell, cell.recipe.n_steps) for cell in self.plan.cells]
        cells = [(cell, until) for cell, until in cells if cell.name in queue.selected]
        done, undone = {}, set()
        for cell, until in cells:  # run folders decide, whatever the queue has
            run, key = self.run_of(cell), trial_key(cell.name, until)
            todo = run.queued(until)
            if run.begun and not todo:
                done[key] = run.values(until)
            # Trained, but it lacks a stage. What is not trained here is left to the queue, since
            # another machine, whose folders cannot be read from here, may have done it.
            elif todo and run.step >= until:
                undone.add(key)
        queue.fill(cells, done, undone)

    def keep_file(self) -> None:
        """Write the study file, and the rates that were found, into the folder."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / "study.toml", self.plan.file.read_bytes())
            if self.tuning:
                write_rates(self.folder, self.tuning)

    def failures(self) -> dict[str, str]:
        """Why cells failed, by name, as the queue has it; empty without a queue."""
        found = queue.failures() if (queue := self._queue_if_any()) else {}
        return {run.cell.name: found[run.cell.name] for run in self.runs if run.cell.name in found}

    def _queue_if_any(self) -> Queue | None:
        """The queue, if there is one: asking for the status must not create an SQLite file."""
        there = self.storage is not None or (self.folder / QUEUE_FILE).is_file()
        return self.queue() if there else None

    def status(self) -> Table:
        """How far each run is, and which machine works on it."""
        queue = self._queue_if_any()
        running, failures = (queue.running(), queue.failures()) if queue else ({}, {})
        earlier = {each.cell.name: each for each in self.earlier}
        rows: list[Row] = [] if self.tuning is None else _tuning_rows(self.tuner)
        for run in map(self.run_of, self.plan.cells):
            name, steps = run.cell.name, run.cell.recipe.n_steps
            if run.cell.arm in self.plan.untuned:
                state = "waits for its learning rate"
            elif name in earlier:
                state = f"done: collected in {earlier[name].folder}"
            elif name in running:
                state = f"running on {running[name]}"
            elif name in failures:
                state = f"failed: {failures[name]}"
            else:
                todo = run.to_do()
                state = f"to do: {', '.join(todo)}" if todo else "done"
            # Not from checkpoints: the newest may be an hour old, or there may be none yet.
            step, loss = reached(run.folder) if run.begun else (0, None)
            if name in earlier:
                step, loss = steps, next(reversed(earlier[name].losses.values()), None)
            rows.append({"run": name, "step": step, "of": steps, "loss": loss, "state": state})
        numbers = (Column("step"), Column("of"), Column("loss", unit="nats", places=4))
        columns = (*words("run"), *numbers, *words("state"))
        return Table("status", columns, tuple(rows))

    def collect(
        self,
        others: Sequence[Path] = (),
        out: Path | None = None,
        note: str = "",
        *,
        rates_compare: bool = True,
    ) -> Collected:
        """Write the table of all runs, those in other folders included, and a remark on them.

        Without ``rates_compare`` no rate of theirs is held against another, in this table and
        wherever it is read: the machine did other work, too.
        """
        collected = collect(
            self.plan, [self.folder, *others], self.failures(), self.collected, self.tuning
        )
        # Without a new one, what was remarked on numbers collected before is still true of them.
        facts = collected.facts.model_copy(update={"note": note or collected.facts.note})
        facts = facts if rates_compare else without_rates(facts)
        collected = replace(collected, facts=facts)
        place = out or self.folder / COLLECTED
        collected = looked_again(collected, place)
        _write(place, collected)
        return collected


def collect_anew(folder: Path) -> tuple[str, ...]:
    """Write what the collected folder of an older version lacks; gives what that was, in words."""
    found = read_collected(folder)
    lacking = (found.doubt, "its sums"), (not (folder / CONTRASTS_FILE).is_file(), "its contrasts")
    wrote = tuple(what for missing, what in lacking if missing)
    if wrote:
        _write(folder, found)
    return wrote


def _write(folder: Path, collected: Collected) -> None:
    """A collected folder, with its contrasts for eyes."""
    lines = compare(collected, by_item=()).by_seed.to_csv(index=False, lineterminator="\n")
    write_collected(folder, collected, {CONTRASTS_FILE: lines.encode()})


Source = StudyFolder | str | PathLike[str]
"""A study as ``load_study`` gives it, its file, or the name of one that ships."""


def load_study(
    source: Source,
    out: PathLike[str] | str | None = None,
    storage: str | None = None,
    overrides: Sequence[str] = (),
    seeds: Seeds = None,
    arms: Arms = None,
    with_: Sequence[PathLike[str] | str] = (),
) -> StudyFolder:
    """Read a study file and plan its runs; nothing is written or trained.

    ``out`` is the study's folder, studies/NAME when left out. ``storage`` is a database that the
    workers of several machines share, as in ``postgresql://user@host/name``. ``overrides`` such as
    ``optim.lr=3e-4`` change the recipe of every arm; ``seeds`` and ``arms`` choose some of the
    study's runs, as lists or as text (``0-2,7``). ``with_`` names collected folders whose complete
    runs count as done, or a sweep whose rates are those of [tune].
    """
    if isinstance(source, StudyFolder):
        if overrides:
            raise StudyError(f"{list(overrides)}: overrides go with the file of a study")
        study = replace(
            source,
            plan=select(source.plan, seeds, arms),
            folder=source.folder if out is None else Path(out),
            storage=storage or source.storage,
        )
    else:
        plan = select(make_plan(find_study(fspath(source)), overrides), seeds, arms)
        study = StudyFolder(plan, STUDIES / plan.name if out is None else Path(out), storage)
    folders = [Path(each) for each in with_]
    if study.plan.study.tune:
        study, folders = _tuned(study, folders)
    return replace(study, collected=find_earlier(study.plan, folders)) if folders else study


def _tuned(study: StudyFolder, folders: Sequence[Path]) -> tuple[StudyFolder, list[Path]]:
    """The same with the rates of its arms: written down here, collected elsewhere, or found.

    And the folders that hold more than rates: of a sweep nothing else is wanted.
    """
    known, rest = read_rates(study.folder) or study.tuning, []
    for folder in folders:
        collected = read_collected(folder)
        rates = rates_of(collected)
        known = known or rates
        if rates is None or collected.facts.tuning:
            rest.append(folder)
    found = find_rates(study.plan, study.folder, known).facts
    return replace(study, plan=with_rates(study.plan, found.best), tuning=found), rest


def _tuning_rows(tuner: StudyFolder) -> list[Row]:
    """How far the runs are that find the rates; those that diverged are done."""
    diverged = {run.cell.name for run in tuner.runs if run.diverged}
    return [
        {**row, "state": "done: diverged"} if row["run"] in diverged else row
        for row in tuner.status().rows
    ]
