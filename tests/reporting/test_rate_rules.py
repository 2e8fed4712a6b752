"""Arms at their own learning rates: swept, tuned and given, on drawn studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prism_transformer.schedules.paper import presets
from prism_transformer.study.collected import Collected, LooksFacts, RateFacts, TuningFacts
from prism_transformer.study.plan import make_plan
from prism_transformer.study.spec import find_study
from tests.reporting.studies import Judge, at_scale, diverged, renamed, views_of

LOW: dict[str, Any] = {"noise": 0.0003, "tasks": {}}
ARMS = {"uniform": "12x12", "prism": "3x2 6x2 8x2 12x6", "eight": "8x12"}
RATES = (3e-4, 6e-4, 1.2e-3)
FAIR = {"uniform": (0.05, 0.03, 0.04), "prism": (0.02, 0.01, 0.03), "eight": (0.04, 0.02, 0.06)}


def swept(losses: Mapping[str, Sequence[float]], scale: str | None = "small") -> Collected:
    """Final losses by arm at three learning rates, less 3.3."""
    points = [{"optim.lr": rate} for rate in RATES]
    study = at_scale("small", arms=ARMS, points=points, **LOW)
    table = study.table
    draw = np.random.default_rng(0)
    for place in table.index[table["metric"] == "final_val_loss"]:
        arm, point = table.loc[place, "arm"], int(table.loc[place, "point"])
        table.loc[place, "value"] = 3.3 + losses[arm][point] + draw.normal(0, 0.0005)
    return renamed(study, scale=scale)


def tuned(study: Collected, best: Mapping[str, float], edge: str = "") -> Collected:
    """The same study, each arm at a rate that was found with another seed."""
    arms = tuple(
        RateFacts(
            arm=arm,
            rates=RATES,
            losses=((3.30, 3.31, 3.32),) if arm.name == edge else ((3.32, 3.30, 3.32),),
            best=best[arm.name],
        )
        for arm in study.facts.arms
        if arm.name in best
    )
    recipe = study.facts.recipe
    return renamed(study, tuning=TuningFacts(rates=RATES, seeds=(100,), recipe=recipe, arms=arms))


BEST = {"uniform": 5.5e-4, "prism": 6.1e-4, "eight": 7e-4}


def test_each_arm_at_its_own_learning_rate(judged: Judge) -> None:
    """At one rate Prism is ahead; at its own, a uniform arm is."""
    assert judged(swept(FAIR))["own-rates"].verdict == "supported"
    late = FAIR | {"uniform": (0.05, 0.0, 0.04), "prism": (0.02, 0.03, 0.04)}
    (one,) = judged(swept(late))["own-rates"].evidence
    assert "prism at 0.0003" in one.words  # the first of three rates
    assert one.why_not == "a best rate is at the edge of the grid"
    behind = FAIR | {"uniform": (0.05, 0.0, 0.04)}
    assert judged(swept(behind))["own-rates"].verdict == "contradicted"
    assert judged(swept(FAIR, scale=None))["own-rates"].evidence[0].why_not == "another scale"


def test_a_sweep_is_read_where_the_page_reads_it(judged: Judge, tmp_path: Path) -> None:
    """Off the parabola, at the rates that the page names, not at the nearest of the grid."""
    study = swept(FAIR)
    (one,) = judged(study)["own-rates"].deciding
    view = views_of(tmp_path, study)[0]
    assert view.envelope is not None
    rates = {each.arm: each.best.rate for each in view.envelope.arms if each.best}
    assert not set(rates.values()) & set(RATES)
    assert f"prism at {rates['prism']:g} minus uniform at {rates['uniform']:g}" in one.words
    contrast = next(
        each for each in view.envelope.contrasts if each.weights == {"prism": 1, "uniform": -1}
    )
    assert contrast.difference is not None
    assert f": {contrast.difference.mean:+.4f}".replace("-", "\u2212") in one.words


@pytest.mark.parametrize(("effect", "expected"), [(-0.01, "supported"), (0.01, "contradicted")])
def test_a_study_that_tunes_decides(judged: Judge, effect: float, expected: str) -> None:
    study = at_scale("small", arms=ARMS, effect={"prism": effect, "eight": 0.0}, **LOW)
    assert not judged(study)["own-rates"].evidence
    found = judged(tuned(study, BEST))["own-rates"]
    assert found.verdict == expected
    (one,) = found.deciding
    assert "prism at 0.00061 minus uniform at 0.00055" in one.words
    assert "prism at 0.00061 minus eight at 0.0007" in one.words


def test_the_rate_of_a_view_is_the_one_that_was_found(tmp_path: Path) -> None:
    study = at_scale("small", arms=ARMS, **LOW)
    (before,) = views_of(tmp_path / "before", study)
    (after,) = views_of(tmp_path / "after", tuned(study, BEST))
    assert {arm: before.rate(arm) for arm in ARMS} == dict.fromkeys(ARMS, 6e-4)
    assert {arm: after.rate(arm) for arm in ARMS} == BEST


def test_what_does_not_decide_says_why(judged: Judge) -> None:
    study = at_scale("small", arms=ARMS, effect=-0.01, **LOW)
    some = tuned(study, {arm: BEST[arm] for arm in ("uniform", "prism")})
    assert not judged(some)["own-rates"].evidence  # an arm at nobody's rate
    looks = LooksFacts(seeds=(3, 6), spending="pocock")
    states = {("eight", 0, 1): "failed"}
    failed = diverged(at_scale("small", arms=ARMS, effect=-0.01, states=states, **LOW))
    heads = {"uniform": "12x12", "prism": "6x6 12x6", "eight": "8x12"}
    other = at_scale("small", arms=heads, effect=-0.01, **LOW)
    tiled = tuple(
        arm.model_copy(update={"changes": {"model.rope_frequencies": "tiled"}})
        if arm.name != "uniform"
        else arm
        for arm in study.facts.arms
    )
    assert not judged(tuned(renamed(study, arms=tiled), BEST))["own-rates"].evidence
    given = tuple(
        arm.model_copy(update={"changes": {"optim.lr": BEST[arm.name]}}) for arm in study.facts.arms
    )
    wrong = {
        "a best rate is at the edge of the grid": tuned(study, BEST, edge="uniform"),
        "a look before the last": tuned(renamed(study, looks=looks), BEST),
        "a run failed": tuned(failed, BEST),
        "no arm has the paper's schedule": tuned(other, BEST),
        "another scale": tuned(renamed(study, scale="medium"), BEST),
        "rates that were given, not found": renamed(study, arms=given),
    }
    for why_not, one in wrong.items():
        found = judged(one)["own-rates"]
        assert found.verdict == "not measured"
        assert [each.why_not for each in found.evidence] == [why_not]


def test_a_run_that_diverged_at_another_rate_leaves_no_pair_out(judged: Judge) -> None:
    """Its rate counts as worse than all others, as where the best rates are found."""
    study = swept(FAIR)
    table, runs = study.table, []
    gone = ("eight", 2, 1)
    for run in study.facts.runs:
        state = "failed" if (run.arm, run.point, run.seed) == gone else run.state
        runs.append(run.model_copy(update={"state": state}))
    mine = (table["arm"] == gone[0]) & (table["point"] == gone[1]) & (table["seed"] == gone[2])
    one = Collected(study.facts, table[~mine], study.items)
    found = judged(diverged(renamed(one, runs=tuple(runs))))["own-rates"]
    assert found.verdict == "supported"
    stopped = judged(renamed(one, runs=tuple(runs)))["own-rates"]  # of something else
    assert "left out: eight failed in seed 1" in stopped.evidence[0].words


def test_what_the_claim_asks_for_tunes_at_the_papers_scale() -> None:
    plan = make_plan(find_study("small"))
    assert plan.study.tune is not None
    heads = {arm.name: arm.schedule for arm in plan.arms}
    assert heads["prism"] == presets()["small"].schedule
    assert len(set(heads["uniform"].heads)) == 1
