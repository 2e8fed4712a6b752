"""What a study remembers of having been looked at, and what that does to its error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from prism_transformer.core.errors import InputError
from prism_transformer.study.collected import (
    STUDY_FILE,
    Collected,
    LooksFacts,
    PlanFacts,
    read_collected,
    write_collected,
)
from prism_transformer.study.compare import compare
from prism_transformer.study.looks import plan_looks
from prism_transformer.study.peeking import looked_again, peeks, with_looks_of
from prism_transformer.study.sentences import answer, remarks
from tests.older import without_sums
from tests.reporting.studies import renamed
from tests.study.frames import make_collected

TWO, THREE = LooksFacts(seeds=(8, 16)), LooksFacts(seeds=(8, 16, 32))
NONE = PlanFacts(looks=None)


def collected(n: int, looks: LooksFacts | None = None) -> Collected:
    """A whole study of so many seeds under a plan."""
    study = make_collected(seeds=range(n), tasks={}, steps=(0, 1))
    return renamed(study, looks=looks)


def kept(folder: Path, *studies: Collected) -> Collected:
    """The last of these, each collected into the same folder."""
    for study in studies:
        write_collected(folder, looked_again(study, folder))
    return read_collected(folder)


def told(study: Collected) -> str:
    return " ".join(remarks(compare(study)))


def alarms(limits: dict[int, float]) -> float:
    """Share of drawn studies without an effect that are below a limit somewhere: by scipy."""
    rows = np.random.default_rng(3).normal(0, 0.01, (40_000, max(limits)))
    below = [stats.ttest_1samp(rows[:, :n], 0, axis=1).pvalue < p for n, p in limits.items()]
    return float(np.any(below, axis=0).mean())


def test_looks_at_a_whole_study_are_remembered(tmp_path: Path) -> None:
    first = looked_again(make_collected(seeds=range(3)), tmp_path)
    assert first.facts.looked == (3,)
    write_collected(tmp_path, first)
    assert looked_again(first, tmp_path).facts.looked == (3,)  # the same again is no other look
    states = {("prism", 0, 4): "missing"}
    partly = looked_again(make_collected(seeds=range(5), states=states), tmp_path)
    assert (partly.settled, partly.facts.looked) == (4, (3,))
    states = {("prism", 0, 4): "failed"}  # a run that failed is settled too
    later = looked_again(make_collected(seeds=range(5), states=states), tmp_path)
    assert (later.settled, later.facts.looked) == (5, (3, 5))
    assert looked_again(renamed(first, name="other"), tmp_path).facts.looked == (3,)
    (tmp_path / STUDY_FILE).write_text("{", "utf-8")
    with pytest.raises(InputError, match=r"study.json: .*; what was looked at before"):
        looked_again(make_collected(seeds=range(5)), tmp_path)
    (tmp_path / STUDY_FILE).unlink()
    assert looked_again(make_collected(seeds=range(5)), tmp_path).facts.looked == (5,)


def test_looks_named_after_looking_do_not_claim_their_error(tmp_path: Path) -> None:
    study = kept(tmp_path, collected(4), collected(8), collected(16, TWO))
    assert study.facts.plans == (
        PlanFacts(looks=None, looked=(4, 8)),
        PlanFacts(looks=TWO, looked=(16,)),
    )
    seen = peeks(study.facts)
    assert seen is not None
    assert (seen.plans, seen.looked, seen.unplanned) == ((None,), (4, 8, 16), (4,))
    limit = plan_looks((8, 16))[-1].limit
    assert seen.alarms == pytest.approx(alarms({4: 0.05, 8: 0.05, 16: limit}), abs=0.004)
    said = told(study)
    assert "Looks are planned now at these numbers of seeds: 8 (p below 0.0" in said
    assert "this is the one at 16." in said
    assert "of error spent" not in said
    assert (
        "It was collected before with no looks planned. As a whole it was seen with 4, then" in said
    )
    assert "of which 4 is no look that is planned now. No planned looks pay for that" in said
    chance = f"about {100 * seen.alarms:.2g} %"
    assert f"p falls below its limit at one of these with a chance of {chance}." in said
    *_, doubt = answer(study.facts, compare(study))
    assert "its looks were changed after it had been seen: of studies without a differ" in doubt
    assert f"a difference {chance} find one" in doubt


def test_a_plan_that_grew_after_its_last_look_is_told(tmp_path: Path) -> None:
    """The chance has the look to come, for which the plan was changed."""
    two, three = plan_looks((8, 16)), plan_looks((8, 16, 32))
    limits = {8: two[0].limit, 16: two[1].limit, 32: three[2].limit}
    study = kept(tmp_path, collected(8, TWO), collected(16, TWO), collected(16, THREE))
    for each in (study, kept(tmp_path, collected(32, THREE))):
        seen = peeks(each.facts)
        assert seen is not None
        assert (seen.plans, seen.unplanned) == ((TWO,), ())
        assert seen.alarms == pytest.approx(alarms(limits), abs=0.004)
        assert seen.alarms > 0.07
        assert "before with looks planned at 8, 16 (obrien-fleming). As a whole" in told(each)
        to_come = "at one of these, or of the looks to come, with a chance" in told(each)
        assert to_come == (each is study)


def test_looks_that_were_dropped_or_taken_elsewhere_are_told(tmp_path: Path) -> None:
    dropped = kept(tmp_path, collected(8, TWO), collected(16))
    assert "No planned looks pay for that, so an error of 5 % is not claimed: if" in told(dropped)
    between = kept(tmp_path / "between", collected(6, TWO), collected(8, TWO))
    seen = peeks(between.facts)
    assert seen is not None
    assert (seen.plans, seen.unplanned) == ((), (6,))
    assert "seen with 6, then with 8 seeds, of which 6 is no look that is planned" in told(between)
    assert "Looks were planned at" in told(between)


def test_looks_as_planned_claim_what_they_planned(tmp_path: Path) -> None:
    study = kept(tmp_path, collected(8, TWO), collected(16, TWO))
    assert peeks(study.facts) is None
    assert "this is the one at 16, with 5 % of error spent by now" in told(study)
    assert peeks(kept(tmp_path / "once", collected(8), collected(8)).facts) is None


def test_a_plan_that_was_changed_before_the_first_look_is_told_without_a_chance(
    tmp_path: Path,
) -> None:
    states = {("prism", 0, 7): "missing"}
    part = make_collected(seeds=range(8), tasks={}, steps=(0, 1), states=states)
    study = kept(tmp_path, part, collected(8, TWO))
    assert study.facts.plans == (NONE, PlanFacts(looks=TWO, looked=(8,)))
    assert "It was collected before with no looks planned" in told(study)
    assert "chance" not in told(study)
    nothing = {(arm, 0, n): "missing" for arm in ("uniform", "prism") for n in range(8)}
    empty = make_collected(seeds=range(8), tasks={}, steps=(0, 1), states=nothing)
    assert peeks(kept(tmp_path / "begun", empty, collected(8, TWO)).facts) is None


def test_a_folder_that_kept_no_plans_counts_as_of_its_own(tmp_path: Path) -> None:
    kept(tmp_path, collected(8, TWO))
    file = tmp_path / STUDY_FILE
    facts = json.loads(file.read_text("utf-8"))
    del facts["plans"]
    file.write_text(json.dumps(facts), "utf-8")
    without_sums(file)
    assert peeks(read_collected(tmp_path).facts) is None
    later = kept(tmp_path, collected(16, THREE))
    assert [plan.looks for plan in later.facts.plans] == [TWO, THREE]
    assert later.facts.looked == (8, 16)


def test_what_was_seen_elsewhere_of_the_same_study_counts() -> None:
    before = with_looks_of(collected(8), ())
    assert with_looks_of(collected(16), [before]).facts.looked == (8, 16)
    # A copy with more seeds has another name; a study with arms that this one lacks asked more.
    assert with_looks_of(collected(16), [renamed(before, name="other")]).facts.looked == (8, 16)
    other = make_collected(arms={"uniform": "8x3", "tiled": "2x1 8x2"}, seeds=range(8), tasks={})
    other = with_looks_of(renamed(other, name="other"), ())
    assert other.facts.looked == (8,)
    assert with_looks_of(collected(16), [other]).facts.looked == (16,)


def test_a_look_at_one_seed_shows_no_p(tmp_path: Path) -> None:
    assert peeks(kept(tmp_path, collected(1), collected(2)).facts) is None
