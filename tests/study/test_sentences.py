from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prism_transformer.study.collected import (
    Collected,
    ContrastFacts,
    LooksFacts,
    RateFacts,
    TuningFacts,
)
from prism_transformer.study.compare import ArmContrast, compare
from prism_transformer.study.multiplicity import fit_blocks
from prism_transformer.study.sentences import answer, plainly, remarks, sentence, sentences
from prism_transformer.study.statistics import paired, seeds_needed
from tests.study.frames import make_collected

pytestmark = pytest.mark.filterwarnings("error")

FOUR = {"uniform": "8x8", "prism": "2x2 4x2 8x4", "reversed": "8x4 4x2 2x2", "fewer": "4x8"}


def with_differences(*differences: float, comparisons: int = 1, **more: Any) -> ArmContrast:
    """A row that found just these, of two arms."""
    (row,), found = compare(make_collected()).rows, paired(differences)
    blocks = fit_blocks([[each, 0.0] for each in differences])
    pooled = blocks.contrast([1, -1]) if blocks else None
    if pooled:
        pooled = replace(pooled, adjusted_p=min(1, pooled.p * comparisons))
    return replace(
        row,
        difference=found,
        pooled=pooled,
        adjusted_p=min(1, found.p * comparisons),
        comparisons=comparisons,
        seeds_needed=seeds_needed(row.effect, found.sd),
        **more,
    )


def with_facts(**facts: Any) -> Any:
    """A comparison of six seeds and four arms with these facts."""
    collected = make_collected(arms=FOUR, seeds=range(6), effect={"prism": -0.05}, tasks={})
    return compare(replace(collected, facts=collected.facts.model_copy(update=facts)))


def answered(effect: float, seeds: int = 6, **more: Any) -> list[str]:
    """The answer of a study whose Prism differs by so much."""
    collected = make_collected(seeds=range(seeds), effect={"prism": effect}, **more)
    return answer(collected.facts, compare(collected))


def test_an_answer_is_plain_and_its_doubt_follows() -> None:
    clear, doubt = answered(-0.5)
    assert clear.startswith("Answer: prism ends 0.")
    assert clear.endswith(" nats lower than uniform, more than chance does in 6 seeds.")
    assert " higher than uniform" in answered(+0.5)[0]
    assert doubt.startswith("Doubt: a study like this one misses differences below ")
    assert "one learning rate, 0.003, was used for all arms and tuned for none" in doubt
    assert doubt.endswith("M parameters say nothing of larger ones.")


def test_an_answer_that_is_none() -> None:
    unclear, _ = answered(0.0, seeds=2)
    assert unclear.startswith("Answer: undecided. prism ends ")
    assert unclear.endswith("in the mean of 2 seeds, which chance can do as well.")
    _, alone = answered(0.0, seeds=1)
    assert "seeds are too few to tell a difference from noise" in alone


def test_an_answer_for_each_point_of_a_sweep_and_no_doubt_of_a_rate_that_is_swept() -> None:
    points = tuple({"optim.lr": rate} for rate in (0.001, 0.002, 0.004))
    *answers, doubt = answered(-0.5, points=points)
    assert ["at optim.lr = 0.001" in answers[0], "at optim.lr = 0.002" in answers[1]] == [True] * 2
    assert "learning rate" not in doubt


TWO_RATES = "earning rates 0.001 and 0.002 were used for all arms and tuned for none: too few to"


def test_a_sweep_too_small_to_find_a_best_rate_is_not_silent() -> None:
    points = ({"optim.lr": 0.001}, {"optim.lr": 0.002})
    *_, doubt = answered(-0.5, points=points)
    assert f"; l{TWO_RATES} show a best one; models" in doubt
    found = compare(make_collected(points=points))
    assert f"L{TWO_RATES} show a best one." in remarks(found)
    assert (found.envelopes, found.one_rate) == ((), None)
    assert found.untuned == dict.fromkeys(("uniform", "prism"), (0.001, 0.002))
    one = compare(make_collected(points=({"optim.lr": 0.001},)))
    assert "One learning rate, 0.001, was used for all arms and tuned for none." in remarks(one)
    assert one.one_rate == 0.001
    other = compare(make_collected(points=({"train.tokens": 1}, {"train.tokens": 2})))
    assert ONE_RATE in remarks(other)


