"""Verdicts on drawn studies whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from prism_transformer.recipes.files import changed
from prism_transformer.reporting.claims import CLAIMS, Result, counts, judge_claims
from prism_transformer.study.collected import Collected
from tests.reporting.studies import (
    H100,
    PAIRS,
    SMALL,
    TASKS,
    at_scale,
    beside_others,
    drawn,
    renamed,
    views_of,
    with_metric,
)

ALL = ("small", "medium", "large")
PAPERS = {
    "prism": -0.0143, "config-1": -0.0056, "config-2": -0.0065, "config-3": -0.0093,
    "config-5": -0.0101, "config-6": -0.0120, "config-7": -0.0150, "short": -0.0100,
}  # fmt: skip

Verdicts = Callable[..., dict[str, Result]]


@pytest.fixture
def verdicts(tmp_path: Path) -> Verdicts:
    def judge(*studies: Collected) -> dict[str, Result]:
        found = judge_claims(views_of(tmp_path / uuid4().hex, *studies))
        return {result.claim.key: result for result in found}

    return judge


def three(**what: object) -> list[Collected]:
    return [at_scale(scale, **({"noise": 0.0005, "tasks": {}} | what)) for scale in ALL]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("effect", "noise", "expected"),
    [
        (-0.02, 0.001, "supported"),
        (0.02, 0.001, "contradicted"),
        (0.0, 0.0015, "within noise"),
        (0.0, 0.02, "could not be seen"),
    ],
)
def test_lower_loss(verdicts: Verdicts, effect: float, noise: float, expected: str) -> None:
    found = verdicts(*three(effect=effect, noise=noise))
    assert found["lower-loss"].verdict == expected
    words = found["lower-loss"].deciding[0].words
    assert "power" in words
    assert "for 0.0143" in words  # the paper's, whatever was seen
    if expected in ("supported", "contradicted"):
        assert found["persists"].verdict == expected
        assert found["earlier"].verdict == expected


def test_another_scale_stands_beside_and_decides_nothing(verdicts: Verdicts) -> None:
    found = verdicts(drawn("nano", noise=0.0001))["lower-loss"]
    assert found.verdict == "not measured"
    (one,) = found.evidence
    assert (one.verdict, one.decides, one.why_not) == ("supported", False, "another scale")


def test_only_the_papers_schedule_speaks_for_prism(verdicts: Verdicts) -> None:
    """A uniform model with fewer heads may be better; that says nothing of Prism."""
    arms = {"small": ("12x12", "6x12"), "medium": ("16x24", "8x24"), "large": ("16x24", "8x24")}
    studies = [
        at_scale(scale, arms={"uniform": base, "six": few}, noise=0.0005, tasks={})
        for scale, (base, few) in arms.items()
    ]
    found = verdicts(*studies)
    for key in ("lower-loss", "persists", "scale"):
        assert found[key].verdict == "not measured", key
    assert {one.why_not for one in found["lower-loss"].evidence} == {
        "no arm has the paper's schedule"
    }


def test_two_scales_of_three_do_not_decide_but_one_can_contradict(verdicts: Verdicts) -> None:
    good, bad = at_scale("small", noise=0.0005), at_scale("medium", effect=0.02, noise=0.0005)
    assert verdicts(good)["lower-loss"].verdict == "not measured"
    assert verdicts(good, bad)["lower-loss"].verdict == "contradicted"


def test_a_swept_study_or_another_baseline_does_not_decide(verdicts: Verdicts) -> None:
    points = [{"optim.lr": 0.001}, {"optim.lr": 0.002}]
    swept = verdicts(at_scale("large", points=points, tasks={}))["plateau"]
    assert {one.why_not for one in swept.evidence} == {"another scale"}
    other = {"six": "6x12", "prism": PAIRS["small"]["prism"]}
    found = verdicts(at_scale("small", arms=other, tasks={}))["lower-loss"]
    assert "another baseline" in {one.why_not for one in found.evidence}


def test_one_seed_says_nothing(verdicts: Verdicts) -> None:
    found = verdicts(*three(seeds=(0,), effect=-0.5))
    for key in ("lower-loss", "rate", "persists", "earlier", "scale"):
        assert found[key].verdict == "could not be seen", key
        assert "nan" not in " ".join(one.words for one in found[key].evidence)


@pytest.mark.parametrize(
    ("speed", "expected"), [(1.0, "supported"), (0.95, "contradicted"), (1.01, "within noise")]
)
def test_equal_rate_is_an_equivalence_test(verdicts: Verdicts, speed: float, expected: str) -> None:
    assert verdicts(*three(speed=speed, seeds=range(4)))["rate"].verdict == expected


def test_speed_on_other_hardware_decides_nothing(verdicts: Verdicts) -> None:
    one_gpu = H100 | {"gpus": 1}
    found = verdicts(*(at_scale(scale, hardware=one_gpu, tasks={}) for scale in ALL))
    assert found["rate"].verdict == "not measured"
    assert {one.why_not for one in found["rate"].evidence} == {"other hardware"}
    assert found["lower-loss"].deciding


def test_rates_taken_beside_other_workers_judge_nothing(verdicts: Verdicts) -> None:
    found = verdicts(*map(beside_others, three(speed=0.9, seeds=range(4))))
    assert found["rate"].verdict == "not measured"
    assert not found["rate"].evidence
    assert found["lower-loss"].deciding


def test_the_papers_ablation_supports_what_it_says(verdicts: Verdicts) -> None:
    found = verdicts(at_scale("small", arms=SMALL, effect=PAPERS, noise=0.0002, tasks={}))
    for key in ("wider-start", "smooth", "half"):
        assert found[key].verdict == "supported", key
    assert found["three-heads"].verdict in ("supported", "could not be seen")  # of 0.00005


def test_an_ablation_the_other_way_round_contradicts_it(verdicts: Verdicts) -> None:
    turned = {arm: -effect for arm, effect in PAPERS.items()} | {"short": -0.05, "config-7": -0.05}
    found = verdicts(at_scale("small", arms=SMALL, effect=turned, noise=0.0002, tasks={}))
    for key in ("wider-start", "smooth", "half", "three-heads"):
        assert found[key].verdict == "contradicted", key


def test_half_of_an_ablation_does_not_decide(verdicts: Verdicts) -> None:
    arms = {name: SMALL[name] for name in ("uniform", "prism", "config-6", "config-3")}
    found = verdicts(at_scale("small", arms=arms, effect=PAPERS, noise=0.0002))["wider-start"]
    assert found.verdict == "not measured"
    assert found.evidence[0].why_not == "not all arms or tasks of the claim"


def test_two_heads_are_slow(verdicts: Verdicts) -> None:
    slow = at_scale("small", arms=SMALL, speed=0.92, tasks={})
    assert verdicts(slow)["two-heads"].verdict == "supported"
    fast = at_scale("small", arms=SMALL, speed=1.08, tasks={})
    assert verdicts(fast)["two-heads"].verdict == "contradicted"


def profile(shift: Callable[[int, int], float]) -> Callable[[str, int, int], float]:
    """Attention distance that grows with depth; Prism's is shifted by layer."""
    draw = np.random.default_rng(0)

    def value(arm: str, seed: int, layer: int) -> float:
        moved = shift(layer, seed) if arm == "prism" else 0.0
        return 200 + 5 * layer + moved + float(draw.normal(0, 0.3))

    return value


