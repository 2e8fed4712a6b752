from __future__ import annotations

import json
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from prism_transformer.core.errors import InputError
from prism_transformer.core.table import Interval
from prism_transformer.study.collected import (
    COLUMNS,
    ITEM_COLUMNS,
    Collected,
    read_collected,
    write_collected,
)
from prism_transformer.study.compare import ArmContrast, Comparison, compare
from prism_transformer.study.contrasts import Lost
from prism_transformer.study.sentences import sentence
from tests.study.frames import make_collected

pytestmark = pytest.mark.filterwarnings("error")

FOUR = {"uniform": "8x8", "prism": "2x2 4x2 8x4", "reversed": "8x4 4x2 2x2", "fewer": "4x8"}


def only(comparison: Comparison) -> ArmContrast:
    (row,) = comparison.rows
    return row


def changed(collected: Collected, **facts: Any) -> Collected:
    """The same numbers with other facts about them."""
    return replace(collected, facts=collected.facts.model_copy(update=facts))


def test_rates_of_two_machines_are_not_compared() -> None:
    collected = make_collected(seeds=range(4))
    assert len(only(compare(collected)).throughput.ratios) == 4  # type: ignore[union-attr]
    first, *rest = collected.facts.runs
    elsewhere = first.model_copy(update={"hardware": {"processor": "another"}})
    row = only(compare(changed(collected, runs=(elsewhere, *rest))))
    assert row.throughput is not None
    rates = collected.by_seed("tokens_per_second").loc[1:]
    assert row.throughput.ratios == pytest.approx(rates["prism"] / rates["uniform"])
    assert len(row.seeds) == 4  # losses are, wherever they were trained


def test_rates_taken_beside_other_workers_are_not_compared() -> None:
    collected = make_collected(seeds=range(4))
    first, *rest = collected.facts.runs
    beside = first.model_copy(update={"sessions": (first.sessions[0] | {"workers": 2},)})
    row = only(compare(changed(collected, runs=(beside, *rest))))
    assert row.throughput is not None
    rates = collected.by_seed("tokens_per_second").loc[1:]
    assert row.throughput.ratios == pytest.approx(rates["prism"] / rates["uniform"])
    assert (row.rates_beside_others, len(row.seeds)) == (1, 4)


# -- rows ----------------------------------------------------------------------------------------


def test_losses_are_compared_seed_by_seed() -> None:
    collected = make_collected(seeds=range(6))
    row = only(compare(collected))
    wide = collected.final_loss()
    assert row.seeds == (0, 1, 2, 3, 4, 5)
    assert (row.arm.name, row.arm.schedule) == ("prism", "2x2 4x2 8x4")
    assert row.difference is not None
    expected = stats.ttest_rel(wide["prism"], wide["uniform"]).confidence_interval(0.95)
    assert (row.difference.low, row.difference.high) == pytest.approx(tuple(expected))
    assert row.difference.differences == pytest.approx(tuple(wide["prism"] - wide["uniform"]))
    assert row.difference.mean == pytest.approx(-0.02, abs=0.006)
    assert row.arm.loss is not None
    assert row.arm.loss.mean == pytest.approx(wide["prism"].mean())
    assert row.baseline.loss is not None
    assert row.baseline.loss.sd == pytest.approx(wide["uniform"].std())


def test_the_order_of_rows_in_the_table_does_not_matter() -> None:
    collected = make_collected()
    shuffled = replace(
        collected,
        table=collected.table.sample(frac=1, random_state=1),
        items=collected.items.sample(frac=1, random_state=1),
    )
    assert compare(shuffled).rows == compare(collected).rows


def test_what_was_written_compares_the_same(tmp_path: Path) -> None:
    collected = make_collected(states={("prism", 0, 1): "failed"})
    write_collected(tmp_path, collected)
    assert compare(read_collected(tmp_path)) == compare(collected)


def test_throughput_is_a_ratio_by_seed() -> None:
    row = only(compare(make_collected(speed=1.05)))
    assert row.throughput is not None
    assert row.throughput.mean == pytest.approx(1.05, abs=0.01)
    assert row.parity is not None
    assert not row.parity.equal
    same = only(compare(make_collected(speed=1.0, seeds=range(8))))
    assert same.parity is not None
    assert same.parity.equal


def test_the_gap_ends_at_the_difference_and_counts_tokens() -> None:
    row = only(compare(make_collected()))
    assert row.gap is not None
    assert row.difference is not None
    assert row.gap.tokens == tuple(step * 2048 for step in range(0, 121, 20))
    assert (row.gap.mean[-1], row.gap.low[-1], row.gap.high[-1]) == pytest.approx(
        (row.difference.mean, row.difference.low, row.difference.high)
    )


