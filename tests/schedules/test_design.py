from __future__ import annotations

from collections import Counter
from itertools import islice, product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from prism_transformer.core.errors import InputError
from prism_transformer.schedule import HeadSchedule, head_counts
from prism_transformer.schedules.design import (
    RULES,
    Limits,
    bracketing_uniforms,
    enumerate_schedules,
    propose,
    reverse,
    shuffle,
)
from prism_transformer.schedules.paper import presets
from prism_transformer.schedules.rules import check_rules

rule_sets = st.sets(st.sampled_from(sorted(RULES))).map(frozenset)


@settings(deadline=None, max_examples=60)
@given(
    d_model=st.sampled_from([8, 12, 24]),
    n_layers=st.integers(1, 5),
    h_base=st.sampled_from([2, 4, 6]),
    rules=rule_sets,
    start=st.none() | st.tuples(st.sampled_from([1, 2, 3])),
    phases=st.tuples(st.integers(1, 3), st.none() | st.integers(1, 4)),
    lengths=st.tuples(st.integers(1, 2), st.none() | st.integers(1, 4)),
)
def test_enumeration_against_brute_force(
    d_model: int,
    n_layers: int,
    h_base: int,
    rules: frozenset[str],
    start: tuple[int, ...] | None,
    phases: tuple[int, int | None],
    lengths: tuple[int, int | None],
) -> None:
    assume(h_base in head_counts(d_model))
    limits = Limits(start, *phases, *lengths, rules)
    found = list(enumerate_schedules(d_model, n_layers, h_base, limits))
    expected = set()
    for heads in product(head_counts(d_model), repeat=n_layers):
        schedule = HeadSchedule(heads)
        runs = [phase.n_layers for phase in schedule.phases]
        kept = all(f.ok for f in check_rules(schedule, d_model, h_base) if f.rule in rules)
        too_many = {"monotonicity", "convergence"} <= rules and max(heads) > h_base
        if (
            kept
            and not too_many
            and (start is None or heads[0] in start)
            and phases[0] <= len(runs) <= (phases[1] or n_layers)
            and lengths[0] <= min(runs)
            and max(runs) <= (lengths[1] or n_layers)
        ):
            expected.add(schedule)
    assert set(found) == expected
    assert len(found) == len(expected)


def test_enumeration_covers_the_papers_schedules_and_is_lazy() -> None:
    for name in ("small", "medium", "large"):
        preset = presets()[name]
        space = enumerate_schedules(preset.d_model, len(preset.schedule), preset.h_base)
        assert preset.schedule in space
    unruled = enumerate_schedules(768, 48, 12, Limits(rules=frozenset()))
    assert len(list(islice(unruled, 10))) == 10  # of 15^48


@pytest.mark.parametrize(
    "limits",
    [{"min_phase_layers": 0}, {"max_phases": -1}, {"rules": frozenset({"taste"})}],
)
def test_senseless_limits_are_refused(limits: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Limits(**limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n_layers", "h_base"), [(0, 12), (12, 7), (1000, 12)])
def test_spaces_that_cannot_be_enumerated_are_refused(n_layers: int, h_base: int) -> None:
    with pytest.raises(InputError):
        next(enumerate_schedules(768, n_layers, h_base))


@pytest.mark.parametrize("name", ["small", "medium", "large"])
def test_the_papers_schedule_is_proposed_for_its_shape(name: str) -> None:
    preset = presets()[name]
    proposals = propose(preset.d_model, len(preset.schedule), preset.h_base, most=3)
    assert preset.schedule in [proposal.schedule for proposal in proposals]


@pytest.mark.parametrize(
    ("d_model", "n_layers", "h_base", "queries_per_kv", "best"),
    [(4096, 32, 32, 4, "16x8 32x24"), (2048, 32, 32, 4, "8x4 16x4 32x24")],
)
def test_designs_for_models_people_use(
    d_model: int, n_layers: int, h_base: int, queries_per_kv: int, best: str
) -> None:
    proposals = propose(d_model, n_layers, h_base, queries_per_kv=queries_per_kv)
    assert str(proposals[0].schedule) == best
    for proposal in proposals:
        schedule = proposal.schedule
        assert all(n % queries_per_kv == 0 for n in schedule.heads)
        assert all(f.ok for f in check_rules(schedule, d_model, h_base))
        assert len(proposal.reasons) == 4


def test_tensor_parallelism_and_grouping_multiply() -> None:
    for proposal in propose(4096, 32, 32, queries_per_kv=4, tensor_parallel=2):
        assert all(n % 8 == 0 for n in proposal.schedule.heads)


def test_a_start_that_flash_takes_comes_before_one_nearer_to_256() -> None:
    """At d_model 1600, 5 heads are 320 wide and in octaves nearer to 256 than 8 heads of 200."""
    starts = [proposal.schedule.heads[0] for proposal in propose(1600, 48, 25, most=400)]
    assert starts[0] == 8
    assert starts.index(10) < starts.index(5)


def test_widths_with_very_many_divisors_are_designed_quickly() -> None:
    assert len(propose(10080, 32, 5040)) == 5  # 71 head counts: all choices would take a minute


@settings(deadline=None, max_examples=50)
@given(
    width=st.sampled_from([32, 64, 80, 96, 128]),
    h_base=st.integers(2, 48),
    n_layers=st.integers(4, 80),
)
def test_every_proposal_keeps_every_rule(width: int, h_base: int, n_layers: int) -> None:
    d_model = width * h_base
    for proposal in propose(d_model, n_layers, h_base):
        assert all(f.ok for f in check_rules(proposal.schedule, d_model, h_base))


@pytest.mark.parametrize(
    ("d_model", "n_layers", "h_base", "degrees"),
    [
        (768, 12, 1, {}),
        (768, 2, 12, {}),
        (768, 12, 5, {}),
        (768, 12, 12, {"queries_per_kv": 12}),
        (768, 12, 12, {"tensor_parallel": 0}),
    ],
)
def test_shapes_without_a_design_are_refused(
    d_model: int, n_layers: int, h_base: int, degrees: dict[str, int]
) -> None:
    with pytest.raises(InputError):
        propose(d_model, n_layers, h_base, **degrees)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=20), st.integers(0, 100))
def test_controls_keep_the_head_counts(heads: list[int], seed: int) -> None:
    schedule = HeadSchedule(tuple(heads))
    shuffled = shuffle(schedule, seed)
    assert Counter(shuffled.heads) == Counter(heads)
    assert shuffled == shuffle(schedule, seed)
    assert shuffled != schedule or len(set(heads)) == 1
    assert reverse(reverse(schedule)) == schedule


def test_shuffles_differ_by_seed_and_stay_as_they_are() -> None:
    small = presets()["small"].schedule
    assert len({shuffle(small, seed) for seed in range(20)}) > 15
    # A study names its control by seed: the order must never change between releases.
    assert str(shuffle(small, 0)) == "3x1 12x2 8x1 12x1 6x2 12x1 8x1 3x1 12x2"


@pytest.mark.parametrize(
    ("name", "counts"), [("small", [6, 8, 12]), ("medium", [8, 16]), ("baseline", [12])]
)
def test_bracketing_uniforms(name: str, counts: list[int]) -> None:
    preset = presets()[name]
    uniforms = bracketing_uniforms(preset.schedule, preset.d_model)
    assert [uniform.heads[0] for uniform in uniforms] == counts
    assert all(uniform.heads == (uniform.heads[0],) * len(preset.schedule) for uniform in uniforms)
