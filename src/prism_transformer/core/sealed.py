"""JSON files that know themselves: each holds the sha256 of everything else in it.

A result that was changed, by hand or by a bad disk, is named and refused. The sum is over values
and not over bytes, so that a file may be laid out anew. Files of before sums were kept are read as
they are; ``has_sum`` tells them apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from prism_transformer.core.disk import read_json, write_whole, writing
from prism_transformer.core.errors import InputError, explain

OWN_SUM = "sha256_of_the_rest"

Part = TypeVar("Part", bound=BaseModel)


class SealedPart(BaseModel):
    """A typed part of such a file: it cannot be changed, and an unknown key is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def sealed_json(
    facts: Mapping[str, Any], indent: int = 1, default: Callable[[Any], Any] | None = None
) -> str:
    """The text of a file that holds these values and their sum."""
    # Through JSON first: what is summed is what a reader will find, lists for tuples and so on.
    values = json.loads(json.dumps(facts, default=default))
    return json.dumps({**values, OWN_SUM: json_sum(values)}, indent=indent) + "\n"


def write_sealed(file: Path, facts: Mapping[str, Any]) -> None:
    """Write such a file, whole or not at all; its folder is made where it is missing."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, sealed_json(facts))


def json_sum(values: Mapping[str, Any]) -> str:
    """The sha256 of values that came from JSON, in any order; their own sum is left out."""
    rest = {key: value for key, value in values.items() if key != OWN_SUM}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_sealed(file: Path) -> dict[str, Any]:
    """What a file holds, without its sum; refused where it is not what was written."""
    facts = read_json(file)
    check_sum(file, facts)
    return {key: value for key, value in facts.items() if key != OWN_SUM}


def typed(file: Path, facts: Mapping[str, Any], part: type[Part]) -> Part:
    """What a file holds as typed values; what does not fit is named with its key."""
    try:
        return part.model_validate(facts)
    except ValidationError as error:
        raise InputError(explain(file, error.errors()[0])) from None


def check_sum(file: Path, facts: Any) -> None:
    """Refuse what is no table of values, or has a sum that is not of the rest."""
    if not isinstance(facts, dict):
        raise InputError(f"{file}: is damaged: holds {type(facts).__name__}, not a table of values")
    if has_sum(facts) and facts[OWN_SUM] != json_sum(facts):
        raise InputError(f"{file}: is damaged or was changed: sha256 differs from what was written")


def has_sum(facts: Mapping[str, Any]) -> bool:
    """Whether a file carries a sum; older ones do not."""
    return OWN_SUM in facts
