"""Conditions on fields of records, as in ``language=en`` or ``language_score>=0.65``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from prism_transformer.core.errors import InputError

COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
WRITTEN = re.compile(r"\s*([^\s<>=!]+)\s*(!=|<=|>=|=|<|>)\s*(.+?)\s*")


class Condition(NamedTuple):
    """What a field of a record must be, for the record to be read."""

    field: str
    how: str
    value: str

    def __str__(self) -> str:
        return f"{self.field}{self.how}{self.value}"

    def holds(self, found: Any) -> bool:
        """Whether a value fits: numbers by size, anything else as text; nothing fits ``null``."""
        if found is None:
            return False
        if isinstance(found, int | float) and not isinstance(found, bool):
            return COMPARED[self.how](float(found), self._number(found))
        return COMPARED[self.how](str(found), self.value)

    def _number(self, found: object) -> float:
        try:
            return float(self.value)
        except ValueError:
            raise InputError(
                f"--where {self}: {self.field} is a number, as in {found}; compare it with one"
            ) from None


def read_condition(text: str) -> Condition:
    """A condition as it is written on a command line."""
    written = WRITTEN.fullmatch(text)
    if written is None:
        raise InputError(
            f"--where {text!r}: is no condition; write a field, one of {' '.join(COMPARED)} and "
            "a value, as in language=en or score>=0.5"
        )
    return Condition(*written.groups())
