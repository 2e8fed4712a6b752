"""Some arms and seeds of a study."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_transformer.core.errors import InputError
from prism_transformer.study.selection import MOST_SEEDS, parse_seeds, select
from tests.study.files import ARMS, HEAD, plan_of

THREE = HEAD.replace("[0, 1]", "[7, 0, 3]") + ARMS + 'reversed = "reversed"\n'

Ranges = st.lists(
    st.tuples(st.integers(0, 2**63 - 1), st.none() | st.integers(0, 40)), min_size=1, max_size=6
)
SPACES = st.sampled_from(["", " "])


@given(Ranges, SPACES)
def test_seeds_read_as_they_are_written(ranges: list[tuple[int, int | None]], gap: str) -> None:
    """Against the numbers that the text was written from."""
    text = ",".join(
        f"{gap}{low}" if more is None else f"{gap}{low}{gap}-{gap}{low + more}"
        for low, more in ranges
    )
    wanted = [low + each for low, more in ranges for each in range(1 + (more or 0))]
    assert parse_seeds(text) == wanted


@given(st.text(max_size=12) | st.text("0123456789,- ", max_size=12))
def test_any_text_gives_seeds_or_is_refused(text: str) -> None:
    with suppress(InputError):
        found = parse_seeds(text)
        digits = {int(each) for each in re.findall("[0-9]+", text)}
        assert digits <= set(found)
        assert all(min(digits) <= seed <= max(digits) for seed in found)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not ''"),
        ("0,,1", "not ''"),
        ("-1", "not '-1'"),
        ("1-2-3", "not '1-2-3'"),
        ("0.5", "not '0.5'"),
        ("٣", "not '٣'"),
        ("9" * 5000, "write seeds as in"),
        ("7-0", "ends before it begins"),
        (f"0-{MOST_SEEDS}", "more than 10,000 seeds"),
    ],
)
def test_seeds_that_cannot_be_read_say_why(text: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_seeds(text)
    assert reason in str(caught.value)


def test_a_selection_keeps_order_names_and_recipes(tmp_path: Path) -> None:
    whole = plan_of(tmp_path, THREE)
    chosen = select(whole, "0-0,7", "reversed, uniform")
    assert chosen.study.seeds == [7, 0]
    assert [arm.name for arm in chosen.arms] == ["uniform", "reversed"]
    wanted = [c for c in whole.cells if c.arm != "prism" and c.seed != 3]
    assert list(chosen.cells) == wanted
    assert chosen.all is whole
    assert chosen == select(select(whole, [0, 7]), arms=["uniform", "reversed"])
    assert select(whole) is whole


def test_the_command_of_a_selection_is_what_a_user_types(tmp_path: Path) -> None:
    whole = plan_of(tmp_path, THREE)
    assert whole.command == "prism study run mine"
    chosen = select(whole, [0], ["uniform", "prism"])
    assert chosen.command == "prism study run mine --seeds 0 --arms uniform,prism"
    assert select(whole, "0,3,7").command == "prism study run mine"


@pytest.mark.parametrize(
    ("seeds", "arms", "reason"),
    [
        ("0,5", None, r"--seeds: 5: .*mine\.toml has 7, 0, 3; .*`seeds`, in a copy"),
        ([], None, "--seeds: none: "),
        ("0-9", None, "--seeds: 1, 2, 4, 5, 6, 8, 9: "),
        (None, "uniform,prsm", r"no arm 'prsm' in .*mine\.toml; it has uniform, prism, reversed"),
        (None, "", "no arm ''"),
        (None, "prism", "add uniform, the baseline"),
        (None, [], "add uniform, the baseline"),
    ],
)
def test_what_is_not_in_the_study_is_refused(
    tmp_path: Path, seeds: str | None, arms: str | None, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        select(plan_of(tmp_path, THREE), seeds, arms)
