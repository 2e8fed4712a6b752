"""Study files: what they mean, and what is said of bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.design import bracketing_uniforms, presets, reverse, shuffle
from prism_transformer.errors import InputError
from prism_transformer.recipe import differences
from prism_transformer.schedule import HeadSchedule
from prism_transformer.study.file import find_study, packaged_studies
from prism_transformer.study.plan import Plan, make_plan

HEAD = 'base = "base/nano"\nbaseline = "uniform"\nseeds = [0, 1]\n'
ARMS = '[arms]\nuniform = "uniform:8"\nprism = "2x2 4x2 8x4"\n'


def plan(folder: Path, text: str) -> Plan:
    file = folder / "mine.toml"
    file.write_text(text, "utf-8")
    return make_plan(file)


def schedules(found: Plan) -> dict[str, str]:
    return {arm.name: str(arm.schedule) for arm in found.arms}


def test_a_task_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine\.toml: eval\.tasks: .*did you mean 'hellaswag'"):
        plan(tmp_path, HEAD + ARMS + '[eval]\ntasks = ["hellaswagg"]\n')


def test_inference_must_fit_into_the_context(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine\.toml: inference: .*context of 256 tokens"):
        plan(tmp_path, HEAD + ARMS + "[inference]\nprompt = 250\n")


def test_arms_take_turns_seed_by_seed(tmp_path: Path) -> None:
    found = plan(tmp_path, HEAD + ARMS)
    names = [cell.name for cell in found.cells]
    assert names == ["uniform-seed0", "prism-seed0", "uniform-seed1", "prism-seed1"]
    uniform, prism = found.cells[2:]
    assert uniform.recipe.train.seed == prism.recipe.train.seed == 1
    assert differences(uniform.recipe, prism.recipe) == ["model.schedule: 8x8 -> 2x2 4x2 8x4"]


def test_rules_give_what_the_design_functions_give(tmp_path: Path) -> None:
    text = 'reversed = "reversed"\nmixed = "shuffled:3"\nwide = "bracketing"\n'
    found = schedules(plan(tmp_path, HEAD + ARMS + text))
    prism = HeadSchedule.parse("2x2 4x2 8x4")
    assert found["reversed"] == str(reverse(prism))
    assert found["mixed"] == str(shuffle(prism, 3))
    wide = {str(each) for each in bracketing_uniforms(prism, 128)} - {"8x8"}  # an arm already
    assert {each for name, each in found.items() if name.startswith("wide")} == wide


def test_a_rule_can_start_from_any_arm_and_an_arm_from_another(tmp_path: Path) -> None:
    text = (
        'back = { schedule = "reversed", of = "steep" }\nsteep = "1x4 8x4"\n'
        'tiled = { schedule = "prism", model.rope_frequencies = "tiled" }\n'
    )
    found = plan(tmp_path, HEAD + ARMS + text)
    assert schedules(found)["back"] == "8x4 1x4"
    tiled = found.cell("tiled", 0, 0).recipe.model
    assert str(tiled.schedule) == "2x2 4x2 8x4"
    assert tiled.rope_frequencies == "tiled"


def test_enumerated_arms_keep_the_rules_and_are_each_there_once(tmp_path: Path) -> None:
    text = 'grid = { schedule = "enumerate", max_phases = 3 }\n'
    found = plan(tmp_path, HEAD + ARMS + text)
    every = [arm.schedule for arm in found.arms]
    assert len(set(every)) == len(every) > 5
    for arm in found.arms[1:]:
        heads = arm.schedule.heads
        assert list(heads) == sorted(heads)
        assert heads[-4:] == (8,) * 4


def test_swept_keys_multiply_the_runs(tmp_path: Path) -> None:
    sweep = "[sweep]\noptim.lr = [1e-3, 2e-3]\noptim.weight_decay = [0.0, 0.1]\n"
    found = plan(tmp_path, HEAD + ARMS + sweep)
    assert len(found.points) == 4
    assert len(found.cells) == 4 * 2 * 2
    assert {cell.recipe.optim.lr for cell in found.cells if cell.point == 3} == {2e-3}
    assert len({cell.name for cell in found.cells}) == 16


def test_every_study_that_ships_can_be_planned() -> None:
    assert {"demo", "nano", "small", "medium", "large", "ablation", "grid"} <= set(
        packaged_studies()
    )
    for name in packaged_studies():
        found = make_plan(find_study(name))
        assert found.baseline.schedule.phases[0].n_layers == found.base.model.n_layers


@pytest.mark.parametrize("scale", ["small", "medium", "large"])
def test_the_papers_studies_are_the_papers(scale: str) -> None:
    found = make_plan(find_study(scale))
    assert found.cell("prism", 0, 2).recipe.model.schedule == presets()[scale].schedule
    assert len(found.study.seeds) == 3
    assert len(found.study.eval.tasks if found.study.eval else []) == 6


def test_the_ablation_has_all_rows_of_the_paper_and_the_controls() -> None:
    found = {arm.schedule for arm in make_plan(find_study("ablation")).arms}
    rows = {preset.schedule for name, preset in presets().items() if preset.d_model == 768}
    assert rows <= found
    assert reverse(presets()["small"].schedule) in found


BAD = {
    "unknown arm": (ARMS + 'back = { schedule = "reversed", of = "prsm" }', "no arm 'prsm'"),
    "unknown preset": (ARMS + 'other = "smal"', "did you mean the preset 'small'"),
    "illegal": (ARMS + 'odd = "3x8"', "layer 0"),
    "too deep": (ARMS + 'deep = "2x2 8x8"', "10 layers, the base recipe 8"),
    "duplicate": (ARMS + 'again = "8x8"', "'uniform' and 'again' are the same"),
    "circle": (ARMS + 'a = { schedule = "reversed", of = "a" }', "starts from itself"),
    "several": (
        ARMS + 'b = "bracketing"\na = { schedule = "reversed", of = "b" }',
        "stands for several",
    ),
    "no baseline": ('[arms]\nprism = "2x2 4x2 8x4"', "baseline = 'uniform' is none of the arms"),
    "no arms": ("[arms]", "arms: is empty"),
    "a bad name": (ARMS + '"a/b" = "4x8"', "'a/b' cannot be a name"),
    "budget by arm": (
        ARMS + 'more = { schedule = "prism", train.tokens = 4096 }',
        "train.tokens differs between arms",
    ),
    "shape by arm": (ARMS + 'fat = { schedule = "prism", model.d_ff = 64 }', "model.d_ff differs"),
    "schedule by key": (ARMS + 'a = { model.schedule = "4x8" }', "write `schedule`"),
    "unknown key": (ARMS + 'a = { schedule = "4x8", model.heads = 4 }', "unknown key"),
    "uniform of nothing": (ARMS + 'a = "uniform:"', "whole number after the colon"),
    "no number": (ARMS + 'a = "shuffled:x"', "whole number after the colon"),
    "sweep no list": (ARMS + "[sweep]\noptim.lr = 3", "give a list"),
    "sweep of schedules": (ARMS + '[sweep]\nmodel.schedule = ["8x8"]', "schedules are arms"),
    "sweep unknown": (ARMS + "[sweep]\noptim.speed = [1]", "unknown key"),
    "bad recipe": ("[recipe]\noptim.lr = -1.0\n" + ARMS, "optim.lr = -1.0"),
    "unknown stage": (ARMS + "[publish]", "publish: unknown key"),
    "too many": (ARMS + 'g = { schedule = "enumerate", most = 2 }', "more than most = 2"),
    "none": (ARMS + 'g = { schedule = "enumerate", start = [64] }', "no schedule is within"),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD)
def test_bad_study_files_are_refused_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(InputError) as caught:
        plan(tmp_path, HEAD + text)
    assert reason in str(caught.value)
    assert "mine.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (HEAD.replace("[0, 1]", "[]"), "seeds: is empty"),
        (HEAD.replace("[0, 1]", "[1, 1]"), "each seed once"),
        (HEAD.replace("[0, 1]", "[-1]"), "seeds.0 = -1"),
        (HEAD.replace("base/nano", "base/nanno"), "did you mean 'base/nano'"),
        (HEAD.replace("seeds", "seed"), "seeds: missing"),
        (HEAD + "= 3", "not valid TOML"),
    ],
)
def test_bad_heads_are_refused_with_the_reason(tmp_path: Path, head: str, reason: str) -> None:
    with pytest.raises(InputError, match=r"mine\.toml") as caught:
        plan(tmp_path, head + ARMS)
    assert reason in str(caught.value)


def test_a_study_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="demo, gqa"):
        find_study("demmo")
