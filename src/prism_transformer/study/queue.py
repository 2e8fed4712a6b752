"""Who works on which cell: an Optuna study with one trial for each.

On one machine it is an SQLite file in the study's folder; for many, any database that Optuna
takes, above all PostgreSQL. Run folders are the truth: the queue can always be made again.

A trial is WAITING until a worker takes it, RUNNING while the worker's heartbeat goes on, then
COMPLETE or FAIL. Optuna is used as a queue that is safe between machines and that its dashboard
shows; its samplers choose nothing here.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from datetime import datetime, timedelta
from pathlib import Path
from time import sleep
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, Trial, TrialState

from prism_transformer.core.disk import FolderBusy, locked, plain_name
from prism_transformer.core.errors import InputError
from prism_transformer.recipe import Recipe, differences
from prism_transformer.study.plan import Cell, Plan
from prism_transformer.study.runs import CellFailed, Values
from prism_transformer.study.sharing import HEARTBEAT
from prism_transformer.study.storage import LOST, open_storage, shown
from prism_transformer.training.stopping import Stopped

QUEUE_FILE = "queue.db"
CLAIMS = "claims"  # a folder for each cell, locked by the worker of this machine that does it

PATIENCE = 6  # heartbeats missed before a worker is taken for dead
POLL = 2.0  # seconds between looks at what others do
RETRIES = 3  # of a cell whose workers died

# States in which a cell needs no new trial. PRUNED is a trial that turned out to be superfluous.
LIVE = WAITING, RUNNING, COMPLETE = TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE

Do = Callable[[str, int], Values]
"""Trains the cell of a name to a step, and does what else there is to do with it."""


class Queue:
    """The cells of a study in a database."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        storage: str | None = None,
        heartbeat: int = HEARTBEAT,
        elsewhere: Collection[str] = (),
    ) -> None:
        """``elsewhere`` names cells that need no work, whatever the database says."""
        self.plan, self.folder, self.heartbeat = plan, folder, heartbeat
        self.own = {cell.name for cell in plan.cells} - set(elsewhere)
        # What the dashboard shows of an arm. Of all arms: selections share one queue.
        self.labels = {arm.name: f"{arm.name}: {arm.schedule}" for arm in plan.all.arms}
        # Two processes that make the tables of one SQLite file at the same moment crash.
        with nullcontext() if storage else self._alone():
            sqlite = f"sqlite:///{(folder / QUEUE_FILE).resolve()}"
            self.storage = open_storage(
                storage or sqlite, heartbeat, PATIENCE, lambda: _Retry(max_retry=RETRIES)
            )
        self.shape = {"arms": list(self.labels.values()), "points": list(plan.points)}
        self.host = socket.gethostname()
        self.patience = timedelta(seconds=PATIENCE * heartbeat)

    def _alone(self) -> AbstractContextManager[None]:
        """Keep other processes of this machine from the queue as a whole."""
        return locked(self.folder / CLAIMS / "queue", wait=True)

    # -- filling ---------------------------------------------------------------------------------

    def fill(
        self,
        cells: Sequence[tuple[Cell, int]],
        done: Mapping[str, Values],
        undone: Collection[str] = (),
    ) -> None:
        """Make the study, and a trial for each cell that has none; ``done`` ones need no work.

        A cell comes with the step to train it to. What failed before is tried again, and what the
        queue takes for complete though it is ``undone``: the study has a new stage.
        """
        # Two processes of this machine that fill at once would each add every cell; two machines
        # may, and `_do` leaves out the second trial of a cell.
        with self._alone():
            study = self._open()
            self._release_dead(study)
            busy = self.counts(study)[RUNNING]
            keys = [trial_key(cell.name, until) for cell, until in cells]
            # What is done, also by machines whose folders are not seen from here.
            complete = {trial_of(e): (e.values[0], e.values[1]) for e in _trials(study, COMPLETE)}
            known = {key: values for key, values in complete.items() if key not in undone}
            changes = self._changes(study)
            if changes:
                known = {}  # another recipe found it
            shape = study.user_attrs.get("shape")
            same = shape == self.shape and not changes and known == complete
            # Optuna can neither add a category, nor reopen or reorder trials: begin anew.
            if not same or (not busy and _out_of_order(study, keys)):
                if busy:
                    raise InputError(
                        f"{self.plan.file}: has changed while workers are at it; stop them first"
                    )
                others = self._others(study)
                optuna.delete_study(study_name=self.plan.name, storage=self.storage)
                done, study = known | dict(done), self._open()
                cells = [*cells, *others]
                keys += [trial_key(cell.name, until) for cell, until in others]
            live = {trial_of(each) for each in _trials(study, *LIVE)}
            for key, (cell, until) in zip(keys, cells, strict=True):
                if key not in live:
                    study.add_trial(self._trial(cell, until, done.get(key)))

    def _others(self, study: optuna.Study) -> list[tuple[Cell, int]]:
        """Cells in the queue that were not selected here, but are still in the study."""
        cells = {cell.name: cell for cell in self.plan.all.cells if cell.name not in self.own}
        live = [each.user_attrs for each in _trials(study, WAITING, COMPLETE)]
        return [(cells[e["cell"]], e["until"]) for e in live if e["cell"] in cells]

    def _changes(self, study: optuna.Study) -> list[str]:
        """In what the recipe that the study was begun with is another than ours."""
        begun = study.user_attrs.get("recipe")
        if begun is None:
            return []
        lines = differences(Recipe.model_validate(begun), self.plan.base)
        # Each machine may keep its shards elsewhere, and write down what it likes.
        return [line for line in lines if not line.startswith(("data.folder:", "run."))]

    def _open(self) -> optuna.Study:
        """The study in the database, which is made where there is none."""
        study = optuna.create_study(
            storage=self.storage,
            study_name=self.plan.name,
            directions=["minimize", "maximize"],
            sampler=optuna.samplers.RandomSampler(),
            load_if_exists=True,
        )
        if not study.user_attrs:
            study.set_user_attr("shape", self.shape)
            study.set_user_attr("recipe", self.plan.base.model_dump())
            study.set_metric_names(["validation loss", "tokens per second"])
        return study

    def _trial(self, cell: Cell, until: int, values: Values | None) -> FrozenTrial:
        # Parameters are for the dashboard alone; the cell's name and step say what is to do.
        space: dict[str, Any] = {
            "arm": CategoricalDistribution(tuple(self.labels.values())),
            "seed": IntDistribution(0, 2**62),
        }
        swept, points = self.plan.points[cell.point], self.plan.points
        for key in swept:
            space[key] = CategoricalDistribution(tuple(dict.fromkeys(p[key] for p in points)))
        return optuna.create_trial(
            state=WAITING if values is None else COMPLETE,
            values=values,
            params={"arm": self.labels[cell.arm], "seed": cell.seed} | swept,
            distributions=space,
            user_attrs={"cell": cell.name, "until": until},
        )

    def _release_dead(self, study: optuna.Study) -> list[FrozenTrial]:
        """Fail what a dead worker of this machine had taken; those trials.

        Those of other machines are noticed by their heartbeat, a minute later. Here the system
        knows at once: a lock goes with the process that held it.
        """
        released = []
        for trial in study.get_trials(states=(RUNNING,)):
            attrs = trial.user_attrs
            # Optuna marks a trial RUNNING before our code writes the host: one without a host is
            # left alone for as long as its worker may still be between those two lines.
            started = trial.datetime_start or datetime.now()
            fresh = "host" not in attrs and started > datetime.now() - self.patience
            if fresh or attrs.get("host", self.host) != self.host or "cell" not in attrs:
                continue
            with (
                suppress(FolderBusy, UpdateFinishedTrialError),  # it is alive, or finished
                locked(self.folder / CLAIMS / plain_name(attrs["cell"])),
            ):
                self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
                released.append(trial)
        return released

    # -- working ---------------------------------------------------------------------------------

    def work(self, do: Do, more: Callable[[], bool] = lambda: False) -> None:
        """Take cells and do them until none is left, here or with any other worker.

        A worker that dies leaves its cell to those who still wait, so they wait to the end;
        ``more`` says whether cells may still be added.
        """
        lost = 0  # times in a row that the database went away in the middle of a question
        while True:
            try:
                waiting, running = self.left()
                if waiting:
                    self.take_one(do)
                elif running or more():
                    sleep(POLL)
                else:
                    return
                lost = 0
            except LOST:
                lost += 1
                if lost > RETRIES:
                    raise
                sleep(POLL)
                self.give_back()  # what we had taken; its run folder knows how far it is

    def check(self) -> optuna.Study:
        """The study in the database, if it was begun, and with our recipe."""
        study = self._load()
        if changes := self._changes(study):
            raise InputError(
                f"{self.plan.file}: the study was begun with another recipe: {'; '.join(changes)}; "
                "give the same file and the same overrides"
            )
        return study

    def left(self) -> tuple[int, int]:
        """How many of our cells wait and how many are under way, here or anywhere."""
        study = self.check()
        # Every worker looks after the others: whose heartbeat is overdue is failed, and the
        # callback of the storage puts the cell into the queue again.
        optuna.storages.fail_stale_trials(study)
        mine = [e for e in _trials(study, WAITING, RUNNING) if e.user_attrs["cell"] in self.own]
        waiting = sum(each.state == WAITING for each in mine)
        return waiting, len(mine) - waiting

    def give_back(self) -> None:
        """Put what dead workers of this machine had taken into the queue again, at once."""
        study = self._load()
        for trial in self._release_dead(study):
            _Retry(RETRIES)(study, trial)

    def _load(self) -> optuna.Study:
        try:
            return optuna.load_study(
                study_name=self.plan.name,
                storage=self.storage,
                sampler=optuna.samplers.RandomSampler(),
            )
        except KeyError:
            raise InputError(
                f"{self.plan.name}: no such study in {shown(self.storage.url)}; `prism study plan "
                f"{self.plan.file}` with the same --storage begins it"
            ) from None

    def take_one(self, do: Do) -> None:
        """Take the next cell that waits, if there still is one, and do it."""
        study, taken = self._load(), list[Trial]()
        with ExitStack() as claim:

            def objective(trial: Trial) -> Values:
                taken.append(trial)
                return self._do(study, trial, do, claim)

            # optimize() and not ask(): only it sends heartbeats while the objective runs.
            try:
                study.optimize(objective, n_trials=1, catch=(CellFailed,))
            except (Stopped, KeyboardInterrupt):  # saved as far as it is; the next goes on
                numbers = [trial.number for trial in taken]
                for mine in study.get_trials():
                    if mine.number in numbers and mine.state != COMPLETE:
                        _Retry()(study, mine)
                raise
        for trial in taken:
            self._pass_on(study, trial)

    def _pass_on(self, study: optuna.Study, trial: Trial) -> None:
        """Put a cell back that is not of our selection: Optuna hands out whatever waits first.

        Only when its trial has ended: a worker who takes the new one must not find it alive, or
        would leave its own out as a double.
        """
        if trial.user_attrs.get("cell", "") in {"", *self.own}:
            return
        again = {key: trial.user_attrs[key] for key in ("cell", "until")}
        study.add_trial(
            optuna.create_trial(
                state=WAITING,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs=again,
            )
        )

    def _do(self, study: optuna.Study, trial: Trial, do: Do, claim: ExitStack) -> Values:
        # Optuna's thread may be late with the first one, and who dies without any is never missed.
        self.storage.record_heartbeat(trial._trial_id)
        attrs = trial.user_attrs
        earlier = [trial_of(e) for e in _trials(study, *LIVE) if e.number < trial.number]
        if attrs.get("cell") not in self.own or trial_key(attrs["cell"], attrs["until"]) in earlier:
            # It is not selected here; two filled the queue at once; or another worker took the
            # last waiting trial after we had seen it, and Optuna made up one without a cell.
            raise optuna.TrialPruned
        try:
            # Waits where a worker was taken for dead that only hung: it still holds its lock.
            # Held until the trial has ended, and the host is named after it is had: a running
            # trial with a host whose lock is free counts as a dead worker's.
            claim.enter_context(locked(self.folder / CLAIMS / attrs["cell"], wait=True))
            trial.set_user_attr("host", self.host)
            return do(attrs["cell"], attrs["until"])
        except CellFailed as error:
            trial.set_user_attr("failure", str(error))
            raise

    # -- looking ---------------------------------------------------------------------------------

    def counts(self, study: optuna.Study | None = None) -> dict[TrialState, int]:
        trials = (study or self._load()).get_trials(deepcopy=False)
        return {state: sum(each.state == state for each in trials) for state in TrialState}

    def running(self) -> dict[str, str]:
        """Cells under way, and the machine that works on each."""
        return {
            each.user_attrs["cell"]: each.user_attrs.get("host", "?")
            for each in _trials(self._load(), RUNNING)
        }

    def failures(self) -> dict[str, str]:
        """Cells whose last trial failed, and why."""
        found: dict[str, str] = {}
        for each in _trials(self._load(), *TrialState):
            cell = each.user_attrs["cell"]
            if each.state in LIVE:
                found.pop(cell, None)
            elif each.state == TrialState.FAIL:
                found[cell] = each.user_attrs.get("failure", "its worker died")
        return found

    def close(self, finished: bool) -> None:
        """Say that no more cells come, or that they do (between the rungs of a search)."""
        self._load().set_user_attr("finished", finished)

    def finished(self) -> bool:
        return bool(self._load().user_attrs.get("finished", True))


