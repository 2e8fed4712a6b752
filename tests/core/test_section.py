"""Sections: what is wrong is said with its name, its value and the nearest key."""

from __future__ import annotations

import pytest
from pydantic import Field, ValidationError

from prism_transformer.core.errors import InputError
from prism_transformer.core.section import Section, wrong_values


class Inner(Section):
    width: int = 4


class Outer(Section):
    count: int
    double: int = Field(default_factory=lambda known: 2 * known["count"])
    inner: Inner = Inner()


def test_every_wrong_value_is_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        Outer(count="three", inner={"wide": 5})
    text = str(caught.value)
    assert "count" in text
    assert "'three'" in text
    assert "inner.wide" in text


def test_a_number_of_400_digits_is_named() -> None:
    for number in (10**400, -(10**400)):
        with pytest.raises(InputError, match=r"count = -?10+: Input should be at most 9223"):
            Outer(count=number)
    assert Outer(count=2**63 - 1).double == 2**64 - 2


def test_a_key_that_is_not_known_gets_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean count"):
        Outer(count=1, cuont=2)
    with pytest.raises(InputError, match="known: count, double, inner"):
        Outer(count=1, zzz=2)


def test_what_derives_from_a_wrong_value_is_not_blamed() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"count": "three"})
    assert [each["loc"] for each in wrong_values(caught.value)] == [("count",)]


def test_a_section_does_not_change() -> None:
    with pytest.raises(ValidationError):
        Outer(count=1).count = 2
