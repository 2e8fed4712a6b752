"""What a run hears of the study around it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prism_transformer.recipes.files import load_recipe
from prism_transformer.training import neighbours
from prism_transformer.training.device import MIN_COMPILED_FLOPS, compiling_pays, settle
from prism_transformer.training.run import read_environment
from tests.training.runs import finish, tiny


def test_alone_there_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(neighbours.WORKERS, raising=False)
    assert neighbours.workers() == 1
    assert neighbours.compiled() is None


def test_what_is_told_for_a_while_is_gone_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(neighbours.WORKERS, "3")
    with neighbours.told({neighbours.WORKERS: "2", neighbours.COMPILE: "on: why: so"}):
        assert neighbours.workers() == 2
        assert neighbours.compiled() == (True, "why: so")
    assert neighbours.workers() == 3
    assert neighbours.COMPILE not in os.environ


def test_a_run_records_who_was_beside_it(tmp_path: Path, data: Path) -> None:
    with neighbours.told({neighbours.WORKERS: "4"}):
        finish(tmp_path / "run", tiny(data))
    (session,) = read_environment(tmp_path / "run")["sessions"]
    assert session["workers"] == 4


def test_a_study_decides_for_recipes_that_leave_it_open() -> None:
    with neighbours.told({neighbours.COMPILE: "on: the study's 9 runs share compiled code"}):
        settings = settle(load_recipe("prism-micro"), "cpu")
        assert settings.compiled
        assert not settings.insisted  # a compiler that does not work is no reason to fail
        assert settings.compile_reason == "the study's 9 runs share compiled code"
        assert not settle(load_recipe("prism-micro", ["train.compile=off"]), "cpu").compiled


def test_compiling_pays_sooner_where_runs_share_it_but_each_must_be_worth_it() -> None:
    least = MIN_COMPILED_FLOPS["cpu"]
    assert compiling_pays(least, "cpu")
    assert not compiling_pays(least / 3, "cpu")
    assert compiling_pays(least / 3, "cpu", 32)
    assert not compiling_pays(least / 100, "cpu", 10_000)