def test_a_rate_of_one_arm_alone_was_tuned_for_none_either() -> None:
    collected = make_collected()
    uniform, prism = collected.facts.arms
    own = prism.model_copy(update={"changes": {"optim.lr": 0.004}})
    facts = collected.facts.model_copy(update={"arms": (uniform, own)})
    found = compare(replace(collected, facts=facts))
    said = "earning rates were tuned for no arm: 0.003 for uniform; 0.004 for prism"
    assert f"L{said}." in remarks(found)
    assert f"; l{said}; " in answer(facts, found)[-1]
    assert found.one_rate is None


def test_only_arms_that_were_tuned_have_nothing_said_of_their_rate() -> None:
    collected = make_collected(tasks={})
    uniform, prism = collected.facts.arms
    found = [
        RateFacts(arm=arm, rates=(0.002, 0.004, 0.008), losses=((3.1, 3.0, 3.2),), best=0.004)
        for arm in (uniform, prism)
    ]
    recipe = collected.facts.recipe
    tuned, half = (
        TuningFacts(rates=(0.002, 0.004, 0.008), seeds=(9,), recipe=recipe, arms=tuple(arms))
        for arms in (found, found[:1])
    )
    assert compare(with_tuning(collected, tuned)).untuned == {}
    assert compare(with_tuning(collected, half)).untuned == {"prism": (0.003,)}


def with_tuning(collected: Collected, tuning: TuningFacts) -> Collected:
    return replace(collected, facts=collected.facts.model_copy(update={"tuning": tuning}))


def test_a_sentence_that_is_undecided() -> None:
    assert sentence(with_differences(-0.010, 0.004, -0.0043, 0.001, -0.002, -0.003)) == (
        "prism against uniform: -0.0024 nats (95 % interval -0.0074 to +0.0026, 6 seeds): "
        "undecided; sign-flip p 0.312; such a study sees 0.0069 or more in four of five cases, "
        "and about 6 seeds would see 0.007."
    )
    several = with_differences(-0.010, 0.004, -0.0043, 0.001, -0.002, -0.003, comparisons=6)
    assert "; asked this alone, such a study sees " in sentence(several)


def test_a_sentence_with_a_clear_difference() -> None:
    lower = sentence(with_differences(-0.010, -0.012, -0.009, -0.011, -0.013, -0.010))
    assert lower == (
        "prism against uniform: -0.0108 nats (95 % interval -0.0124 to -0.0093, 6 seeds): "
        "lower (better) in all 6 seeds; sign-flip p 0.0312."
    )
    higher = sentence(with_differences(0.010, 0.012, 0.009, 0.011, 0.013, 0.010))
    assert "higher (worse) in all 6 seeds" in higher
    assert "better" not in higher


def test_the_verdict_is_that_of_the_adjusted_p() -> None:
    text = sentence(with_differences(-0.010, -0.012, -0.009, -0.011, -0.013, -0.010, comparisons=3))
    assert "undecided, though the interval of this one comparison excludes 0; " in text
    assert "sign-flip p 0.0312, 0.0938 adjusted for 3 comparisons" in text
    assert "better" not in text


def test_a_sentence_says_what_few_seeds_cannot_and_what_can() -> None:
    text = sentence(with_differences(-0.010, -0.0101, -0.0102, comparisons=3))
    assert text.endswith(
        "lower (better) in all 3 seeds; 3 seeds give no sign-flip p below 0.25; by the pooled "
        "error (2 degrees of freedom) p 3.27e-05, 9.8e-05 after Holm over 3 comparisons."
    )


def test_sentences_that_cannot_say_much() -> None:
    row = with_differences(-0.0061)
    assert sentence(row) == "prism against uniform: -0.0061 nats, one seed: no interval."
    assert sentence(replace(row, difference=None)).endswith("no seed is complete in both arms.")
    assert sentence(with_differences(0, 0, 0)).endswith("the same loss in all 3 seeds.")
    far = sentence(with_differences(1.0, -1.0, 1.0, -1.0))
    assert "not even 10,000 seeds would see 0.007" in far