def attention(shift: Callable[[int, int], float]) -> list[Collected]:
    return [with_metric(one, "attention.distance", profile(shift)) for one in three()]


def test_attention_as_the_paper_has_it(verdicts: Verdicts) -> None:
    # Every scale's ramp completes after layer 5, and 30 tokens are far from noise.
    found = verdicts(*attention(lambda layer, _: -30 if layer < 6 else peak(layer, 6)))
    for key in ("early-local", "late-equal", "boundary"):
        assert found[key].verdict == "supported", key
    assert found["middle-global"].verdict in ("supported", "within noise")


def peak(layer: int, top: int) -> float:
    """Farther from layer 6 to 8, farthest at one of them."""
    return 0.0 if layer > 8 else 40.0 if layer == top else 30.0


def test_a_turn_at_the_boundary_that_peaks_elsewhere_is_not_the_papers(verdicts: Verdicts) -> None:
    found = verdicts(*attention(lambda layer, _: -30 if layer < 6 else peak(layer, 8)))
    assert found["boundary"].verdict == "contradicted"
    words = found["boundary"].deciding[0].words
    assert "3 of 3 seeds turn" in words
    assert "they peak: +2.0 layers from layer 6" in words


def test_attention_the_other_way_round(verdicts: Verdicts) -> None:
    found = verdicts(*attention(lambda layer, _: 30.0 if layer < 6 else -30.0))
    for key in ("early-local", "middle-global", "late-equal", "boundary"):
        assert found[key].verdict == "contradicted", key