class _Retry(RetryHeartbeatStaleTrialCallback):
    """Puts a cell into the queue again, which no machine has taken yet."""

    def __call__(self, study: optuna.Study, trial: FrozenTrial) -> None:
        trial.user_attrs = {key: e for key, e in trial.user_attrs.items() if key != "host"}
        super().__call__(study, trial)


def trial_key(cell: str, until: int) -> str:
    """What tells a trial apart: a run, and how far it goes."""
    return f"{cell}@{until}"


def trial_of(trial: FrozenTrial) -> str:
    return trial_key(trial.user_attrs["cell"], trial.user_attrs["until"])


def _trials(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """Trials in these states, oldest first, without those that Optuna made up for no cell."""
    return [e for e in study.get_trials(deepcopy=False, states=states) if "cell" in e.user_attrs]


def _out_of_order(study: optuna.Study, keys: Sequence[str]) -> bool:
    """Whether cells that went back to the queue would come after those planned later.

    Arms take turns by plan, so that a comparison grows seed by seed.
    """
    waiting = [trial_of(each) for each in _trials(study, WAITING)]
    live = {trial_of(each) for each in _trials(study, *LIVE)}
    planned = {key: place for place, key in enumerate(keys)}
    order = [planned[key] for key in waiting if key in planned]
    order += [planned[key] for key in keys if key not in live]
    return order != sorted(order)
