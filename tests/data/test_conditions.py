from __future__ import annotations

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.data.conditions import read_condition


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("language=en", "en", True),
        ("language != en", "en", False),
        ("score>=0.65", 0.65, True),
        ("score<0.65", 0.65, False),
        ("n=3", 3, True),
        ("n=3", "3", True),
        ("n>10", 9, False),  # as numbers, not as text
        ("language=en", None, False),
        ("data.language=en", "en", True),
    ],
)
def test_a_condition_holds_or_not(text: str, value: object, holds: bool) -> None:
    assert read_condition(text).holds(value) == holds


@pytest.mark.parametrize("text", ["", "language", "=en", "language=", "language=="])
def test_what_is_no_condition_is_said(text: str) -> None:
    if text == "language==":  # the value may be anything
        assert read_condition(text).value == "="
        return
    with pytest.raises(InputError, match="is no condition; write a field"):
        read_condition(text)


def test_numbers_are_compared_with_numbers() -> None:
    with pytest.raises(InputError, match="--where score>high: score is a number, as in"):
        read_condition("score>high").holds(0.5)
