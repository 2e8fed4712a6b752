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
from typing import Any

from prism_transformer.core.disk import read_json
from prism_transformer.core.errors import InputError

OWN_SUM = "sha256_of_the_rest"


def sealed_json(
    facts: Mapping[str, Any], indent: int = 1, default: Callable[[Any], Any] | None = None
) -> str:
    """The text of a file that holds these values and their sum."""
    # Through JSON first: what is summed is what a reader will find, lists for tuples and so on.
    values = json.loads(json.dumps(facts, default=default))
    return json.dumps({**values, OWN_SUM: json_sum(values)}, indent=indent) + "\n"


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


def check_sum(file: Path, facts: Any) -> None:
    """Refuse what is no table of values, or has a sum that is not of the rest."""
    if not isinstance(facts, dict):
        raise InputError(f"{file}: is damaged: holds {type(facts).__name__}, not a table of values")
    if has_sum(facts) and facts[OWN_SUM] != json_sum(facts):
        raise InputError(f"{file}: is damaged or was changed: sha256 differs from what was written")


def has_sum(facts: Mapping[str, Any]) -> bool:
    """Whether a file carries a sum; older ones do not."""
    return OWN_SUM in facts
