"""Which worker does which cell: an Optuna study with one trial for each cell.

On one machine it is an SQLite file in the study's folder; for several machines, any database that
Optuna takes, above all PostgreSQL. The queue holds nothing that run folders do not: it can be
deleted and made again at any time.

A trial is WAITING until a worker takes it, RUNNING while that worker sends heartbeats, then
COMPLETE or FAIL; PRUNED is a trial that turned out to be superfluous. Optuna serves as a queue that
is safe between machines and has a dashboard; its samplers choose nothing here.

Two things tell that a worker has died, and both are needed. On its own machine it is the lock of
the cell, which the system releases with the process: noticed at once. On other machines it is the
heartbeat: noticed after PATIENCE of them.
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
from prism_transformer.recipe import Recipe
from prism_transformer.study.plan import Cell, Plan, training_differences
from prism_transformer.study.runs import CellFailed, Values
from prism_transformer.study.sharing import HEARTBEAT
from prism_transformer.study.storage import LOST, open_storage, shown
from prism_transformer.training.stopping import Stopped

QUEUE_FILE = "queue.db"
CLAIMS = "claims"  # a folder for each cell, locked by the worker of this machine that does it

PATIENCE = 6  # heartbeats missed before a worker counts as dead
POLL = 2.0  # seconds between questions to the database
RETRIES = 3  # of a cell whose workers died

# States in which a cell needs no new trial.
LIVE = WAITING, RUNNING, COMPLETE = TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE

Do = Callable[[str, int], Values]
"""Trains the cell of this name to this step, and does what else is to do with it."""


class Queue:
    """The cells of a study in a database."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        storage: str | None = None,
        heartbeat: int = HEARTBEAT,
        collected: Collection[str] = (),
    ) -> None:
        """``collected`` names cells that need no work, whatever the database says."""
        self.plan, self.folder, self.heartbeat = plan, folder, heartbeat
        self.selected = {cell.name for cell in plan.cells} - set(collected)
        # What the dashboard shows of an arm. Of all arms: selections share one queue.
        self.labels = {arm.name: f"{arm.name}: {arm.schedule}" for arm in plan.all.arms}
        # Two processes that create the tables of one SQLite file at the same moment crash.
        with nullcontext() if storage else self._locked():
            sqlite = f"sqlite:///{(folder / QUEUE_FILE).resolve()}"
            self.storage = open_storage(
                storage or sqlite, heartbeat, PATIENCE, lambda: _Retry(max_retry=RETRIES)
            )
        # Optuna cannot add a category to a parameter: another shape means another Optuna study.
        self.shape = {"arms": list(self.labels.values()), "points": list(plan.points)}
        self.host = socket.gethostname()
        self.patience = timedelta(seconds=PATIENCE * heartbeat)

    def _locked(self) -> AbstractContextManager[None]:
        """Keep other processes of this machine from changing the queue as a whole."""
        return locked(self.folder / CLAIMS / "queue", wait=True)

    # -- filling ---------------------------------------------------------------------------------

    def fill(
        self,
        cells: Sequence[tuple[Cell, int]],
        done: Mapping[str, Values],
        undone: Collection[str] = (),
    ) -> None:
        """Create the study, and a trial for each cell that has none.

        A cell comes with the step to train it to. ``done`` has the results of cells that need no
        work. Cells that failed are tried again, as are ``undone`` ones, which the queue has as
        complete though the study has got a new stage since.
        """
        # Two processes of this machine that fill at once would each add every cell. Two machines
        # still can, which is why `_run_trial` leaves out the second trial of a cell.
        with self._locked():
            study = self._open()
            self._release_dead(study)
            busy = self.counts(study)[RUNNING]
            keys = [trial_key(cell.name, until) for cell, until in cells]
            # Including what machines have done whose folders cannot be read from here.
            complete = {trial_of(e): (e.values[0], e.values[1]) for e in _trials(study, COMPLETE)}
            known = {key: values for key, values in complete.items() if key not in undone}
            changes = self._changes(study)
            if changes:
                known = {}  # these are results of another recipe
            shape = study.user_attrs.get("shape")
            same = shape == self.shape and not changes and known == complete
            # Optuna can neither add a category, nor reopen or reorder trials: delete the study and
            # begin anew, with the results that still hold.
            if not same or (not busy and _out_of_order(study, keys)):
                if busy:
                    raise InputError(
                        f"{self.plan.file}: has changed while workers are at it; stop them first"
                    )
                others = self._unselected(study)
                optuna.delete_study(study_name=self.plan.name, storage=self.storage)
                done, study = known | dict(done), self._open()
                cells = [*cells, *others]
                keys += [trial_key(cell.name, until) for cell, until in others]
            live = {trial_of(each) for each in _trials(study, *LIVE)}
            for key, (cell, until) in zip(keys, cells, strict=True):
                if key not in live:
                    study.add_trial(self._trial(cell, until, done.get(key)))

    def _unselected(self, study: optuna.Study) -> list[tuple[Cell, int]]:
        """Cells in the queue that are part of the study, but not of our selection."""
        cells = {cell.name: cell for cell in self.plan.all.cells if cell.name not in self.selected}
        live = [each.user_attrs for each in _trials(study, WAITING, COMPLETE)]
        return [(cells[e["cell"]], e["until"]) for e in live if e["cell"] in cells]

    def _changes(self, study: optuna.Study) -> list[str]:
        """Where the recipe that the study was begun with differs from ours."""
        begun = study.user_attrs.get("recipe")
        if begun is None:
            return []
        return list(training_differences(Recipe.model_validate(begun), self.plan.base).values())

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
        # Workers read the attributes; the parameters are only for the dashboard.
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
        """Fail the trials of this machine whose worker has died, and return them.

        Their worker has died if the lock of their cell is free: the system releases a lock with the
        process that held it.
        """
        released = []
        for trial in study.get_trials(states=(RUNNING,)):
            attrs = trial.user_attrs
            # Optuna marks a trial RUNNING before `_run_trial` locks the cell and writes the host:
            # one without a host is left alone while its worker may still be between the two.
            started = trial.datetime_start or datetime.now()
            fresh = "host" not in attrs and started > datetime.now() - self.patience
            if fresh or attrs.get("host", self.host) != self.host or "cell" not in attrs:
                continue
            with (
                suppress(FolderBusy, UpdateFinishedTrialError),  # alive, or finished by now
                locked(self.folder / CLAIMS / plain_name(attrs["cell"])),
            ):
                self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
                released.append(trial)
        return released

    # -- working ---------------------------------------------------------------------------------

    def work(self, do: Do, more: Callable[[], bool] = lambda: False) -> None:
        """Take cells and do them until none is left, here or with any other worker.

        Waits while others still work, because the cell of a worker that dies comes back to the
        queue. ``more`` says whether cells may still be added.
        """
        lost = 0  # times in a row that the database did not answer
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
                # The trial that we had taken still counts as running; its run folder has what was
                # trained, so whoever takes it next goes on from there.
                self.give_back()

    def check(self) -> optuna.Study:
        """The study in the database; refused if it was not begun, or with another recipe."""
        study = self._load()
        if changes := self._changes(study):
            raise InputError(
                f"{self.plan.file}: the study was begun with another recipe: {'; '.join(changes)}; "
                "give the same file and the same overrides"
            )
        return study

    def left(self) -> tuple[int, int]:
        """How many of our cells wait and how many are running, on any machine."""
        study = self.check()
        # Fails the trials whose heartbeat is overdue; the storage's callback (`_Retry`) then puts
        # their cells into the queue again. Every worker does this for all others.
        optuna.storages.fail_stale_trials(study)
        trials = _trials(study, WAITING, RUNNING)
        states = [each.state for each in trials if each.user_attrs["cell"] in self.selected]
        return states.count(WAITING), states.count(RUNNING)

    def give_back(self) -> None:
        """Put the cells of dead workers of this machine into the queue again, at once."""
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
        """Take the next waiting cell, if there still is one, and do it."""
        study, taken = self._load(), list[Trial]()
        with ExitStack() as claim:

            def objective(trial: Trial) -> Values:
                taken.append(trial)
                return self._run_trial(study, trial, do, claim)

            # optimize() and not ask(): only it sends heartbeats while the objective runs.
            try:
                study.optimize(objective, n_trials=1, catch=(CellFailed,))
            except (Stopped, KeyboardInterrupt):  # the run is saved; whoever takes it next goes on
                numbers = [trial.number for trial in taken]
                for mine in study.get_trials():
                    if mine.number in numbers and mine.state != COMPLETE:
                        _Retry()(study, mine)
                raise
            except (AssertionError, ValueError):
                # What Optuna makes of a trial that others have failed: silent for too long, we
                # counted as dead, and the cell waits again. The run folder has what we did.
                ended = {each.number for each in _trials(study, TrialState.FAIL)}
                if not taken or taken[0].number not in ended:
                    raise
        for trial in taken:
            self._put_back(study, trial)

    def _put_back(self, study: optuna.Study, trial: Trial) -> None:
        """Queue a cell again that is not of our selection: Optuna hands out whatever waits first.

        Called only after its trial has ended: a worker that takes the new trial while the old one
        is alive would leave it out as a duplicate.
        """
        if trial.user_attrs.get("cell", "") in {"", *self.selected}:
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

    def _run_trial(self, study: optuna.Study, trial: Trial, do: Do, claim: ExitStack) -> Values:
        # Optuna's thread may be late with the first heartbeat, and a trial without any is never
        # stale: if its worker died now, its cell would stay taken for ever.
        self.storage.record_heartbeat(trial._trial_id)
        attrs = trial.user_attrs
        earlier = [trial_of(e) for e in _trials(study, *LIVE) if e.number < trial.number]
        cell = attrs.get("cell")
        if cell not in self.selected or trial_key(cell, attrs["until"]) in earlier:
            # Not selected here (`_put_back` queues it again); a duplicate, because two machines
            # filled the queue at once; or without a cell, because another worker took the last
            # waiting trial after we had seen it and Optuna made up a new one.
            raise optuna.TrialPruned
        try:
            # Waits if the worker before counted as dead but only hung: it still holds the lock.
            # The order matters: lock first, then host, and the lock is kept until the trial has
            # ended (`claim` is closed by `take_one`). A running trial with a host whose lock is
            # free counts as that of a dead worker.
            claim.enter_context(locked(self.folder / CLAIMS / cell, wait=True))
            trial.set_user_attr("host", self.host)
            return do(cell, attrs["until"])
        except CellFailed as error:
            trial.set_user_attr("failure", str(error))
            raise

    # -- looking ---------------------------------------------------------------------------------

    def counts(self, study: optuna.Study | None = None) -> dict[TrialState, int]:
        trials = (study or self._load()).get_trials(deepcopy=False)
        return {state: sum(each.state == state for each in trials) for state in TrialState}

    def running(self) -> dict[str, str]:
        """Running cells, and the machine that works on each."""
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
    """Puts a cell into the queue again, without the host of the worker that had it."""

    def __call__(self, study: optuna.Study, trial: FrozenTrial) -> None:
        trial.user_attrs = {key: e for key, e in trial.user_attrs.items() if key != "host"}
        super().__call__(study, trial)


def trial_key(cell: str, until: int) -> str:
    """What identifies a trial: a run, and the step to which it is trained."""
    return f"{cell}@{until}"


def trial_of(trial: FrozenTrial) -> str:
    return trial_key(trial.user_attrs["cell"], trial.user_attrs["until"])


def _trials(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """Trials in these states, oldest first, without those that Optuna made up for no cell."""
    return [e for e in study.get_trials(deepcopy=False, states=states) if "cell" in e.user_attrs]


def _out_of_order(study: optuna.Study, keys: Sequence[str]) -> bool:
    """Whether cells that went back to the queue would come after cells that are planned later.

    The order matters because arms take turns in it, so that a comparison grows seed by seed.
    """
    waiting = [trial_of(each) for each in _trials(study, WAITING)]
    live = {trial_of(each) for each in _trials(study, *LIVE)}
    planned = {key: place for place, key in enumerate(keys)}
    order = [planned[key] for key in waiting if key in planned]
    order += [planned[key] for key in keys if key not in live]
    return order != sorted(order)