def test_a_swept_batch_changes_what_a_step_counts() -> None:
    points = [{"train.batch_tokens": 2048}, {"train.batch_tokens": 4096}]
    first, second = compare(make_collected(points=points)).rows
    assert first.gap is not None
    assert second.gap is not None
    assert second.gap.tokens == tuple(2 * each for each in first.gap.tokens)


def test_a_lower_curve_reaches_the_baselines_end_with_fewer_tokens() -> None:
    row = only(compare(make_collected(effect=-0.05)))
    assert [each.seed for each in row.reach] == [0, 1, 2]
    for each in row.reach:
        assert each.baseline_tokens == 120 * 2048
        assert each.tokens is not None
        saved = 1 - each.tokens / each.baseline_tokens
        assert each.saved == pytest.approx(saved)
        assert 0 < saved < 0.3
    worse = only(compare(make_collected(effect=0.05)))
    assert [(each.tokens, each.saved) for each in worse.reach] == [(None, None)] * 3


def test_a_baseline_that_was_there_before_its_end_is_taken_at_its_word() -> None:
    collected = make_collected(seeds=(0,))
    table = collected.table.copy()
    curve = (table["metric"] == "val_loss") & (table["arm"] == "uniform")
    table.loc[curve & (table["step"] == 100), "value"] = 3.0
    (reach,) = only(compare(replace(collected, table=table))).reach
    assert 80 * 2048 < reach.baseline_tokens < 100 * 2048
    assert reach.saved is not None
    assert reach.saved < 0  # its rival, which never dips, needs more


# -- what is missing -----------------------------------------------------------------------------


def test_only_seeds_complete_in_both_arms_pair() -> None:
    states = {("prism", 0, 0): "failed", ("uniform", 0, 1): "incomplete"}
    row = only(compare(make_collected(seeds=(0, 1, 2, 3), states=states)))
    assert row.seeds == (2, 3)
    assert row.arm.loss is not None
    assert row.arm.loss.n == 3
    assert row.difference is not None
    assert row.difference.n == 2
    assert row.throughput is not None
    assert len(row.throughput.ratios) == 2
    assert [each.seed for each in row.reach] == [2, 3]
    assert all(each.items and each.items.n_seeds == 2 for each in row.benchmarks)


def test_one_seed_has_a_difference_and_no_interval() -> None:
    row = only(compare(make_collected(seeds=(7,))))
    assert row.difference is not None
    assert row.difference.n == 1
    assert isnan(row.difference.low)
    assert row.pooled is None
    assert row.seeds_needed is None
    assert row.gap is not None
    assert isnan(row.gap.low[-1])


def test_an_arm_without_a_run_leaves_its_fields_empty() -> None:
    states = {("prism", 0, seed): "missing" for seed in range(3)}
    row = only(compare(make_collected(states=states)))
    assert row.baseline.loss is not None
    assert row.arm.loss is None
    assert row.difference is None
    assert row.throughput is None
    assert row.gap is None
    assert (row.seeds, row.reach, row.benchmarks) == ((), (), ())
    assert isnan(row.adjusted_p)


@pytest.mark.parametrize("arms", [{"uniform": "8x8"}, FOUR], ids=["one arm", "four arms"])
def test_nothing_at_all_is_no_crash(arms: dict[str, str]) -> None:
    whole = make_collected(arms=arms)
    empty = Collected(
        whole.facts, pd.DataFrame(columns=COLUMNS), pd.DataFrame(columns=ITEM_COLUMNS)
    )
    for collected in (whole, empty):
        found = compare(collected)
        assert len(found.rows) == len(arms) - 1
        assert len(found.table) == len(arms)
        assert len(found.contrast_table) == len(found.every)
        assert all(sentence(row) for row in found.rows)
        assert json.dumps(found.to_json(), allow_nan=False)


def test_no_evaluation_and_no_throughput() -> None:
    collected = make_collected(tasks={})
    table = collected.table[collected.table["metric"] != "tokens_per_second"]
    row = only(compare(replace(collected, table=table)))
    assert row.benchmarks == ()
    assert row.throughput is None
    assert row.parity is None
    assert row.difference is not None


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_loss_that_is_no_number_counts_as_no_run(value: float) -> None:
    collected = make_collected()
    table = collected.table.copy()
    lost = (table["arm"] == "prism") & (table["seed"] == 2) & table["metric"].str.contains("loss")
    table.loc[lost, "value"] = value
    comparison = compare(replace(collected, table=table))
    row = only(comparison)
    assert row.seeds == (0, 1)
    assert row.lost == (Lost(0, "prism", 2, True, "its final loss is not finite"),)
    assert comparison.lost == row.lost


