"""Errors that people can do something about: printed plainly, without a traceback."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


class InputError(ValueError):
    """Something the user gave or has is wrong; the message says what, where, and the remedy."""

    exit_code = 2


class RunError(InputError):
    """Nothing is wrong with the input, but a run cannot go on."""

    exit_code = 1


MAX_WHOLE = 2**63 - 1  # no count or seed of ours is larger; arithmetic would overflow


def at_least_one(**counts: int | None) -> None:
    """Refuse what is no count, by the name of its option; None is one that was left out."""
    for name, value in counts.items():
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} {value}: give at least 1")
        if value is not None and value > MAX_WHOLE:
            raise InputError(f"--{name.replace('_', '-')} {value}: give at most {MAX_WHOLE}")


def first_line(error: BaseException) -> str:
    """What an error of other software says first; its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


INTERRUPTED = 128 + 2  # as a shell reports a process that Ctrl-C ended

# Libraries whose errors are about the database of a study's queue.
DATABASES = ("sqlalchemy", "optuna", "sqlite3", "psycopg")


def sentence(error: BaseException) -> tuple[str, int] | None:
    """What to say of an error and the exit code, where it is the user's or the world's.

    The one place that knows which errors of the system and of other software are no bugs of ours:
    no room, no permission, no memory, a database that is damaged or gone. None for anything else,
    whose traceback somebody will want to see.
    """
    if isinstance(error, InputError):
        return str(error), error.exit_code
    module, kind = type(error).__module__.partition(".")[0], type(error).__name__
    # By name where a library has its own: nothing is imported only to know its errors.
    names = {each.__name__ for each in type(error).__mro__} | {kind}
    known = next((said for name, said in WORLD.items() if name in names), None)
    if str(error).startswith(LOOP):  # which Python before 3.13 raises as a RuntimeError
        known = ("{}", 2)
    if known is None and module in DATABASES:
        known = DATABASE
    if known is None:
        return None
    words, code = known
    why = _of_the_system(error) if isinstance(error, OSError) else first_line(error)
    return words.format(why), code


# What is said of errors by the name of their class or of one above it, and the exit code.
WORLD = {
    "KeyboardInterrupt": ("interrupted", INTERRUPTED),
    "MemoryError": ("there is not enough memory for this: {}", 1),
    "OutOfMemoryError": ("there is not enough memory for this: {}", 1),  # of torch
    "RecursionError": ("something that was given is nested too deeply", 2),
    "OverflowError": ("a number is too large: {}", 2),
    "UnicodeError": ("some text cannot be read or written here: {}", 2),
    "OSError": ("{}", 2),
    "PanicException": ("a library gave up: {}", 1),  # of those that are written in Rust
}
LOOP = "Symlink loop"
DATABASE = (
    "the database of the study's queue: {}; a queue.db that is damaged may be deleted: it is made "
    "again from the run folders",
    1,
)


def _of_the_system(error: OSError) -> str:
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if _is_path(name)]
    if error.errno is None:  # of a library, in words of its own
        return first_line(error)
    why = error.strerror or errno.errorcode.get(error.errno, str(error))
    return f"{' and '.join(names) or 'output'}: {why}"


def _is_path(name: object) -> bool:
    return isinstance(name, str | bytes | os.PathLike) and bool(name)


REMEDIES = {
    "int_type": "; write digits only, as in 1_000_000",
    "bool_type": "; write true or false",
}


def explain(
    file: object,
    details: Mapping[str, Any],
    where: str = "",
    *,
    key: str | None = None,
    remedies: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """One of pydantic's errors as one line: file, key, value, what is wrong, the remedy.

    ``where`` is the table that the key is in, ``key`` another name for it than pydantic's place,
    and ``remedies`` are sentences by pydantic's kind of error.
    """
    kind, value = details["type"], details["input"]
    if key is None:
        # Parts that pydantic adds: the branch of a union, and that a key is meant and no value.
        parts = [str(part) for part in details["loc"] if part not in ("str", "[key]")]
        key = ".".join([where, *parts] if where else parts)
    remedy = remedies.get(kind, REMEDIES.get(kind, ""))
    place = f"{file}: {key}" if key else str(file)
    if kind == "string_pattern_mismatch":
        return f"{file}: {value!r} cannot be a name; use letters, digits and _ . + -"
    plain = {
        "missing": "missing",
        "extra_forbidden": "unknown key",
        "model_type": f"expected a table, as in [{key}]",
        "too_short": f"{'has too few' if value else 'is empty'}; give at least {_fewest(details)}",
    }
    if kind in plain:
        return f"{place}: {plain[kind]}{remedy}"
    shown = "" if isinstance(value, dict) or not key else f" = {value!r}"
    return f"{place}{shown}: {plain_reason(details)}{remedy}"


def _fewest(details: Mapping[str, Any]) -> str:
    fewest = details.get("ctx", {}).get("min_length", 1)
    return "one" if fewest == 1 else str(fewest)


def plain_reason(details: Mapping[str, Any]) -> str:
    """The message of one of pydantic's errors, without its frame around ours."""
    return str(details["msg"]).removeprefix("Value error, ")
