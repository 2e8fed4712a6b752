"""Who works on which cell: an Optuna study with one trial for each.

On one machine it is an SQLite file in the study's folder; for many, any database that Optuna
takes, above all PostgreSQL. Run folders are the truth: the queue can always be made again.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from time import sleep
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, Trial, TrialState

from prism_transformer.errors import InputError
from prism_transformer.folders import FolderBusy, locked
from prism_transformer.study.cell import CellFailed, Interrupted, Values
from prism_transformer.study.plan import Cell, Plan

QUEUE_FILE = "queue.db"
CLAIMS = "claims"  # folders that whoever works on a cell of this machine has locked

HEARTBEAT = 10  # seconds between signs of life
PATIENCE = 6  # heartbeats missed before a worker is taken for dead
POLL = 2.0  # seconds between looks at what others do
RETRIES = 3  # of a cell whose workers died

LIVE = (TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE)

Do = Callable[[str, int], Values]
"""Trains the cell of a name to a step, and does what else there is to do with it."""


class Queue:
    """The cells of a study in a database."""

    def __init__(
        self, plan: Plan, folder: Path, storage: str | None = None, heartbeat: int = HEARTBEAT
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.labels = {arm.name: f"{arm.name}: {arm.schedule}" for arm in plan.arms}
        self.storage = _open_storage(storage or _sqlite(folder), heartbeat)
        self.shape = {"arms": list(self.labels.values()), "points": list(plan.points)}
        self.host = socket.gethostname()
        self.patience = timedelta(seconds=PATIENCE * heartbeat)

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
        with locked(self.folder / CLAIMS / "queue", wait=True):
            study = self._create()
            self._release_dead(study)
            keys = [trial_key(cell.name, until) for cell, until in cells]
            if not study.user_attrs:
                self._describe(study)
            complete = _completed(study)
            known = {key: values for key, values in complete.items() if key not in undone}
            same = study.user_attrs.get("shape") == self.shape and known == complete
            if not same or _out_of_order(study, keys):
                done = known | dict(done)
                study = self._remake(study)
            live = {trial_of(each) for each in study.get_trials(states=LIVE)}
            for key, (cell, until) in zip(keys, cells, strict=True):
                if key not in live:
                    study.add_trial(self._trial(cell, until, done.get(key)))

    def _remake(self, study: optuna.Study) -> optuna.Study:
        """Begin anew: with all arms, which Optuna wants to know, and cells in the planned order."""
        if study.get_trials(states=(TrialState.RUNNING,)):
            raise InputError(
                f"{self.plan.file}: has changed while workers are at it; stop them first"
            )
        optuna.delete_study(study_name=self.plan.name, storage=self.storage)
        study = self._create()
        self._describe(study)
        return study

    def _describe(self, study: optuna.Study) -> None:
        study.set_user_attr("shape", self.shape)
        study.set_metric_names(["validation loss", "tokens per second"])

    def _create(self) -> optuna.Study:
        return optuna.create_study(
            storage=self.storage,
            study_name=self.plan.name,
            directions=["minimize", "maximize"],
            sampler=optuna.samplers.RandomSampler(),
            load_if_exists=True,
        )

    def _trial(self, cell: Cell, until: int, values: Values | None) -> FrozenTrial:
        space: dict[str, Any] = {
            "arm": CategoricalDistribution(tuple(self.labels.values())),
            "seed": IntDistribution(0, 2**62),
        }
        params: dict[str, Any] = {"arm": self.labels[cell.arm], "seed": cell.seed}
        for key, value in self.plan.points[cell.point].items():
            space[key] = CategoricalDistribution(
                tuple(dict.fromkeys(point[key] for point in self.plan.points))
            )
            params[key] = value
        return optuna.create_trial(
            state=TrialState.WAITING if values is None else TrialState.COMPLETE,
            values=values,
            params=params,
            distributions=space,
            user_attrs={"cell": cell.name, "until": until},
        )

    def _release_dead(self, study: optuna.Study) -> None:
        """Give back what a worker of this machine claimed that is no more.

        Other machines' workers are noticed by their heartbeat; here the system knows at once.
        """
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            attrs = trial.user_attrs
            # Without a host: it died, or lives, between two lines of code.
            started = trial.datetime_start or datetime.now()
            fresh = "host" not in attrs and started > datetime.now() - self.patience
            if fresh or attrs.get("host", self.host) != self.host or "cell" not in attrs:
                continue
            with (
                suppress(FolderBusy, UpdateFinishedTrialError),  # it is alive, or finished
                locked(self.folder / CLAIMS / attrs["cell"]),
            ):
                self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)

    # -- working ---------------------------------------------------------------------------------

    def work(self, do: Do, more: Callable[[], bool] = lambda: False) -> None:
        """Take cells and do them until none is left, here or with any other worker.

        A worker that dies leaves its cell to those who still wait, so they wait to the end;
        ``more`` says whether cells may still be added.
        """
        study = self._load()
        while True:
            optuna.storages.fail_stale_trials(study)
            counts = self.counts(study)
            if counts[TrialState.WAITING]:
                self._take_one(study, do)
            elif counts[TrialState.RUNNING] or more():
                sleep(POLL)
            else:
                return

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

    def _take_one(self, study: optuna.Study, do: Do) -> None:
        taken: list[Trial] = []

        def objective(trial: Trial) -> Values:
            taken.append(trial)
            return self._do(study, trial, do)

        try:
            study.optimize(objective, n_trials=1, catch=(CellFailed,))
        except (Interrupted, KeyboardInterrupt):
            RetryHeartbeatStaleTrialCallback()(study, _frozen(study, taken[0]))
            raise

    def _do(self, study: optuna.Study, trial: Trial, do: Do) -> Values:
        mine = _frozen(study, trial)
        key = trial_of(mine)
        if key is None or any(
            trial_of(each) == key and each.number < mine.number
            for each in study.get_trials(states=LIVE)
        ):
            raise optuna.TrialPruned  # two filled the queue at once, or the last cell was taken
        trial.set_user_attr("host", self.host)
        cell, until = mine.user_attrs["cell"], mine.user_attrs["until"]
        try:
            with locked(self.folder / CLAIMS / cell, wait=True):
                return do(cell, until)
        except CellFailed as error:
            trial.set_user_attr("failure", str(error))
            raise

    # -- looking ---------------------------------------------------------------------------------

    def counts(self, study: optuna.Study | None = None) -> dict[TrialState, int]:
        """How many trials are in each state."""
        trials = (study or self._load()).get_trials(deepcopy=False)
        return {state: sum(each.state == state for each in trials) for state in TrialState}

    def running(self) -> dict[str, str]:
        """Cells under way, and the machine that works on each."""
        return {
            each.user_attrs["cell"]: each.user_attrs.get("host", "?")
            for each in self._load().get_trials(states=(TrialState.RUNNING,))
            if "cell" in each.user_attrs
        }

    def failures(self) -> dict[str, str]:
        """Cells whose last trial failed, and why."""
        found: dict[str, str] = {}
        for each in self._load().get_trials(deepcopy=False):
            cell = each.user_attrs.get("cell")
            if cell is not None and each.state in LIVE:
                found.pop(cell, None)
            elif cell is not None and each.state == TrialState.FAIL:
                found[cell] = each.user_attrs.get("failure", "its worker died")
        return found

    def close(self, finished: bool) -> None:
        """Say that no more cells come, or that they do."""
        self._load().set_user_attr("finished", finished)

    def finished(self) -> bool:
        """Whether no more cells come."""
        return bool(self._load().user_attrs.get("finished", True))


def trial_key(cell: str, until: int) -> str:
    """What tells a trial apart: a run, and how far it goes."""
    return f"{cell}@{until}"


def trial_of(trial: FrozenTrial) -> str | None:
    """The key of a trial; None where it was made for no cell."""
    attrs = trial.user_attrs
    return trial_key(attrs["cell"], attrs["until"]) if "cell" in attrs else None


def _completed(study: optuna.Study) -> dict[str, Values]:
    """What is done, by key, also by machines whose folders are not seen from here."""
    trials = study.get_trials(states=(TrialState.COMPLETE,))
    return {key: (each.values[0], each.values[1]) for each in trials if (key := trial_of(each))}


def _out_of_order(study: optuna.Study, keys: Sequence[str]) -> bool:
    """Whether cells that went back to the queue would come after those planned later.

    While somebody works, the queue stays as it is.
    """
    if study.get_trials(states=(TrialState.RUNNING,)):
        return False
    places = {key: place for place, key in enumerate(keys)}
    waiting = [trial_of(each) for each in study.get_trials(states=(TrialState.WAITING,))]
    live = {trial_of(each) for each in study.get_trials(states=LIVE)}
    order = [places[key] for key in waiting if key in places]
    order += [places[key] for key in keys if key not in live]
    return order != sorted(order)


def _frozen(study: optuna.Study, trial: Trial) -> FrozenTrial:
    return next(each for each in study.get_trials() if each.number == trial.number)


def _sqlite(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{(folder / QUEUE_FILE).resolve()}"


def shown(url: str) -> str:
    """A storage without its password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _open_storage(url: str, heartbeat: int) -> RDBStorage:
    warnings.simplefilter("ignore", ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if url.startswith(("postgresql://", "postgres://")):  # the driver that we install
        url = "postgresql+psycopg://" + url.partition("://")[2]
    patience = {"timeout": 60} if url.startswith("sqlite") else {}
    try:
        return RDBStorage(
            url,
            engine_kwargs={"connect_args": patience, "pool_pre_ping": True},
            heartbeat_interval=heartbeat,
            grace_period=PATIENCE * heartbeat,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
        )
    except Exception as error:  # each driver has errors of its own
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"--storage {shown(url)}: cannot be opened: {reason}") from None
