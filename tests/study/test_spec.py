"""The study file: what is said of a bad one."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.study.plan import make_plan
from prism_transformer.study.spec import copy_study, find_study, packaged_studies
from tests.study.files import ARMS, HEAD, plan_of


def test_a_task_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine\.toml: eval\.tasks: .*did you mean 'hellaswag'"):
        plan_of(tmp_path, HEAD + ARMS + '[eval]\ntasks = ["hellaswagg"]\n')


BAD = {
    "no arms": ("[arms]", "arms: is empty"),
    "a bad name": (ARMS + '"a/b" = "4x8"', "'a/b' cannot be a name"),
    "unknown stage": (ARMS + "[publish]", "publish: unknown key"),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD)
def test_bad_study_files_are_refused_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(InputError) as caught:
        plan_of(tmp_path, HEAD + text)
    assert reason in str(caught.value)
    assert "mine.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (HEAD.replace("[0, 1]", "[]"), "seeds: is empty"),
        (HEAD.replace("[0, 1]", "[1, 1]"), "each seed once"),
        (HEAD.replace("[0, 1]", "[-1]"), "seeds.0 = -1"),
        (HEAD.replace("base/micro", "base/miccro"), "did you mean 'base/micro'"),
        (HEAD.replace("seeds", "seed"), "seeds: missing"),
        (HEAD + "= 3", "not valid TOML"),
        (HEAD + "looks = [4, 2]\n", "looks = [4, 2]: give growing numbers"),
        (HEAD + "looks = [1, 2]\n", "looks.0 = 1"),
        (HEAD + "looks = [3, 6]\n", "looks = [3, 6], and 2 seeds"),
        (HEAD + 'spending = "pocock"\n', "spending = 'pocock': of no looks"),
        (HEAD + 'looks = [2]\nspending = "all"\n', "spending"),
        (HEAD + "effect = 0\n", "effect = 0"),
    ],
)
def test_bad_heads_are_refused_with_the_reason(tmp_path: Path, head: str, reason: str) -> None:
    with pytest.raises(InputError, match=r"mine\.toml") as caught:
        plan_of(tmp_path, head + ARMS)
    assert reason in str(caught.value)


@pytest.mark.parametrize("at", ["[]", "[0.5]", "[1, 0.5]", "[0.5, 0.5, 1]", "[0, 1]", "[0.5, 2]"])
def test_milestones_grow_to_the_end(tmp_path: Path, at: str) -> None:
    with pytest.raises(InputError, match=r"mine\.toml.*analyze\.at"):
        plan_of(tmp_path, HEAD + ARMS + f"[analyze]\nat = {at}\n")


def test_checkpoints_of_all_milestones_are_kept(tmp_path: Path) -> None:
    stages = "[analyze]\nat = [0.25, 1]\n[loss]\nat = [0.5, 1]\n[recipe]\nrun.milestones = [7]\n"
    plan = plan_of(tmp_path, HEAD + ARMS + stages)
    n = plan.base.n_steps
    for cell in plan.cells:
        assert cell.recipe.run.milestones == sorted({7, round(n / 4), round(n / 2)})


def test_a_study_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="controls, demo"):
        find_study("demmo")


@pytest.mark.parametrize("name", packaged_studies())
def test_a_study_that_ships_is_copied_out_and_means_the_same(tmp_path: Path, name: str) -> None:
    copy = copy_study(name, tmp_path / "deep" / "mine.toml")
    assert make_plan(copy).cells == make_plan(find_study(name)).cells


def test_a_copy_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert copy_study("demo") == Path("demo.toml")
    with pytest.raises(InputError, match=r"demo\.toml: exists already"):
        copy_study("demo")
    with pytest.raises(InputError, match="is a file already"):
        copy_study("demo.toml")
    with pytest.raises(InputError, match="none that ships: ablation"):
        copy_study("demmo")
