"""Every schedule of a space under one run's weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Advance, Event
from prism_transformer.schedules.design import RULES
from prism_transformer.search.one_shot import one_shot
from prism_transformer.search.scores import OneShot, read_scores
from prism_transformer.training.run import Run


def test_the_whole_space_and_a_part_of_it(shared_run: Run, tmp_path: Path) -> None:
    run = tmp_path / "shared"
    shutil.copytree(shared_run.folder, run)
    found = one_shot(run, windows=2, device="cpu")
    assert len(found.losses) == 27
    assert len(set(found.losses.values())) == 27
    told: list[Event] = []
    part = one_shot(run, space="2/8x1 8x2", schedules=["4x3"], windows=2, tell=told.append)
    assert list(part.losses) == ["2x1 8x2", "8x3", "4x3"]
    assert part.losses.items() <= found.losses.items()
    assert [each.total for each in told if isinstance(each, Advance)][:1] == [0]  # all were known
    kept = read_scores(run / "search" / "one-shot.json")
    assert isinstance(kept, OneShot)
    assert kept == found
    other = one_shot(run, schedules=["4x3"], windows=3, device="cpu")  # asked otherwise: anew
    assert list(other.losses) == ["4x3"]
    tuned = one_shot(run, schedules=["4x3"], windows=3, steps=1, device="cpu")
    assert tuned.losses["4x3"] != other.losses["4x3"]


def test_the_papers_rules_choose_among_a_space(shared_run: Run, tmp_path: Path) -> None:
    shutil.copytree(shared_run.folder, tmp_path / "run")
    found = one_shot(tmp_path / "run", rules=RULES, windows=1, device="cpu")
    assert list(found.losses) == ["8x3"]


def test_what_is_refused(shared_run: Run, uniform_run: Run) -> None:
    with pytest.raises(InputError, match=r"was trained under 8x3 alone.*schedule_sampling"):
        one_shot(uniform_run)
    with pytest.raises(InputError, match="schedule 1x3 is not in the space 2/4/8x3"):
        one_shot(shared_run, schedules=["1x3"])
    with pytest.raises(InputError, match="is not in the space 2/4/8x3"):
        one_shot(shared_run, space="1/2x3")
    with pytest.raises(InputError, match="the space of schedules is empty"):
        one_shot(shared_run, space="")
    with pytest.raises(InputError, match=r"none of its 8 schedules keeps"):
        one_shot(shared_run, space="2/4x3", rules=RULES)
    with pytest.raises(InputError, match=r"has 1,048,576 schedules"):
        one_shot(shared_run, space="2/8x20")
    with pytest.raises(InputError, match="--steps -1"):
        one_shot(shared_run, steps=-1)
    with pytest.raises(InputError, match="--rate 0"):
        one_shot(shared_run, rate=0)