def test_attention_that_is_noise(verdicts: Verdicts) -> None:
    draw = np.random.default_rng(1)
    found = verdicts(*attention(lambda *_: float(draw.normal(0, 40))))
    for key in ("early-local", "middle-global", "late-equal"):
        assert found[key].verdict == "could not be seen", key


def test_noise_that_crosses_zero_at_the_boundary_is_no_turn_there(verdicts: Verdicts) -> None:
    """Each profile changes its sign where the ramp completes, but turns elsewhere."""
    alternating = attention(lambda layer, _: -40.0 + 30 * (layer % 2) if layer < 9 else 30.0)
    assert verdicts(*alternating)["boundary"].verdict == "contradicted"
    draw = np.random.default_rng(3)
    noise = verdicts(*attention(lambda *_: float(draw.normal(0, 40))))["boundary"]
    assert noise.verdict != "supported"
    assert "changes of sign a seed" in noise.deciding[0].words


def scored(points: float, noise: float) -> list[Collected]:
    """Four benchmarks on which Prism is this many points ahead, give or take little."""
    draw = np.random.default_rng(2)
    found = []
    for one in three(tasks=TASKS):
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
    verdicts: Verdicts, points: float, noise: float, expected: str
) -> None:
    assert verdicts(*scored(points, noise))["downstream"].verdict == expected


def test_downstream_needs_all_four_tasks(verdicts: Verdicts) -> None:
    found = verdicts(*three(tasks={"piqa": "acc"}))["downstream"]
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
def test_the_gap_over_scales(verdicts: Verdicts, large: float, noise: float, expected: str) -> None:
    gaps = {"small": -0.014, "medium": -0.014, "large": large}
    studies = [at_scale(s, effect=gap, noise=noise, tasks={}) for s, gap in gaps.items()]
    assert verdicts(*studies)["scale"].verdict == expected
    assert verdicts(*studies[:2])["scale"].verdict == "not measured"


@pytest.mark.parametrize(
    ("times", "noise", "expected"),
    [
        (1.0, 0.001, "supported"),
        (1.2, 0.001, "supported"),
        (0.95, 0.001, "contradicted"),
        (1.0, 0.1, "could not be seen"),
    ],
)
def test_inference(verdicts: Verdicts, times: float, noise: float, expected: str) -> None:
    draw = np.random.default_rng(4)
    studies = three()
    for kind in ("prefill", "decoding"):
        value = lambda arm, *_: times + float(draw.normal(0, noise))  # noqa: E731
        studies = [with_metric(one, f"inference.{kind}.ratio", value) for one in studies]
    assert verdicts(*studies)["inference"].verdict == expected


def test_every_study_of_a_scale_is_held_against_every_other(verdicts: Verdicts) -> None:
    """Their order does not decide."""
    small = [at_scale("small", effect=gap, noise=0.0005, tasks={}) for gap in (-0.014, -0.03)]
    large = at_scale("large", effect=-0.014, noise=0.0005, tasks={})
    for studies in ((*small, large), (*small[::-1], large)):
        assert verdicts(*studies)["scale"].verdict == "contradicted"
    assert verdicts(small[0], large)["scale"].verdict == "supported"


def test_half_trained_runs_do_not_decide_the_plateau(verdicts: Verdicts) -> None:
    states = {("prism", 0, seed): "incomplete" for seed in (0, 1, 2)}
    study = at_scale("large", effect=-0.008, noise=0.0002, tasks={}, states=states)
    assert not verdicts(study)["plateau"].evidence


