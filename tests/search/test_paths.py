"""Runs that changed on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prism_transformer.core.table import Interval
from prism_transformer.schedule import HeadSchedule
from prism_transformer.search.paths import FROM, TO, path_lines, paths_sentence, paths_table
from prism_transformer.study.collected import Collected
from tests.search.studies import study

UNIFORM, PRISM = HeadSchedule.parse("4x8"), HeadSchedule.parse("1x2 2x2 4x4")


def changed(n_seeds: int = 3) -> Collected:
    arms = {"uniform": UNIFORM, "prism": PRISM, "late": PRISM, "back": UNIFORM}
    changes = {"late": {"from": "uniform@0.9"}, "back": {"from": "prism@0.5"}}
    losses = {
        "uniform": [3.0, 3.1, 3.2], "prism": [2.9, 3.0, 3.1], "late": [2.98, 3.08, 3.17],
        "back": [2.95, 3.06, 3.15],
    }  # fmt: skip
    cut = {arm: own[:n_seeds] for arm, own in losses.items()}
    return study(arms, cut, changes=changes, factorial=False)


def test_each_against_both_ends() -> None:
    late, back = paths_table(changed()).rows
    assert (late["from"], late["to"], late["at"], late["seeds"]) == ("uniform", "prism", 0.9, 3)
    assert late[FROM] == pytest.approx(-(0.02 + 0.02 + 0.03) / 3)
    assert late[TO] == pytest.approx((0.08 + 0.08 + 0.07) / 3)
    assert back[FROM] == pytest.approx((0.05 + 0.06 + 0.05) / 3)
    interval = late[f"{FROM}, 95 %"]
    assert isinstance(interval, Interval)
    assert interval.low < -0.0233 < interval.high


def test_the_sentence_and_one_seed() -> None:
    text = paths_sentence(paths_table(changed(1)))
    assert "from uniform to prism, to uniform throughout: \u22120.0200 at 90%" in text
    assert "; to prism throughout: +0.0800 at 90%. From prism to uniform, to prism" in text
    assert text.endswith("; to uniform throughout: \u22120.0500 at 50%.")
    assert "(" not in text  # one seed has no interval
    assert "nats, 1 seed each" in text
    assert "nats, 3 seeds each" in paths_sentence(paths_table(changed()))
    some = changed()
    table = some.table.drop(some.table.index[(some.table.arm == "late") & (some.table.seed == 2)])
    fewer = replace(some, table=table)
    assert "nats, 2 or more seeds each" in paths_sentence(paths_table(fewer))
    assert paths_table(changed(1)).rows[0][f"{TO}, 95 %"] is None
    arms = {"uniform": UNIFORM, "prism": PRISM}
    plain = study(arms, {"uniform": [3.0], "prism": [2.9]}, factorial=False)
    assert paths_sentence(paths_table(plain)) == ""


def test_lines_of_the_figure_go_from_one_end_to_the_other() -> None:
    (there, line), (back, other) = path_lines(changed())
    assert (there, back) == ("uniform to prism", "prism to uniform")
    assert [share for share, _ in line] == [0.0, 0.9, 1.0]
    assert line[0][1] == pytest.approx([-0.1] * 3)
    assert line[-1][1] == [0.0] * 3
    assert other[-1][1] == line[0][1]