def test_a_validation_that_is_no_number_is_left_out_of_curves() -> None:
    collected = make_collected()
    table = collected.table.copy()
    burst = (table["metric"] == "val_loss") & (table["step"] == 40) & (table["seed"] == 1)
    table.loc[burst & (table["arm"] == "prism"), "value"] = np.inf
    row = only(compare(replace(collected, table=table)))
    assert row.gap is not None
    assert row.gap.tokens == tuple(step * 2048 for step in (0, 20, 60, 80, 100, 120))
    assert len(row.reach) == 3


def test_a_baseline_that_is_no_arm_is_refused() -> None:
    collected = make_collected()
    with pytest.raises(InputError, match="no arm 'other'"):
        compare(changed(collected, baseline="other"))


# -- several arms and points ---------------------------------------------------------------------


def test_p_values_are_adjusted_for_all_contrasts_and_points() -> None:
    points = [{"optim.lr": 0.001}, {"optim.lr": 0.003}]
    found = compare(make_collected(arms=FOUR, points=points, seeds=range(6), effect=-0.05))
    assert [(row.point, row.arm.name) for row in found.rows] == [
        (point, name) for point in (0, 1) for name in ("prism", "reversed", "fewer")
    ]
    assert [row.values for row in found.rows[::3]] == points
    assert [each.name for each in found.contrasts[:2]] == [
        "prism against reversed",
        "prism against fewer",
    ]
    for row in found.rows:
        assert row.comparisons == 2 * 5
        assert row.difference is not None
        assert row.difference.p == 2 / 2**6
        assert row.holm_p == pytest.approx(10 * 2 / 2**6)
        assert row.adjusted_p == pytest.approx(2 / 2**6)  # joint flips: clear ones stay clear


def test_an_arm_that_is_missing_is_not_counted() -> None:
    states = {("fewer", 0, seed): "missing" for seed in range(3)}
    found = compare(make_collected(arms=FOUR, states=states))
    assert [each.comparisons for each in found.every] == [3] * 5
    assert found.settled == 0


def test_json_has_null_and_no_nan() -> None:
    found = compare(make_collected(seeds=(0,))).to_json()
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text) == found
    (row,) = found["rows"]
    assert row["difference"]["low"] is None
    assert row["arm"]["schedule"] == "2x2 4x2 8x4"
    before = {"point", "values", "arm", "baseline", "seeds", "difference", "adjusted_p", "gap"}
    before |= {"comparisons", "seeds_needed", "throughput", "parity", "reach", "benchmarks"}
    assert before < row.keys()
    assert {"name", "seeds", "points", "baselines", "rows", "contrasts", "lost"} < found.keys()
    assert row["benchmarks"][0]["items"]["n_items"] == 40


# -- the tables ----------------------------------------------------------------------------------


def test_the_table_of_arms() -> None:
    states = {("fewer", 0, seed): "missing" for seed in range(3)} | {("prism", 0, 0): "failed"}
    comparison = compare(make_collected(arms=FOUR, states=states))
    table = comparison.table
    assert table.values("arm") == [*FOUR, "prism, seed 0"]
    assert table.values("seeds") == ["3", "2 of 3", "3", "0 of 3", "failed"]
    baseline, prism, _, fewer, _ = table.rows
    assert baseline["difference"] is None
    difference = comparison.rows[0].difference
    assert difference is not None
    assert prism["difference"] == difference.mean
    assert prism["interval"] == Interval(difference.low, difference.high)
    shown = dict(zip([column.key for column in table.columns], table.texts(prism), strict=True))
    assert " \u00b1 " in shown["loss"]
    assert " to " in shown["interval"]
    assert fewer["loss"] is fewer["adjusted p"] is fewer["speed"] is None
    assert len(table.columns) == 9
    assert ">2 of 3</td>" in table._repr_html_()
    points = [{"optim.lr": 0.001}, {"optim.lr": 0.003}]
    swept = compare(make_collected(points=points)).table
    assert swept.values("optim.lr") == ["0.001", "0.001", "0.003", "0.003"]


def test_the_table_of_one_seed_has_no_interval_and_no_test() -> None:
    _, prism = compare(make_collected(seeds=(0,))).table.rows
    assert prism["difference"] is not None
    assert prism["interval"] is prism["adjusted p"] is None
    assert prism["by"] == ""
