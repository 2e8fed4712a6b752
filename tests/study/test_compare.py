from __future__ import annotations

import json
from dataclasses import replace
from math import isnan
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from prism_transformer.errors import InputError
from prism_transformer.study.compare import (
    Comparison,
    Row,
    arm_rows,
    compare,
    sentence,
)
from prism_transformer.study.statistics import paired, seeds_needed
from prism_transformer.study.table import (
    COLUMNS,
    ITEM_COLUMNS,
    Collected,
    read_collected,
    write_collected,
)
from prism_transformer.terminal import row_table
from tests.study.frames import make_collected

pytestmark = pytest.mark.filterwarnings("error")

FOUR = {"uniform": "8x8", "prism": "2x2 4x2 8x4", "reversed": "8x4 4x2 2x2", "fewer": "4x8"}


def only(comparison: Comparison) -> Row:
    (row,) = comparison.rows
    return row


def with_differences(*differences: float, comparisons: int = 1) -> Row:
    """A row that found just these."""
    row, found = only(compare(make_collected())), paired(differences)
    return replace(
        row,
        difference=found,
        adjusted_p=min(1, found.p * comparisons),
        comparisons=comparisons,
        seeds_needed=seeds_needed(found.mean, found.sd),
    )


def test_rates_of_two_machines_are_not_compared() -> None:
    collected = make_collected(seeds=range(4))
    assert len(only(compare(collected)).throughput.ratios) == 4  # type: ignore[union-attr]
    collected.facts["runs"][0]["hardware"] = {"processor": "another"}
    row = only(compare(collected))
    assert row.throughput is not None
    rates = collected.by_seed("tokens_per_second").loc[1:]
    assert row.throughput.ratios == pytest.approx(rates["prism"] / rates["uniform"])
    assert len(row.seeds) == 4  # losses are, wherever they were trained


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
        assert len(arm_rows(found)) == len(arms)
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


def test_a_loss_that_is_no_number_counts_as_no_run() -> None:
    collected = make_collected()
    table = collected.table.copy()
    lost = (table["arm"] == "prism") & (table["seed"] == 2) & table["metric"].str.contains("loss")
    table.loc[lost, "value"] = np.inf
    row = only(compare(replace(collected, table=table)))
    assert row.seeds == (0, 1)


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
        compare(replace(collected, facts=collected.facts | {"baseline": "other"}))


# -- several arms and points ---------------------------------------------------------------------


def test_holm_counts_all_arms_and_points() -> None:
    points = [{"optim.lr": 0.001}, {"optim.lr": 0.003}]
    found = compare(make_collected(arms=FOUR, points=points, seeds=range(6), effect=-0.05))
    assert [(row.point, row.arm.name) for row in found.rows] == [
        (point, name) for point in (0, 1) for name in ("prism", "reversed", "fewer")
    ]
    assert [row.values for row in found.rows[::3]] == points
    for row in found.rows:
        assert row.comparisons == 6
        assert row.difference is not None
        assert row.difference.p == 2 / 2**6
        assert row.adjusted_p == pytest.approx(6 * 2 / 2**6)


def test_an_arm_that_is_missing_is_not_counted() -> None:
    states = {("fewer", 0, seed): "missing" for seed in range(3)}
    assert [row.comparisons for row in compare(make_collected(arms=FOUR, states=states)).rows] == [
        2
    ] * 3


def test_json_has_null_and_no_nan() -> None:
    found = compare(make_collected(seeds=(0,))).to_json()
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text) == found
    (row,) = found["rows"]
    assert row["difference"]["low"] is None
    assert row["arm"]["schedule"] == "2x2 4x2 8x4"
    assert row["benchmarks"][0]["items"]["n_items"] == 40


# -- words ---------------------------------------------------------------------------------------


def test_a_sentence_within_noise() -> None:
    assert sentence(with_differences(-0.0100, -0.0040, -0.0043)) == (
        "prism against uniform: -0.0061 nats (95 % interval -0.0145 to +0.0023, 3 seeds): "
        "within noise; this study could have seen 0.0110 or more; about 5 seeds would settle an "
        "effect of this size."
    )


def test_a_sentence_with_a_clear_difference() -> None:
    lower = sentence(with_differences(-0.010, -0.012, -0.009, -0.011, -0.013, -0.010))
    assert lower == (
        "prism against uniform: -0.0108 nats (95 % interval -0.0124 to -0.0093, 6 seeds): "
        "lower (better) in all 6 seeds; the interval excludes 0; sign-flip p 0.0312."
    )
    higher = sentence(with_differences(0.010, 0.012, 0.009, 0.011, 0.013, -0.0001))
    assert "higher (worse) in 5 of 6 seeds" in higher
    assert "better" not in higher


def test_a_sentence_says_what_few_seeds_and_many_arms_take_away() -> None:
    text = sentence(with_differences(-0.010, -0.0101, -0.0102, comparisons=3))
    assert text.endswith(
        "lower (better) in all 3 seeds; the interval excludes 0; sign-flip p 0.25 (0.25 is the "
        "least that 3 seeds can give), 0.75 after Holm over 3 comparisons."
    )


def test_sentences_that_cannot_say_much() -> None:
    row = with_differences(-0.0061)
    assert sentence(row) == "prism against uniform: -0.0061 nats, one seed: no interval."
    assert sentence(replace(row, difference=None)).endswith("no seed is complete in both arms.")
    assert sentence(with_differences(0, 0, 0)).endswith("the same loss in all 3 seeds.")
    far = sentence(with_differences(0.01, -0.01, 0.01, -0.01))
    assert "not even 10,000 seeds would settle" in far


def test_a_sentence_shows_differences_however_small() -> None:
    assert "-0.0000050 nats" in sentence(with_differences(-4e-6, -5e-6, -6e-6, -5e-6))


def test_a_sentence_names_its_point() -> None:
    found = compare(make_collected(points=[{"optim.lr": 0.001}, {"optim.lr": 0.003}]))
    assert sentence(found.rows[1]).startswith("optim.lr=0.003, prism against uniform: ")


def test_noise_is_called_noise_and_an_effect_is_found() -> None:
    """Of studies without an effect about one in twenty has an interval that excludes 0."""
    verdicts = {
        effect: [
            "within noise" in sentence(row)
            for row in compare(
                make_collected(
                    points=[{"optim.lr": lr} for lr in range(30)],
                    seeds=range(4),
                    effect=effect,
                    tasks={},
                    steps=(0, 1),
                )
            ).rows
        ]
        for effect in (0.0, -0.03)
    }
    assert 25 <= sum(verdicts[0.0]) < 30
    assert sum(verdicts[-0.03]) <= 2


def test_rows_for_a_terminal() -> None:
    states = {("fewer", 0, seed): "missing" for seed in range(3)} | {("prism", 0, 0): "failed"}
    rows = arm_rows(compare(make_collected(arms=FOUR, states=states)))
    assert [row["arm"] for row in rows] == list(FOUR)
    assert [row["seeds"] for row in rows] == ["3", "2 of 3", "3", "0 of 3"]
    baseline, prism, _, fewer = rows
    assert baseline["difference"] == ""
    assert baseline["loss"].startswith("3.")
    assert " +- " in prism["loss"]
    assert " to " in prism["interval"]
    assert fewer["loss"] == fewer["p"] == fewer["speed"] == ""
    assert len(row_table(rows).columns) == 9
    swept = arm_rows(compare(make_collected(points=[{"optim.lr": 0.001}, {"optim.lr": 0.003}])))
    assert [row["optim.lr"] for row in swept] == ["0.001", "0.001", "0.003", "0.003"]
