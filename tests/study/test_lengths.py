"""Rises of the loss in longer sequences, against a computation of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from math import sqrt
from statistics import mean, stdev

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from prism_transformer.core.table import Spread
from prism_transformer.study.collected import Collected, ContrastFacts
from prism_transformer.study.compare import compare
from prism_transformer.study.lengths import lengths_of
from prism_transformer.study.sentences import sentences
from tests.study.frames import make_collected

ARMS = {"uniform": "8x8", "prism": "2x2 4x2 8x4", "tiled": "2x2 4x2 8x4"}
SEEDS = (0, 1, 2, 3)
LENGTHS = (128, 256, 1024)
RISE = {"none": 0.3, "yarn": 0.02}
LESS = {"uniform": 0.0, "prism": -0.5, "tiled": 0.1}  # of the rise, with positions as they are


def longer(seeds: tuple[int, ...] = SEEDS) -> Collected:
    """Losses that rise by the logarithm of the length, with noise."""
    study = make_collected(arms=ARMS, seeds=seeds, tasks={})
    draw, rows = np.random.default_rng(1), []
    for seed in seeds:
        for arm in ARMS:
            for scaling, rise in RISE.items():
                for length in LENGTHS if scaling == "none" else LENGTHS[1:]:
                    steps = np.log2(length / 128)
                    less = LESS[arm] * rise if scaling == "none" else 0.0
                    loss = 3 + 0.05 * seed + (rise + less) * steps + draw.normal(0, 0.002)
                    rows.append((arm, 0, seed, f"loss_at_length.{scaling}", None, length, loss))
    table = pd.DataFrame(rows, columns=list(study.table.columns))
    table = table.astype({"step": "Int64", "index": "Int64"})
    named = (ContrastFacts(name="frequencies", weights={"prism": 1.0, "tiled": -1.0}),)
    facts = study.facts.model_copy(update={"contrasts": named})
    return replace(study, facts=facts, table=pd.concat([study.table, table]))


def value(study: Collected, arm: str, seed: int, scaling: str, length: int) -> float:
    rows = study.table
    rows = rows[(rows["arm"] == arm) & (rows["seed"] == seed) & (rows["index"] == length)]
    return float(rows[rows["metric"] == f"loss_at_length.{scaling}"]["value"].item())


def test_rises_are_of_the_same_run_and_start_from_the_training_context() -> None:
    study = longer()
    found = lengths_of(study, 0, "prism")
    assert found is not None
    assert (found.context, found.longest, found.times) == (128, 1024, 8)
    assert {name: sorted(each) for name, each in found.losses.items()} == {
        "none": [128, 256, 1024], "yarn": [128, 256, 1024],
    }  # fmt: skip
    for scaling in RISE:
        for arm in ARMS:
            for seed in SEEDS:
                own = value(study, arm, seed, "none", 128)
                rise = value(study, arm, seed, scaling, 1024) - own
                assert found.at_longest[scaling].loc[seed, arm] == pytest.approx(rise)
    assert found.best == "yarn"


def test_contrasts_of_rises_with_one_family_for_all_scalings() -> None:
    study = longer()
    found = lengths_of(study, 0, "prism")
    assert found is not None
    told = {(each.values["scaling"], each.name): each for each in found.contrasts}
    assert len(told) == 4
    assert {each.comparisons for each in told.values()} == {4}
    one = told["none", "frequencies"]
    gaps = [
        value(study, "prism", seed, "none", 1024) - value(study, "prism", seed, "none", 128)
        - value(study, "tiled", seed, "none", 1024) + value(study, "tiled", seed, "none", 128)
        for seed in SEEDS
    ]  # fmt: skip
    assert one.difference is not None
    half = stats.t.ppf(0.975, 3) * stdev(gaps) / sqrt(4)
    expected = (mean(gaps), mean(gaps) - half, mean(gaps) + half)
    test = one.difference
    assert (test.mean, test.low, test.high) == pytest.approx(expected)
    assert test.mean == pytest.approx(-0.6 * 0.3 * 3, abs=0.02)
    assert one.decided
    assert not told["yarn", "prism against uniform"].decided


def test_runs_just_collected_are_read_like_those_of_a_folder() -> None:
    """Where nothing was written yet, whole numbers beside empty places are floats."""
    study = longer()
    loose = replace(study, table=study.table.astype({"index": float}))
    found, same = (lengths_of(each, 0, "prism") for each in (loose, study))
    assert found is not None
    assert same is not None
    assert found.losses.keys() == same.losses.keys()
    pd.testing.assert_frame_equal(found.at_longest["yarn"], same.at_longest["yarn"])


def test_nothing_longer_nothing_said() -> None:
    study = longer()
    assert lengths_of(make_collected(arms=ARMS, tasks={}), 0, "prism") is None
    only = study.table["index"].isna() | (study.table["index"] == 128)
    assert lengths_of(replace(study, table=study.table[only]), 0, "prism") is None


def test_a_single_seed_rises_but_decides_nothing() -> None:
    found = lengths_of(longer((0,)), 0, "prism")
    assert found is not None
    assert found.at_longest["none"].loc[0, "uniform"] == pytest.approx(0.9, abs=0.02)
    assert not any(each.decided for each in found.contrasts)


def test_the_table_has_the_rise_of_every_arm_under_every_scaling() -> None:
    study = longer()
    found = lengths_of(study, 0, "prism")
    assert found is not None
    assert [column.key for column in found.table.columns] == [
        "arm",
        "loss",
        "none",
        "yarn",
        "seeds",
    ]
    assert "1,024 tokens, 8 times the training context" in found.table.title
    for row, arm in zip(found.table.rows, ARMS, strict=True):
        own = [value(study, arm, seed, "none", 128) for seed in SEEDS]
        far = [value(study, arm, seed, "yarn", 1024) for seed in SEEDS]
        rises = [there - here for there, here in zip(far, own, strict=True)]
        loss, rise = row["loss"], row["yarn"]
        assert isinstance(loss, Spread)
        assert isinstance(rise, Spread)
        assert (row["arm"], row["seeds"]) == (arm, 4)
        assert (loss.mean, loss.sd) == pytest.approx((mean(own), stdev(own)))
        assert (rise.mean, rise.sd) == pytest.approx((mean(rises), stdev(rises)))


def test_a_comparison_tells_of_longer_sequences_too() -> None:
    comparison = compare(longer())
    (found,) = comparison.lengths
    assert found is not None
    assert [each.name for each in found.told] == ["prism against uniform", "frequencies"] * 2
    told = [line for line in sentences(comparison) if line.startswith("rise of the loss in 1,024")]
    assert len(told) == 4
    assert told[0].startswith("rise of the loss in 1,024 tokens: scaling=none, prism against unif")
    (plain,) = json.loads(json.dumps(comparison.to_json(), allow_nan=False))["lengths"]
    study = longer()
    assert plain["losses"]["yarn"]["1024"]["tiled"] == pytest.approx(
        [value(study, "tiled", seed, "yarn", 1024) for seed in SEEDS]
    )
    assert len(plain["contrasts"]) == 4
    assert compare(make_collected(arms=ARMS, tasks={})).lengths == (None,)
