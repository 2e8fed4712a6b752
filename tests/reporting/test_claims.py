"""Verdicts on drawn studies whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from prism_transformer.recipes.files import changed
from prism_transformer.reporting.claims import CLAIMS, counts
from prism_transformer.study.collected import Collected
from prism_transformer.study.spec import find_study
from tests.reporting.studies import (
    H100,
    PAIRS,
    SMALL,
    TASKS,
    Judge,
    at_scale,
    beside_others,
    diverged,
    drawn,
    renamed,
    three,
    with_metric,
)

PAPERS = {
    "prism": -0.0143, "config-1": -0.0056, "config-2": -0.0065, "config-3": -0.0093,
    "config-5": -0.0101, "config-6": -0.0120, "config-7": -0.0150, "short": -0.0100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("effect", "noise", "expected"),
    [
        (-0.02, 0.001, "supported"),
        (0.02, 0.001, "contradicted"),
        (0.0, 0.0015, "within noise"),
        (0.0, 0.02, "could not be seen"),
    ],
)
def test_lower_loss(judged: Judge, effect: float, noise: float, expected: str) -> None:
    found = judged(*three(effect=effect, noise=noise))
    assert found["lower-loss"].verdict == expected
    words = found["lower-loss"].deciding[0].words
    assert "power" in words
    assert "for 0.0143" in words  # the paper's, whatever was seen
    if expected in ("supported", "contradicted"):
        assert found["persists"].verdict == expected


def test_another_scale_stands_beside_and_decides_nothing(judged: Judge) -> None:
    found = judged(drawn("nano", noise=0.0001))["lower-loss"]
    assert found.verdict == "not measured"
    (one,) = found.evidence
    assert (one.verdict, one.decides, one.why_not) == ("supported", False, "another scale")


def test_only_the_papers_schedule_speaks_for_prism(judged: Judge) -> None:
    """A uniform model with fewer heads may be better; that says nothing of Prism."""
    arms = {"small": ("12x12", "6x12"), "medium": ("16x24", "8x24"), "large": ("16x24", "8x24")}
    studies = [
        at_scale(scale, arms={"uniform": base, "six": few}, noise=0.0005, tasks={})
        for scale, (base, few) in arms.items()
    ]
    found = judged(*studies)
    for key in ("lower-loss", "persists", "scale"):
        assert found[key].verdict == "not measured", key
    assert {one.why_not for one in found["lower-loss"].evidence} == {
        "no arm has the paper's schedule"
    }


def test_two_scales_of_three_do_not_decide_but_one_can_contradict(judged: Judge) -> None:
    good, bad = at_scale("small", noise=0.0005), at_scale("medium", effect=0.02, noise=0.0005)
    assert judged(good)["lower-loss"].verdict == "not measured"
    assert judged(good, bad)["lower-loss"].verdict == "contradicted"


def test_a_swept_study_or_another_baseline_does_not_decide(judged: Judge) -> None:
    points = [{"optim.lr": 0.001}, {"optim.lr": 0.002}]
    swept = judged(at_scale("large", points=points, tasks={}))["plateau"]
    assert {one.why_not for one in swept.evidence} == {"another scale"}
    other = {"six": "6x12", "prism": PAIRS["small"]["prism"]}
    found = judged(at_scale("small", arms=other, tasks={}))["lower-loss"]
    assert "another baseline" in {one.why_not for one in found.evidence}


def test_one_seed_says_nothing(judged: Judge) -> None:
    found = judged(*three(seeds=(0,), effect=-0.5))
    for key in ("lower-loss", "rate", "persists", "earlier", "scale"):
        assert found[key].verdict == "could not be seen", key
        assert "nan" not in " ".join(one.words for one in found[key].evidence)


@pytest.mark.parametrize(
    ("speed", "expected"), [(1.0, "supported"), (0.95, "contradicted"), (1.01, "within noise")]
)
def test_equal_rate_is_an_equivalence_test(judged: Judge, speed: float, expected: str) -> None:
    assert judged(*three(speed=speed, seeds=range(4)))["rate"].verdict == expected


def test_speed_on_other_hardware_decides_nothing(judged: Judge) -> None:
    one_gpu = H100 | {"gpus": 1}
    found = judged(*(at_scale(scale, hardware=one_gpu, tasks={}) for scale in PAIRS))
    assert found["rate"].verdict == "not measured"
    assert {one.why_not for one in found["rate"].evidence} == {"other hardware"}
    assert found["lower-loss"].deciding


def test_rates_taken_beside_other_workers_judge_nothing(judged: Judge) -> None:
    found = judged(*map(beside_others, three(speed=0.9, seeds=range(4))))
    assert found["rate"].verdict == "not measured"
    assert not found["rate"].evidence
    assert found["lower-loss"].deciding


def test_the_papers_ablation_supports_what_it_says(judged: Judge) -> None:
    found = judged(at_scale("small", arms=SMALL, effect=PAPERS, noise=0.0002, tasks={}))
    for key in ("wider-start", "smooth", "half"):
        assert found[key].verdict == "supported", key
    assert found["three-heads"].verdict in ("supported", "could not be seen")  # of 0.00005


def test_an_ablation_the_other_way_round_contradicts_it(judged: Judge) -> None:
    turned = {arm: -effect for arm, effect in PAPERS.items()} | {"short": -0.05, "config-7": -0.05}
    found = judged(at_scale("small", arms=SMALL, effect=turned, noise=0.0002, tasks={}))
    for key in ("wider-start", "smooth", "half", "three-heads"):
        assert found[key].verdict == "contradicted", key


def test_half_of_an_ablation_does_not_decide(judged: Judge) -> None:
    arms = {name: SMALL[name] for name in ("uniform", "prism", "config-6", "config-3")}
    found = judged(at_scale("small", arms=arms, effect=PAPERS, noise=0.0002))["wider-start"]
    assert found.verdict == "not measured"
    assert found.evidence[0].why_not == "not all arms or tasks of the claim"


def test_two_heads_are_slow(judged: Judge) -> None:
    slow = at_scale("small", arms=SMALL, speed=0.92, tasks={})
    assert judged(slow)["two-heads"].verdict == "supported"
    fast = at_scale("small", arms=SMALL, speed=1.08, tasks={})
    assert judged(fast)["two-heads"].verdict == "contradicted"


def scored(points: float, noise: float) -> list[Collected]:
    """Four benchmarks on which Prism is this many points ahead, give or take little."""
    draw = np.random.default_rng(2)
    found = []
    for one in three(tasks=TASKS):
        for task in ("piqa", "arc_easy", "winogrande", "hellaswag"):
            metric = "acc_norm" if task == "hellaswag" else "acc"
            one = with_metric(one, f"eval.{task}.{metric}.items", lambda *_: 10_000.0)
        for task in ("piqa", "arc_easy", "winogrande"):
            one = with_metric(one, f"eval.{task}.acc", _score(draw, points, noise))
        found.append(with_metric(one, "eval.hellaswag.acc_norm", _score(draw, points, noise)))
    return found


def _score(
    draw: np.random.Generator, points: float, noise: float
) -> Callable[[str, int, int], float]:
    return lambda arm, *_: (
        0.5 + (arm == "prism") * points / 100 + float(draw.normal(0, noise / 100))
    )


@pytest.mark.parametrize(
    ("points", "noise", "expected"),
    [
        (0.0, 0.05, "supported"),
        (3.0, 0.05, "supported"),
        (-3.0, 0.05, "contradicted"),
        (-0.5, 1.0, "could not be seen"),
        (-0.9, 0.12, "within noise"),
    ],
)
def test_downstream_is_no_worse_by_a_margin(
    judged: Judge, points: float, noise: float, expected: str
) -> None:
    assert judged(*scored(points, noise))["downstream"].verdict == expected


def test_seeds_that_agree_to_the_last_item_are_no_surer_than_an_item(judged: Judge) -> None:
    """Every seed is 2 points behind: on 10,000 items that is sure, on 50 it is one item."""
    behind = lambda arm, *_: 0.5 - (arm == "prism") * 0.02  # noqa: E731
    verdicts = []
    for items in (10_000.0, 50.0):
        study = at_scale("small", tasks={"blimp": "acc"}, noise=0.0005)
        study = with_metric(study, "eval.blimp.acc", behind)
        study = with_metric(study, "eval.blimp.acc.items", lambda *_, n=items: n)
        verdicts.append(judged(study)["blimp"].evidence[0].verdict)
    assert verdicts == ["contradicted", "within noise"]


def test_downstream_needs_all_four_tasks(judged: Judge) -> None:
    found = judged(*three(tasks={"piqa": "acc"}))["downstream"]
    assert found.verdict == "not measured"


@pytest.mark.parametrize(
    ("large", "noise", "expected"),
    [
        (-0.02, 0.0005, "supported"),
        (-0.014, 0.0005, "supported"),
        (-0.002, 0.0005, "contradicted"),
        (-0.02, 0.01, "could not be seen"),
    ],
)
def test_the_gap_over_scales(judged: Judge, large: float, noise: float, expected: str) -> None:
    gaps = {"small": -0.014, "medium": -0.014, "large": large}
    studies = [at_scale(s, effect=gap, noise=noise, tasks={}) for s, gap in gaps.items()]
    assert judged(*studies)["scale"].verdict == expected
    assert judged(*studies[:2])["scale"].verdict == "not measured"


@pytest.mark.parametrize(
    ("times", "noise", "expected"),
    [
        (1.0, 0.001, "supported"),
        (1.2, 0.001, "supported"),
        (0.95, 0.001, "contradicted"),
        (1.0, 0.1, "could not be seen"),
    ],
)
def test_inference(judged: Judge, times: float, noise: float, expected: str) -> None:
    draw = np.random.default_rng(4)
    studies = three()
    for kind in ("prefill", "decoding"):
        value = lambda arm, *_: times + float(draw.normal(0, noise))  # noqa: E731
        studies = [with_metric(one, f"inference.{kind}.ratio", value) for one in studies]
    assert judged(*studies)["inference"].verdict == expected


def test_every_study_of_a_scale_is_held_against_every_other(judged: Judge) -> None:
    """Their order does not decide."""
    small = [at_scale("small", effect=gap, noise=0.0005, tasks={}) for gap in (-0.014, -0.03)]
    large = at_scale("large", effect=-0.014, noise=0.0005, tasks={})
    for studies in ((*small, large), (*small[::-1], large)):
        assert judged(*studies)["scale"].verdict == "contradicted"
    assert judged(small[0], large)["scale"].verdict == "supported"


def test_no_share_of_a_gain_that_is_not_there(judged: Judge) -> None:
    worse = PAPERS | {"prism": 0.01, "config-7": 0.02}
    study = at_scale("small", arms=SMALL, effect=worse, noise=0.0002, tasks={})
    assert judged(study)["three-heads"].verdict == "within noise"


def test_neutrality_is_arithmetic_and_hashes_stand_beside(judged: Judge) -> None:
    study = drawn()
    found = judged(study)["neutral"]
    assert found.verdict == "supported"
    assert len(found.deciding) == 3
    assert found.beside[0].words == (
        "initial weights of 2 arms are equal to the last bit in 3 seeds"
    )
    runs = tuple(
        run.model_copy(
            update={"hashes": run.hashes.model_copy(update={"initial_weights": run.run})}
        )
        for run in study.facts.runs
        if run.hashes
    )
    assert judged(renamed(study, runs=runs))["neutral"].beside[0].verdict == "contradicted"


def test_grouped_queries(judged: Judge) -> None:
    study = drawn(noise=0.0005)
    assert not judged(study)["gqa"].evidence
    shared = changed(study.facts.recipe, {"model.queries_per_kv": 2}, "test")
    (one,) = judged(renamed(study, recipe=shared))["gqa"].evidence
    assert (one.verdict, one.decides) == ("supported", False)
    arms = {"uniform": "12x12", "prism": "3x2 6x4 12x6"}
    study = at_scale("small", arms=arms, noise=0.0005, tasks={})
    shared = changed(study.facts.recipe, {"model.queries_per_kv": 3}, "test")
    found = judged(renamed(study, recipe=shared, scale=None))["gqa"]
    assert found.verdict == "supported"


def test_every_claim_of_the_list_is_there(judged: Judge) -> None:
    found = judged(drawn())
    assert len(found) == len(CLAIMS) == 28
    assert found["inference"].verdict == "not measured"
    assert sum(counts(list(found.values())).values()) == 28
    for claim in CLAIMS:
        assert claim.text and claim.where and claim.rule and claim.scales and claim.fill  # noqa: PT018


def test_a_main_arm_that_breaks_the_rule_cannot_show_it(judged: Judge) -> None:
    arms = {"uniform": "12x12", "prism": "3x4 6x4 12x4", "other": "6x8 12x4"}
    found = judged(at_scale("small", arms=arms, effect=-0.02))
    assert found["half"].verdict == "not measured"


# -- runs that are lost ----------------------------------------------------------------------------


def lost(scale: str, arm: str, seed: int = 2, **what: Any) -> Collected:
    """A study in which a run has diverged."""
    given: dict[str, Any] = {"states": {(arm, 0, seed): "failed"}, "tasks": {}} | what
    return diverged(at_scale(scale, **given))


def test_a_run_that_diverged_never_leaves_the_pairs_without_a_word(judged: Judge) -> None:
    """The two seeds that survived would support every one of these."""
    good = three()
    assert judged(*good)["earlier"].verdict == "supported"
    found = judged(lost("small", "prism", noise=0.0005), *good[1:])
    for key in ("lower-loss", "persists", "earlier", "rate", "scale"):
        result = found[key]
        assert result.verdict == "not measured", key
        (one,) = [one for one in result.beside if one.why_not == "a run failed"]
        assert one.source.startswith("small")
        assert one.words.endswith("left out: prism diverged in seed 2"), key
        assert one.verdict == "could not be seen", key
    elsewhere = judged(diverged(drawn("nano", states={("prism", 0, 1): "failed"})))["lower-loss"]
    assert elsewhere.evidence[0].verdict == "could not be seen"
    assert "prism diverged in seed 1" in elsewhere.evidence[0].words


@pytest.mark.parametrize(("arm", "expected"), [("prism", "contradicted"), ("uniform", "none")])
def test_what_prism_lost_can_only_be_worse(judged: Judge, arm: str, expected: str) -> None:
    """So what is left may contradict; where the baseline lost runs it may not."""
    found = judged(lost("small", arm, effect=0.02, noise=0.0005, seeds=range(6)))["lower-loss"]
    assert found.verdict == expected.replace("none", "not measured")
    (one,) = found.evidence
    assert one.decides == (arm == "prism")
    assert f"{arm} diverged in seed 2" in one.words


@pytest.mark.parametrize(("where", "expected"), [("large", "contradicted"), ("small", "none")])
def test_what_prism_lost_at_small_makes_no_gap_narrow(
    judged: Judge, where: str, expected: str
) -> None:
    """Its gain there is less than its pairs say, and so is what it narrows by."""
    gaps = {"small": -0.014, "large": -0.002}
    runs = {scale: {("prism", 0, 2): "failed"} if scale == where else {} for scale in gaps}
    what: dict[str, Any] = {"noise": 0.0005, "tasks": {}, "seeds": range(6)}
    found = judged(
        *(diverged(at_scale(s, effect=gap, states=runs[s], **what)) for s, gap in gaps.items())
    )["scale"]
    assert found.verdict == expected.replace("none", "not measured")
    assert "left out: prism diverged in seed 2" in found.evidence[0].words


def test_an_arm_that_diverged_in_every_seed_is_told_of(judged: Judge) -> None:
    states = {("prism", 0, seed): "failed" for seed in (0, 1, 2)}
    (one,) = judged(diverged(at_scale("small", states=states, tasks={})))["lower-loss"].evidence
    assert one.words.startswith("prism: no pair; left out: prism diverged in seed 0, prism")
    assert (one.verdict, one.why_not) == ("could not be seen", "a run failed")


def test_a_claim_minds_the_runs_of_its_own_arms(judged: Judge) -> None:
    study = lost("small", "short", arms=SMALL, effect=PAPERS, noise=0.0002)
    found = judged(study)
    assert found["half"].verdict == "not measured"
    assert found["half"].evidence[0].words.endswith("left out: short diverged in seed 2")
    assert found["wider-start"].verdict == "supported"
    assert found["lower-loss"].deciding


def test_what_decides_a_claim_ships() -> None:
    for claim in CLAIMS:
        for command in claim.fill.split("; "):
            if command != "prism neutrality":
                assert command.startswith("prism study run ")
                assert find_study(command.split()[-1]).is_file()
