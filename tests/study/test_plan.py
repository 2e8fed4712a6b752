"""From a study file to its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.recipe import differences
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.design import bracketing_uniforms, reverse, shuffle
from prism_transformer.schedules.paper import presets
from prism_transformer.study.collected import read_collected
from prism_transformer.study.plan import Plan, make_plan
from prism_transformer.study.spec import find_study, packaged_studies
from tests.study.files import ARMS, HEAD, plan_of


def test_inference_must_fit_into_the_context(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine\.toml: inference: .*context of 256 tokens"):
        plan_of(tmp_path, HEAD + ARMS + "[inference]\nprompt = 250\n")


def test_encoders_decode_nothing_that_could_be_timed(tmp_path: Path) -> None:
    encoder = HEAD.replace("base/micro", "encoder-nano")
    assert plan_of(tmp_path, encoder + ARMS).cells
    with pytest.raises(InputError, match=r"mine\.toml: inference: .*encoders .*take the section"):
        plan_of(tmp_path, encoder + ARMS + "[inference]\n")


def test_scalings_without_longer_sequences_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine\.toml: loss\.scalings: .*give loss\.times"):
        plan_of(tmp_path, HEAD + ARMS + '[loss]\nscalings = ["yarn"]\n')


def test_longer_sequences_must_be_the_same_text(tmp_path: Path) -> None:
    long = "[loss]\nsequences = 12\ntimes = [2, 4]\n"
    assert plan_of(tmp_path, HEAD + ARMS + long).study.loss
    with pytest.raises(InputError, match=r"mine\.toml: loss\.times: 12 windows .* 8 times as long"):
        plan_of(tmp_path, HEAD + ARMS + long.replace("4]", "8]"))
    for wrong in ("times = [2, 2]", "times = [1]", 'scalings = ["dynamic"]', "scalings = []"):
        with pytest.raises(InputError, match=rf"mine\.toml: loss\.{wrong.split()[0]}"):
            plan_of(tmp_path, HEAD + ARMS + f"[loss]\n{wrong}\n")


def test_arms_take_turns_seed_by_seed(tmp_path: Path) -> None:
    found = plan_of(tmp_path, HEAD + ARMS)
    names = [cell.name for cell in found.cells]
    assert names == ["uniform-seed0", "prism-seed0", "uniform-seed1", "prism-seed1"]
    uniform, prism = found.cells[2:]
    assert uniform.recipe.train.seed == prism.recipe.train.seed == 1
    assert differences(uniform.recipe, prism.recipe) == ["model.schedule: 8x8 -> 2x2 4x2 8x4"]


def test_swept_keys_multiply_the_runs(tmp_path: Path) -> None:
    sweep = "[sweep]\noptim.lr = [1e-3, 2e-3]\noptim.weight_decay = [0.0, 0.1]\n"
    found = plan_of(tmp_path, HEAD + ARMS + sweep)
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
        (baseline,) = [arm for arm in found.arms if arm.name == found.study.baseline]
        assert baseline.schedule.phases[0].n_layers == found.base.model.n_layers


def test_factorial_and_controls_have_the_shape_of_nano() -> None:
    nano = make_plan(find_study("nano")).base
    apart = ["optim.lr: 0.004 -> 0.016", "train.compile: off -> auto"]
    factorial, controls = (make_plan(find_study(name)) for name in ("factorial", "controls"))
    assert sorted(differences(nano, factorial.base)) == apart
    assert sorted(differences(nano, controls.base)) == apart
    assert len(factorial.arms) == 16 + 2  # prism and reversed take no part in the fit
    assert len(controls.cells) == 10 * 12


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


def schedules(found: Plan) -> dict[str, str]:
    return {arm.name: str(arm.schedule) for arm in found.arms}


def test_rules_give_what_the_design_functions_give(tmp_path: Path) -> None:
    text = 'reversed = "reversed"\nmixed = "shuffled:3"\nwide = "bracketing"\n'
    found = schedules(plan_of(tmp_path, HEAD + ARMS + text))
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
    found = plan_of(tmp_path, HEAD + ARMS + text)
    assert schedules(found)["back"] == "8x4 1x4"
    tiled = found.cell("tiled", 0, 0).recipe.model
    assert str(tiled.schedule) == "2x2 4x2 8x4"
    assert tiled.rope_frequencies == "tiled"


def test_enumerated_arms_keep_the_rules_and_are_each_there_once(tmp_path: Path) -> None:
    text = 'grid = { schedule = "enumerate", max_phases = 3 }\n'
    found = plan_of(tmp_path, HEAD + ARMS + text)
    every = [arm.schedule for arm in found.arms]
    assert len(set(every)) == len(every) > 5
    for arm in found.arms[1:]:
        heads = arm.schedule.heads
        assert list(heads) == sorted(heads)
        assert heads[-4:] == (8,) * 4


def test_overrides_change_every_arm_after_the_file(tmp_path: Path) -> None:
    text = HEAD + "[recipe]\noptim.lr = 1e-3\n" + ARMS + "[sweep]\noptim.beta2 = [0.9, 0.99]\n"
    plain = plan_of(tmp_path, text)
    found = make_plan(plain.file, ["optim.lr=2e-3", "train.micro_batch=2"])
    assert [cell.name for cell in found.cells] == [cell.name for cell in plain.cells]
    for before, after in zip(plain.cells, found.cells, strict=True):
        wanted = ["train.micro_batch: 8 -> 2", "optim.lr: 0.001 -> 0.002"]
        assert differences(before.recipe, after.recipe) == wanted
    assert found.command == "prism study run mine optim.lr=2e-3 train.micro_batch=2"


def test_arms_by_rule_follow_an_override_of_the_shape(tmp_path: Path) -> None:
    file = plan_of(tmp_path, HEAD + ARMS + 'few = "bracketing"\n').file
    wide = {str(each) for each in bracketing_uniforms(HeadSchedule.parse("2x2 4x2 8x4"), 512)}
    found = schedules(make_plan(file, ["model.d_model=512"]))
    assert {each for name, each in found.items() if name.startswith("few")} == wide - {"8x8"}


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("model.schedule=4x8", "--arms chooses among its schedules"),
        ("train.seed=3", "use --seeds"),
        ("optim.lr=1e-3", r"mine.toml \[sweep\] has values for it, .*in a copy of the file$"),
        ("optim.beta1 = 0.8", "the arm 'hot' sets it"),
        ("optim.speed=1", "override 'optim.speed=1': optim.speed: unknown key"),
        ("optim.lr", "cannot read override 'optim.lr'"),
        ("train.micro_batch=3", "train.batch_tokens = .* is not a multiple"),
    ],
)
def test_an_override_that_cannot_hold_for_all_runs_is_refused(
    tmp_path: Path, override: str, reason: str
) -> None:
    text = (
        ARMS + 'hot = { schedule = "prism", optim.beta1 = 0.7 }\n[sweep]\noptim.lr = [1e-3, 2e-3]\n'
    )
    file = plan_of(tmp_path, HEAD + text).file
    with pytest.raises(InputError, match=reason):
        make_plan(file, [override])


def test_a_factorial_adds_its_arms_but_those_that_are_named(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HEAD + ARMS + "[factorial]\nwide = 2\nnarrow = 8\n")
    found = schedules(plan)
    assert found["uniform"] == "8x8"  # which is of the design, under the name it has
    own = {name: text for name, text in found.items() if name not in ("uniform", "prism")}
    assert len(own) == 15
    assert own["wide-0-1-2-3"] == "2x4 8x4"
    with pytest.raises(InputError, match=r"mine.toml: factorial: wide = 8, narrow = 2: wide"):
        plan_of(tmp_path, HEAD + ARMS + "[factorial]\nwide = 8\nnarrow = 2\n")


def test_contrasts_name_any_arm_also_one_that_a_rule_gives(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        HEAD + ARMS + 'few = "bracketing"\n[contrasts]\n'
        'number = ["few-4", "uniform"]\nline = { prism = 1, few-4 = -0.625, uniform = -0.375 }',
    )
    assert [(each.name, each.weights) for each in plan.contrasts] == [
        ("number", {"few-4": 1, "uniform": -1}),
        ("line", {"prism": 1, "few-4": -0.625, "uniform": -0.375}),
    ]


def test_the_nano_study_is_still_the_one_whose_results_are_kept() -> None:
    """Both it and the study lr take their shape from base/nano; begun runs know their recipe."""
    kept = read_collected(Path(__file__).parents[2] / "results" / "nano").facts.recipe
    assert not differences(kept, make_plan(packaged_studies()["nano"]).base)
    rates = make_plan(packaged_studies()["lr"])
    changes = {
        line.partition(":")[0] for cell in rates.cells for line in differences(kept, cell.recipe)
    }
    assert changes == {"optim.lr", "model.schedule", "train.seed", "train.compile"}


@pytest.mark.parametrize(
    "name", ["nano", "nano-tuned", "controls", "ablation", "ablation-medium", "ablation-large"]
)
def test_the_line_is_that_of_uniform_arms_at_the_mean_head_count(name: str) -> None:
    plan = make_plan(packaged_studies()[name])
    heads = {arm.name: arm.schedule.mean_heads for arm in plan.arms}
    line = {each.name: each.weights for each in plan.contrasts}["line"]
    assert sum(weight * heads[arm] for arm, weight in line.items()) == pytest.approx(0, abs=0.001)


def test_a_tuned_nano_stands_beside_the_landed_one() -> None:
    nano, tuned = (make_plan(find_study(name)) for name in ("nano", "nano-tuned"))
    apart = [line.partition(":")[0] for line in differences(nano.base, tuned.base)]
    assert sorted(apart) == ["optim.lr", "train.compile"]
    assert [(arm.name, arm.schedule) for arm in nano.arms] == [
        (arm.name, arm.schedule) for arm in tuned.arms
    ]
    assert nano.contrasts == tuned.contrasts
    assert nano.study.tune is None
    assert tuned.study.tune is not None
    assert tuned.untuned == [arm.name for arm in tuned.arms]


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
    "budget by arm": (
        ARMS + 'more = { schedule = "prism", train.tokens = 4096 }',
        "train.tokens differs between arms",
    ),
    "shape by arm": (ARMS + 'fat = { schedule = "prism", model.d_ff = 64 }', "model.d_ff differs"),
    "schedule by key": (ARMS + 'a = { model.schedule = "4x8" }', "write `schedule`"),
    "unknown key": (ARMS + 'a = { schedule = "4x8", model.heads = 4 }', "unknown key"),
    "uniform of nothing": (ARMS + 'a = "uniform:"', "whole number after the colon"),
    "no number": (ARMS + 'a = "shuffled:x"', "whole number after the colon"),
    "too many": (ARMS + 'g = { schedule = "enumerate", most = 2 }', "more than most = 2"),
    "none": (ARMS + 'g = { schedule = "enumerate", start = [64] }', "no schedule is within"),
    "sweep no list": (ARMS + "[sweep]\noptim.lr = 3", "give a list"),
    "sweep of schedules": (ARMS + '[sweep]\nmodel.schedule = ["8x8"]', "schedules are arms"),
    "sweep unknown": (ARMS + "[sweep]\noptim.speed = [1]", "unknown key"),
    "contrast of no arm": (
        ARMS + '[contrasts]\norder = ["prism", "revresed"]',
        "contrasts.order: 'revresed' is none of the arms: uniform, prism",
    ),
    "contrast of three": (
        ARMS + '[contrasts]\nall = ["prism", "uniform", "prism"]',
        "contrasts.all: ['prism', 'uniform', 'prism']: name two arms",
    ),
    "contrast of no form": (
        ARMS + "[contrasts]\norder = 3",
        'contrasts.order = 3: write two arms, as in ["prism", "uniform"], or a table of weights',
    ),
    "arm of no form": (ARMS + "a = 3", "arms.a = 3: write a schedule"),
    "arms of one name": (
        ARMS + 'few = "bracketing"\nfew-4 = "1x8"',
        "arms.few-4: a rule of this study makes an arm of that name, too",
    ),
    "contrast that is none": (
        ARMS + "[contrasts]\nsum = { prism = 1, uniform = 1 }",
        "contrasts.sum: its weights sum to 2",
    ),
    "bad recipe": ("[recipe]\noptim.lr = -1.0\n" + ARMS, "optim.lr = -1.0"),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD)
def test_what_cannot_be_planned_is_refused_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(InputError) as caught:
        plan_of(tmp_path, HEAD + text)
    assert reason in str(caught.value)
    assert "mine.toml" in str(caught.value)