def test_no_share_of_a_gain_that_is_not_there(verdicts: Verdicts) -> None:
    worse = PAPERS | {"prism": 0.01, "config-7": 0.02}
    study = at_scale("small", arms=SMALL, effect=worse, noise=0.0002, tasks={})
    assert verdicts(study)["three-heads"].verdict == "within noise"


def test_one_seed_contradicts_nothing(verdicts: Verdicts) -> None:
    found = verdicts(*three(effect=0.0005, noise=0.0001, seeds=(0,)))
    assert found["earlier"].verdict == "could not be seen"
    assert "never reaches it, in 1 seed" in found["earlier"].deciding[0].words


def test_one_validation_above_zero_is_no_milestone_below_it(verdicts: Verdicts) -> None:
    """Within the band of all validations it is noise; beyond it, it speaks against the claim."""
    study = at_scale("small", noise=0.0005, tasks={})
    assert verdicts(study)["persists"].evidence[0].verdict == "supported"
    steps = sorted(study.table.loc[study.table["metric"] == "val_loss", "step"].unique())
    prism = (study.table["arm"] == "prism") & (study.table["metric"] == "val_loss")
    study.table.loc[prism & (study.table["step"] == steps[10]), "value"] += 0.021
    (one,) = verdicts(study)["persists"].evidence
    assert one.verdict == "within noise"
    assert "at 19 of 20 validations its mean is below 0" in one.words
    study.table.loc[prism & (study.table["step"] == steps[10]), "value"] += 0.1
    assert verdicts(study)["persists"].evidence[0].verdict == "contradicted"


def test_widening_and_plateau(verdicts: Verdicts) -> None:
    """The drawn gap is level, so it never widens; from the paper's curve it does."""
    study = at_scale("large", effect=-0.008, noise=0.0002, tasks={})
    assert verdicts(study)["plateau"].verdict in ("within noise", "contradicted")
    table = study.table
    prism = (table["arm"] == "prism") & (table["metric"] == "val_loss")
    tokens = table.loc[prism, "step"].astype(float) * study.facts.recipe.train.batch_tokens
    table.loc[prism, "value"] += 0.006 * np.clip(1 - tokens / 9e9, 0, 1)
    assert verdicts(study)["plateau"].verdict == "supported"


def test_neutrality_is_arithmetic_and_hashes_stand_beside(verdicts: Verdicts) -> None:
    study = drawn()
    found = verdicts(study)["neutral"]
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
    assert verdicts(renamed(study, runs=runs))["neutral"].beside[0].verdict == "contradicted"


def test_grouped_queries(verdicts: Verdicts) -> None:
    study = drawn(noise=0.0005)
    assert not verdicts(study)["gqa"].evidence
    shared = changed(study.facts.recipe, {"model.queries_per_kv": 2}, "test")
    (one,) = verdicts(renamed(study, recipe=shared))["gqa"].evidence
    assert (one.verdict, one.decides) == ("supported", False)
    arms = {"uniform": "12x12", "prism": "3x2 6x4 12x6"}
    study = at_scale("small", arms=arms, noise=0.0005, tasks={})
    shared = changed(study.facts.recipe, {"model.queries_per_kv": 3}, "test")
    found = verdicts(renamed(study, recipe=shared, scale=None))["gqa"]
    assert found.verdict == "supported"


def test_every_claim_of_the_list_is_there(verdicts: Verdicts) -> None:
    found = verdicts(drawn())
    assert len(found) == len(CLAIMS) == 28
    assert found["inference"].verdict == "not measured"
    assert sum(counts(list(found.values())).values()) == 28
    for claim in CLAIMS:
        assert claim.text and claim.where and claim.rule and claim.scales and claim.fill  # noqa: PT018


def test_a_main_arm_that_breaks_the_rule_cannot_show_it(verdicts: Verdicts) -> None:
    arms = {"uniform": "12x12", "prism": "3x4 6x4 12x4", "other": "6x8 12x4"}
    found = verdicts(at_scale("small", arms=arms, effect=-0.02))
    assert found["half"].verdict == "not measured"
