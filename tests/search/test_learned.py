"""Proposals that say where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import log2
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.design import propose
from prism_transformer.schedules.rules import check_rules
from prism_transformer.search.judge import judge
from prism_transformer.search.learned import (
    Learned,
    LearnedProposal,
    Slope,
    Source,
    blocks_alike,
    blocks_source,
    effects_source,
    propose_learned,
    read_learned,
    write_learned,
)
from prism_transformer.search.scores import write_scores
from tests.search.studies import EFFECTS, factorial_study, written
from tests.search.test_solve import blocks

ROOT = Path(__file__).parents[2]


def test_effects_of_layers_become_slopes(tmp_path: Path) -> None:
    collected = factorial_study(0.001)
    verdicts = judge([written(tmp_path / "a", collected)])
    source = effects_source(collected, verdicts)
    assert source is not None
    assert [2 * each.mean for each in source.layers] == pytest.approx(EFFECTS, abs=0.002)
    assert source.halvings == 2
    assert source.runs == 64
    assert source.freedom == 45  # of 16 arms by 4 seeds: blocks of seeds and all arms are taken off
    assert source.tau == pytest.approx(1.0, abs=0.1)
    assert source.ceiling is not None


def test_block_scores_become_slopes() -> None:
    one = blocks("a", [{1: 3.2, 2: 3.1, 4: 3.0}, {1: 2.6, 2: 2.8, 4: 3.0}], {})
    other = blocks("b", [{1: 3.4, 2: 3.2, 4: 3.0}, {1: 2.6, 2: 2.8, 4: 3.0}], {})
    source = blocks_source([one, other])
    assert source is not None
    assert source.layers[0].mean == pytest.approx(0.15)
    assert source.layers[0].se == pytest.approx(0.05)
    assert source.layers[1].mean == pytest.approx(-0.2)
    assert source.freedom == 1
    assert blocks_source([one]) is None  # no error of one run
    part = blocks("c", [{1: 3.2, 4: 3.0}, {4: 3.0}], {})
    assert blocks_source([part, part]) is None  # no line through one point


def test_only_runs_that_are_alike_are_learnt_from() -> None:
    losses = [{1: 3.2, 4: 3.0}, {1: 2.6, 4: 3.0}]
    one, other, deep = blocks("a", losses, {}), blocks("b", losses, {}), blocks("c", losses * 2, {})
    deep = deep.model_copy(update={"d_model": 512})
    for every in ([deep, one, other], [one, deep, other], [one, other, deep]):
        assert blocks_alike(every) == (
            [one, other],
            ("blocks: c: d_model 512 and not 64, schedule 4x4 and not 4x2",),
        )
    assert blocks_alike([]) == ([], ())


def known() -> Learned:
    slopes = [Slope(mean=m, se=0.01) for m in (-0.03, 0.01, -0.02, 0.02)]
    source = Source(name="layer effects", model="a model", runs=9, halvings=2, layers=tuple(slopes))
    return Learned(sources=(source,))


def test_a_proposal_is_the_best_there_is_for_its_shape() -> None:
    paper, ruled, free = propose_learned(256, 4, 8, learned=known())
    assert paper.schedule == propose(256, 4, 8, most=1)[0].schedule
    assert paper.gain is None
    slopes = [each.mean for each in known().sources[0].layers]

    def predicted(heads: tuple[int, ...]) -> float:
        return sum(s * log2(8 / n) for s, n in zip(slopes, heads, strict=True))

    every = list(product((2, 4, 8), repeat=4))
    keeping = [h for h in every if all(f.ok for f in check_rules(HeadSchedule(h), 256, 8))]
    assert free.gain == pytest.approx(min(map(predicted, every)))
    assert ruled.gain == pytest.approx(min(map(predicted, keeping)))
    assert free.schedule.heads == (2, 8, 2, 8)
    assert "within the paper's rules" in ruled.source
    assert ruled.se == pytest.approx(0.01 * (2 * 2**2) ** 0.5)
    assert any("nobody has tested" in line for line in ruled.reasons)
    assert any("was not measured" in line for line in ruled.reasons)


def test_nothing_better_than_uniform_is_called_so() -> None:
    slopes = tuple(Slope(mean=m, se=0.01) for m in (0.03, 0.01, 0.02, -0.02))
    source = known().sources[0].model_copy(update={"layers": slopes})
    _, ruled, free = propose_learned(256, 4, 8, learned=Learned(sources=(source,)))
    assert ruled.schedule == HeadSchedule.uniform(8, 4)
    assert "nothing better than uniform was found within the paper's rules" in ruled.reasons
    assert not any("flattered" in line for line in ruled.reasons)
    assert any("flattered" in line for line in free.reasons)


def test_deeper_models_take_what_lies_between_and_degrees_hold() -> None:
    found = propose_learned(512, 12, 16, queries_per_kv=4, learned=known())
    assert all(n % 4 == 0 for each in found for n in each.schedule.heads)
    assert all(len(each.schedule) == 12 for each in found)
    assert min(found[-1].schedule.heads) == 4  # no further than two halvings, as was measured
    assert found[-1].schedule.heads[0] == 4
    assert found[-1].schedule.heads[-1] == 16


@pytest.mark.parametrize("n_layers", [4, 9, 13])
def test_layers_that_lean_on_one_measured_layer_share_its_error(n_layers: int) -> None:
    """The error of a gain by what it changes with each measured slope, one at a time."""
    slopes = [Slope(mean=m, se=0.01) for m in (-0.0311, 0.0107, -0.0223, 0.0197)]
    source = known().sources[0].model_copy(update={"layers": tuple(slopes)})

    def gain(slopes: Sequence[Slope]) -> LearnedProposal:
        moved = source.model_copy(update={"layers": tuple(slopes)})
        return propose_learned(256, n_layers, 8, learned=Learned(sources=(moved,)))[-1]

    found, variance = gain(source.layers), 0.0
    for layer, slope in enumerate(source.layers):
        moved = list(source.layers)
        moved[layer] = Slope(mean=slope.mean + 1e-6, se=slope.se)
        other = gain(moved)
        assert found.gain is not None
        assert other.gain is not None
        assert other.schedule == found.schedule
        variance += ((other.gain - found.gain) / 1e-6 * slope.se) ** 2
    assert found.se == pytest.approx(variance**0.5, rel=1e-6)


def test_an_error_of_few_runs_has_the_interval_of_few() -> None:
    """Student's t: with three degrees of freedom 3.18 errors to both sides."""
    source = known().sources[0].model_copy(update={"freedom": 3})
    found = propose_learned(256, 4, 8, learned=Learned(sources=(source,)))[-1]
    assert found.gain is not None
    assert found.se is not None
    half = 3.182446 * found.se
    ends = f"(95 % {found.gain - half:+.4f} to {found.gain + half:+.4f})"
    assert any(ends in line for line in found.reasons)


def test_a_ranking_that_chance_explains_is_called_so() -> None:
    source = known().sources[0]
    weak = source.model_copy(update={"tau": 0.2, "tau_interval": (-0.1, 0.5), "ceiling": 0.4})
    lines = propose_learned(256, 4, 8, learned=Learned(sources=(weak,)))[1].reasons
    assert "tau +0.20 (-0.10 to +0.50), which cannot be told from chance" in lines[-1]
    assert "one half of the seeds ranks the other with +0.40" in lines[-1]


def test_files_and_what_ships(tmp_path: Path) -> None:
    write_learned(tmp_path / "learned.json", known())
    assert read_learned(tmp_path / "learned.json") == known()
    with pytest.raises(InputError, match=r"nothing\.json"):
        read_learned(tmp_path / "nothing.json")
    write_scores(tmp_path / "blocks.json", blocks("a", [{1: 3.0, 4: 3.1}], {}))
    with pytest.raises(InputError, match="holds nothing that was learnt; `prism search evaluate`"):
        read_learned(tmp_path / "blocks.json")
    assert read_learned() == read_learned(ROOT / "results" / "search" / "learned.json")
