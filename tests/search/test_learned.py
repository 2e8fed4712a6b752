"""Proposals that say where they come from."""

from __future__ import annotations

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
    Slope,
    Source,
    blocks_source,
    effects_source,
    propose_learned,
    read_learned,
    write_learned,
)
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
    assert blocks_source([one]) is None  # no error of one run


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


def test_a_ranking_that_chance_explains_is_called_so() -> None:
    source = known().sources[0]
    weak = source.model_copy(update={"tau": 0.2, "tau_interval": (-0.1, 0.5), "ceiling": 0.4})
    lines = propose_learned(256, 4, 8, learned=Learned(sources=(weak,)))[1].reasons
    assert "tau +0.20 (-0.10 to +0.50), which is no better than chance" in lines[-1]
    assert "reach +0.40" in lines[-1]


def test_files_and_what_ships(tmp_path: Path) -> None:
    write_learned(tmp_path / "learned.json", known())
    assert read_learned(tmp_path / "learned.json") == known()
    with pytest.raises(InputError, match=r"nothing\.json"):
        read_learned(tmp_path / "nothing.json")
    assert read_learned() == read_learned(ROOT / "results" / "search" / "learned.json")
