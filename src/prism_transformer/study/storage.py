"""The database of a queue: checked, opened, waited for, and shown without its password."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from sqlite3 import DatabaseError, OperationalError, connect
from time import monotonic, sleep
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from prism_transformer.core.errors import InputError, first_line

SPARE = "it may be deleted: it is made again from the run folders, which have everything"
RETURN_SECONDS = 600  # within which a database that went away may come back
POLL = 2.0  # seconds between attempts

LOST = (StorageInternalError, DBAPIError)  # raised when the database does not answer


def shown(url: str) -> str:
    """A storage without its password, which may stand before the host or after a question mark."""
    scheme, _, rest = url.partition("://")
    place, asked, _ = rest.rpartition("@")[2].partition("?")
    return f"{scheme}://{place}{'?...' if asked else ''}"


def open_storage(
    url: str,
    heartbeat: int,
    patience: int,
    retry: Callable[[], RetryHeartbeatStaleTrialCallback],
) -> RDBStorage:
    """Open a database; an SQLite file that is missing is created.

    A worker whose heartbeat is missed ``patience`` times counts as dead, and the callback that
    ``retry`` makes is called with its trial.
    """
    warnings.simplefilter("ignore", ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if url.startswith(("postgresql://", "postgres://")):  # name the driver that we install
        url = "postgresql+psycopg://" + url.partition("://")[2]
    local = url.startswith("sqlite")
    if local:
        _check_file(Path(url.partition(":///")[2]))
    # SQLite has one writer at a time; others wait for it, up to so many seconds.
    waiting = {"timeout": 60} if local else {}
    try:
        storage = RDBStorage(
            url,
            # Hours of training may lie between two queries: test a connection before its use.
            engine_kwargs={"connect_args": waiting, "pool_pre_ping": True},
            heartbeat_interval=heartbeat,
            grace_period=patience * heartbeat,
            heartbeat_stale_trial_callback=retry(),
        )
    except Exception as error:  # each driver has errors of its own
        why = first_line(error)
        for secret in _secrets(url):
            why = why.replace(secret, "***")
        raise InputError(f"--storage {shown(url)}: cannot be opened: {why}") from None
    # Only from here on: an address that was never reached is wrong, and waiting would not help.
    if not local:
        event.listen(storage.engine, "do_connect", _patient)
    return storage


def _check_file(file: Path) -> None:
    """Refuse an SQLite file that is damaged, with the word that nothing is lost with it."""
    if not file.exists():
        return
    try:
        # mode=rw, not ro: opening rolls back what a killed process left half done, which writes.
        with closing(connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)) as database:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except OperationalError:  # busy, or read-only: not damaged, and opening it will say so
        return
    except DatabaseError as error:
        found = str(error)
    if found != "ok":
        raise InputError(f"{file}: is damaged: {' '.join(found.split())}; {SPARE}")


def _patient(dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
    """A connection; waits up to RETURN_SECONDS for a server that is being restarted."""
    until = monotonic() + RETURN_SECONDS
    while True:
        try:
            return dialect.connect(*arguments, **options)
        except dialect.loaded_dbapi.OperationalError:
            if monotonic() > until:
                raise
            sleep(POLL)


def _secrets(url: str) -> list[str]:
    """Everything in an address that must not be printed, longest first: one may hold another."""
    parts = urlsplit(url)
    found = [value for _, value in parse_qsl(parts.query)] + [parts.password or ""]
    found += [unquote(each) for each in found]
    return sorted({each for each in found if each}, key=len, reverse=True)