def test_a_sentence_shows_differences_however_small() -> None:
    assert "-0.0000050 nats" in sentence(with_differences(-4e-6, -5e-6, -6e-6, -5e-6))


def test_a_sentence_names_its_point_and_its_weights() -> None:
    found = compare(make_collected(points=[{"optim.lr": 0.001}, {"optim.lr": 0.003}]))
    assert sentence(found.rows[1]).startswith("optim.lr=0.003, prism against uniform: ")
    named = (
        ContrastFacts(name="order", weights={"prism": 1, "reversed": -1}),
        ContrastFacts(name="few", weights={"prism": 0.5, "fewer": 0.5, "uniform": -1}),
    )
    order, few = with_facts(contrasts=named).contrasts
    assert sentence(order).startswith("order (prism minus reversed): -0.0")
    assert sentence(few).startswith("few (0.5 prism + 0.5 fewer - 1 uniform): ")
    default = with_facts().contrasts[0]
    assert sentence(default).startswith("prism against reversed: ")  # nothing is said twice


def test_noise_is_undecided_and_an_effect_is_found() -> None:
    """Of studies without an effect about one in twenty decides something."""
    undecided = {
        effect: sum(
            "undecided" in sentence(row)
            for study in range(15)
            for row in compare(
                make_collected(
                    seeds=range(4), effect=effect, tasks={}, steps=(0, 1), draw_seed=study
                )
            ).rows
        )
        for effect in (0.0, -0.03)
    }
    assert 12 <= undecided[0.0] <= 15
    assert undecided[-0.03] <= 1


# -- what is missing, and when it was looked at ----------------------------------------------------


ONE_RATE = "One learning rate, 0.003, was used for all arms and tuned for none."


def test_runs_that_diverged_stay_in_the_account() -> None:
    failed = {("prism", 0, 2): "failed"}
    collected = make_collected(arms=FOUR, seeds=range(4), states=failed, tasks={})
    why = "step 7: loss nan, gradient norm nan: stopped before the update; gradients"
    runs = tuple(
        run.model_copy(update={"failure": why}) if run.state == "failed" else run
        for run in collected.facts.runs
    )
    facts = collected.facts.model_copy(update={"runs": runs})
    comparison = compare(replace(collected, facts=facts))
    assert sentence(comparison.rows[0]).endswith("; 1 seed is not in it: prism diverged in seed 2.")
    assert "not in it" not in sentence(comparison.rows[1])
    assert comparison.table.values("arm")[-1] == "prism, seed 2"
    assert comparison.table.values("seeds")[-1] == "diverged"
    assert remarks(comparison) == [
        "1 run failed, 1 of them by diverging: differences are of the seeds that all arms "
        "survived, and an arm that diverges is worse than they say.",
        ONE_RATE,
    ]
    assert sentences(comparison)[-2:] == remarks(comparison)
    other = compare(collected)  # the same run, failed for another reason
    assert remarks(other) == ["1 run failed: differences are of the other seeds.", ONE_RATE]
    assert sentence(other.rows[0]).endswith("prism failed in seed 2.")
    assert comparison.to_json()["lost"][0]["diverged"] is True
    assert "; 1 run failed, 1 of them by diverging; " in answer(facts, comparison)[-1]
    assert "; 1 run failed; " in answer(collected.facts, other)[-1]


def test_planned_looks_are_told_and_decide() -> None:
    at = with_facts(looks=LooksFacts(seeds=(6, 12), spending="pocock"))
    assert at.settled == 6
    remark, _ = remarks(at)
    assert remark.startswith("Looks were planned at these numbers of seeds: 6 (p below 0.0")
    assert "this is the one at 6, with" in remark
    # Six seeds have no flip p below 0.031, and only less than that decides: by the pooled error.
    text = sentence(at.rows[0])
    assert "by the pooled error" in text
    assert "(only below 0.0" in text
    assert at.rows[0].decided


