"""Longer sequences, passkey and needle in a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pandas as pd
import pytest

from prism_transformer.core.table import Spread
from prism_transformer.reporting.contents import make_report
from prism_transformer.reporting.context import retrieval, rises
from prism_transformer.reporting.page import to_text
from prism_transformer.reporting.views import View
from tests.reporting.again import cells, drawing
from tests.reporting.studies import drawn, renamed, views_of
from tests.study.test_lengths import longer, value


def read(folder: Path) -> list[View]:
    question = "Which reads on?"
    return views_of(folder, renamed(longer(), name="context", question=question))


def test_the_figure_has_every_seed_and_the_answer_speaks_of_it(tmp_path: Path) -> None:
    views = read(tmp_path)
    report, study = make_report(views), longer()
    figure = drawing(report, "context-lengths")
    assert len(figure.table) == 3 * (3 + 3)
    for row in figure.table.rows:
        arm, scaling, length = str(row["arm"]), str(row["scaling"]), int(str(row["length"]))
        own = "none" if length == 128 else scaling
        losses = [value(study, arm, seed, own, length) for seed in range(4)]
        assert [row[f"seed {seed}"] for seed in range(4)] == pytest.approx(losses)
        found = row["loss"]
        assert isinstance(found, Spread)
        assert (found.mean, found.sd) == pytest.approx((mean(losses), stdev(losses)))
    assert report.studies[0].front[0].key == "context-lengths"
    answer = report.studies[0].answer.answer
    assert "In sequences of 1,024 tokens, 8 times the training context" in answer
    assert "; with scaling yarn, the least rise, uniform +0.0" in answer
    assert " (nothing is decided between arms). At the training context: " in answer
    assert "in nats: with positions as they are, uniform +0.8" in answer
    assert " (decided: prism minus uniform: \u22120.4" in answer
    said = " ".join(figure.says)
    assert "with positions as they are, uniform +0.8" in said
    assert "scaling=none, frequencies (prism minus tiled): \u22120.5" in said
    assert "Loss beyond the training context" in to_text(report)
    row = cells(rises(views), scaling="none", contrast="frequencies")
    assert (row["verdict"], row["length"], row["pairs"]) == ("lower", "1,024", "4")


def test_studies_that_read_no_further_have_no_such_figure(views: list[View]) -> None:
    report = make_report(views)
    assert not [each for each in report.drawings if each.key.endswith("-lengths")]
    assert rises(views).missing
    assert retrieval(views).missing
    assert "In sequences of" not in report.studies[0].answer.answer


def test_what_is_found_again_by_depth_and_length(tmp_path: Path) -> None:
    study = drawn("search", tasks={"piqa": "acc"}, seeds=(0, 1))
    rows = [
        (arm, 0, seed, f"eval.passkey_{length}_at_{depth}.acc", None, None,
         (depth / 100 if length == 256 else 0.1) + 0.01 * seed)
        for arm in ("uniform", "prism")
        for seed in (0, 1)
        for length in (256, 1024)
        for depth in (0, 25, 50, 75, 100)
    ]  # fmt: skip
    table = pd.concat([study.table, pd.DataFrame(rows, columns=list(study.table.columns))])
    views = views_of(tmp_path, replace(study, table=table))
    shown = retrieval(views)
    assert len(shown) == 2 * 2  # arms and lengths; of needle there is nothing
    row = cells(shown, arm="prism", length="256")
    assert row["depth 25 %"] == "25.5 \u00b1 0.7"
    assert row["all depths"] == "50.5 \u00b1 0.7"
    assert (row["chance"], row["seeds"], row["task"]) == ("10", "2", "passkey")
    assert cells(shown, arm="uniform", length="1,024")["all depths"] == "10.5 \u00b1 0.7"
    assert "Passkey and needle" in to_text(make_report(views))
