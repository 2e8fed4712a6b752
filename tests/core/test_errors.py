from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from prism_transformer.core.errors import (
    InputError,
    RunError,
    at_least_one,
    explain,
    first_line,
    sentence,
)


class Stage(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    size: int = 1


class File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern="^[a-z]+$")
    seeds: list[int] = Field(default=[0], min_length=1)
    on: bool = True
    stage: Stage | None = None
    arms: dict[str, str | int] = {}

    @field_validator("seeds")
    @classmethod
    def _small(cls, seeds: list[int]) -> list[int]:
        if max(seeds) > 9:
            raise ValueError("too large")
        return seeds


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, "f.toml: name: missing"),
        ({"name": "a", "nam": 1}, "f.toml: nam: unknown key"),
        ({"name": "A b"}, "f.toml: 'A b' cannot be a name; use letters, digits and _ . + -"),
        ({"name": "a", "seeds": []}, "f.toml: seeds: is empty; give at least one"),
        ({"name": "a", "seeds": [99]}, "f.toml: seeds = [99]: too large"),
        (
            {"name": "a", "on": "yes"},
            "f.toml: on = 'yes': Input should be a valid boolean; write true or false",
        ),
        (
            {"name": "a", "stage": {"size": "9"}},
            "f.toml: stage.size = '9': Input should be a valid integer; write digits only, as in "
            "1_000_000",
        ),
        ({"name": "a", "stage": 3}, "f.toml: stage: expected a table, as in [stage]"),
        (
            {"name": "a", "arms": {"x": 1.5}},
            "f.toml: arms.x = 1.5: Input should be a valid string",
        ),
    ],
)
def test_what_pydantic_refuses_is_one_line(values: dict[str, Any], line: str) -> None:
    with pytest.raises(ValidationError) as refused:
        File.model_validate(values)
    assert explain("f.toml", refused.value.errors()[0]) == line


def test_places_and_remedies_can_be_given() -> None:
    details = {"type": "missing", "loc": ("a", "b"), "input": {}, "msg": "Field required"}
    assert explain("f", details, "arms") == "f: arms.a.b: missing"
    assert (
        explain("f", details, key="c", remedies={"missing": "; set it"}) == "f: c: missing; set it"
    )


@pytest.mark.parametrize(
    ("count", "why"), [(0, "at least 1"), (-1, "at least 1"), (10**400, f"at most {2**63 - 1}")]
)
def test_what_is_no_count_is_refused_by_its_option(count: int, why: str) -> None:
    at_least_one(rounds=1, batch=None, length=2**63 - 1)
    with pytest.raises(InputError, match=f"--shard-tokens {count}: give {why}"):
        at_least_one(rounds=1, shard_tokens=count)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "one"),
        (OSError(), "OSError"),
        (RuntimeError("\n  three\n"), "three"),
    ],
)
def test_the_first_line_of_an_error(error: BaseException, line: str) -> None:
    assert first_line(error) == line


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (InputError("wrong"), "wrong", 2),
        (RunError("gone"), "gone", 1),
        (PermissionError(13, "Permission denied", "a/b"), "a/b: Permission denied", 2),
        (NotADirectoryError(20, "Not a directory", b"a"), "a: Not a directory", 2),
        (OSError(36, "File name too long", "x", None, "y"), "x and y: File name too long", 2),
        (OSError(28, "No space left on device"), "output: No space left on device", 2),
        (OSError("a library's words\nand more"), "a library's words", 2),
        (RuntimeError("Symlink loop from 'a'"), "Symlink loop from 'a'", 2),
        (KeyboardInterrupt(), "interrupted", 130),
        (MemoryError(), "there is not enough memory for this: MemoryError", 1),
        (OverflowError("too large to convert"), "a number is too large: too large to convert", 2),
        (RecursionError(), "something that was given is nested too deeply", 2),
    ],
    ids=repr,
)
def test_the_faults_of_the_world_are_sentences(error: BaseException, said: str, code: int) -> None:
    assert sentence(error) == (said, code)


def test_a_bug_is_none_of_them() -> None:
    for error in (KeyError("x"), TypeError("x"), AssertionError("x"), ValueError("x")):
        assert sentence(error) is None


def test_a_damaged_database_says_that_it_may_be_deleted() -> None:
    found = sentence(sqlite3.DatabaseError("database disk image is malformed"))
    assert found is not None
    assert "malformed; a queue.db that is damaged may be deleted" in found[0]