def test_between_looks_nothing_is_decided() -> None:
    between = with_facts(looks=LooksFacts(seeds=(4, 12)))
    assert all(row.limit != row.limit for row in between.every)
    assert "undecided: no look is planned at so many seeds" in sentence(between.rows[0])
    assert "with 6 seeds whole in all arms this is none of them" in remarks(between)[0]
    assert between.to_json()["rows"][0]["limit"] is None


def test_before_a_seed_is_whole_the_look_does_not_contradict_its_pairs() -> None:
    """Two pairs of one contrast are there, and yet no seed of all arms."""
    states = {("fewer", 0, seed): "missing" for seed in range(2)}
    collected = make_collected(arms=FOUR, seeds=range(2), states=states, tasks={})
    planned = collected.facts.model_copy(update={"looks": LooksFacts(seeds=(6, 12))})
    found = compare(replace(collected, facts=planned))
    assert "2 seeds)" in sentence(found.rows[0])
    said, _ = remarks(found)
    assert said.endswith(
        "; no seed is whole in all arms yet, and nothing is decided before the first look."
    )


def test_one_pair_is_undecided_whatever_other_pairs_say() -> None:
    """The error of all arms is small; still nothing tells what the one seed did to this arm."""
    states = {("prism", 0, seed): "missing" for seed in range(1, 6)}
    effect = {"prism": -0.5, "reversed": -0.1}
    found = compare(
        make_collected(arms=FOUR, seeds=range(6), effect=effect, states=states, tasks={})
    )
    prism, reverse, _ = found.rows
    assert prism.pooled is not None
    assert prism.pooled.adjusted_p < 0.001
    assert (prism.decided, prism.decided_by, prism.verdict) == (False, "", "undecided")
    assert (reverse.decided, reverse.verdict) == (True, "lower")
    assert sentence(prism).endswith("nats, one seed: no interval.")
    said = plainly(prism, "prism", "uniform")
    assert said.startswith("undecided. prism ends 0.")
    assert said.endswith("in the mean of 1 seed, which chance can do as well.")


def test_an_estimate_that_is_adjusted_for_missing_runs_stands_beside_its_p() -> None:
    states = {("prism", 0, 2): "missing"}
    found = compare(make_collected(arms=FOUR, seeds=range(3), states=states, tasks={}))
    prism, reverse, _ = found.rows
    assert prism.pooled is not None
    assert (prism.moved, reverse.moved) == (True, False)
    said = f"of freedom), {prism.pooled.mean:+.4f} nats when adjusted for missing runs, p "
    assert said in sentence(prism)
    assert "adjusted for missing" not in sentence(reverse)


def test_what_is_asked_under_a_name_is_told_once() -> None:
    named = (
        ContrastFacts(name="number", weights={"fewer": 1, "uniform": -1}),
        ContrastFacts(name="order", weights={"prism": 1, "reversed": -1}),
    )
    found = with_facts(contrasts=named)
    told = [line.split(":")[0] for line in sentences(found)[:4]]
    assert told == [
        "prism against uniform", "reversed against uniform", "number (fewer minus uniform)",
        "order (prism minus reversed)",
    ]  # fmt: skip
    assert found.contrast_table.values("contrast") == [
        "prism against uniform", "reversed against uniform", "number", "order",
    ]  # fmt: skip
    assert len(found.every) == 5  # for scripts, all are there


def test_seeds_that_were_added_unsaid_are_told_what_that_does() -> None:
    remark, _ = remarks(with_facts(looked=(3, 6)))
    assert remark.startswith(
        "Seeds were added after the study had been seen: with 3, then with 6. If nothing differs, "
        "p < 0.05 comes up at one of these with a chance of 8"
    )
    assert remarks(with_facts(looked=(6,))) == [ONE_RATE]
    assert remarks(with_facts()) == [ONE_RATE]


def test_what_to_doubt_of_the_files_is_said_last() -> None:
    few = make_collected()  # forty items of each task
    assert remarks(compare(few))[-2:] == list(few.doubts)
    assert few.doubts[0] == "piqa: 40 of the 1,838 items it is known to have."
    older = replace(make_collected(tasks={}), doubt="Collected without sums.")
    assert remarks(compare(older))[-1] == "Collected without sums."
