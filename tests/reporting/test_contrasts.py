"""What differences of loss can bear, computed again."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
from scipy import stats

from prism_transformer.reporting.contents import Report, sentences
from prism_transformer.reporting.contrasts import contrast_figure, contrasts, differences, overview
from prism_transformer.reporting.views import View
from prism_transformer.study.collected import ContrastFacts
from tests.reporting.again import (
    T2,
    Numbers,
    cells,
    detectable,
    drawing,
    of,
    paired,
    shown,
    sign_flip,
)
from tests.reporting.studies import drawn, renamed, views_of


def pooled_sd(view: View, found: Numbers) -> float:
    """Of a run, after the means of its seed and its arm.

    Of the first three seeds: the fourth has one run alone, which says nothing of its error.
    """
    wide = np.array([of(found, "final_val_loss", arm)[:3] for arm in view.arms]).T
    rest = wide - wide.mean(0) - wide.mean(1, keepdims=True) + wide.mean()
    return sqrt((rest**2).sum() / ((wide.shape[0] - 1) * (wide.shape[1] - 1)))


def test_differences(views: list[View], numbers: list[Numbers]) -> None:
    table = differences(views)
    assert len(table.rows) == 3
    for view, found in zip(views, numbers, strict=True):
        for arm in view.others:
            row = cells(table, study=view.name, arm=arm)
            values = paired(found, "final_val_loss", arm)
            assert len(values) == 3
            half = T2 * stdev(values) / sqrt(3)
            assert row["pairs"] == "3"
            assert row["difference"] == shown(mean(values))
            low, high = shown(mean(values) - half), shown(mean(values) + half)
            assert row["95 % interval"] == f"{low} to {high}"
            assert row["s.d. of pairs"] == f"{stdev(values):.4f}"
            assert row["seed by seed"] == ", ".join(map(shown, values))
            assert row["flip p"] == f"{sign_flip(values):.3g}"
            assert row["least flip p"] == "0.25"
            assert float(row["flip p, max-T"]) >= float(row["flip p"])
            assert float(row["pooled p, Holm"]) >= float(row["pooled p"])
            assert row["decided by"] == "pooled"  # three seeds have no flip p that could
            decided = float(row["pooled p, Holm"]) < 0.05
            assert (row["verdict"] != "undecided") == decided
            if len(view.arms) == 2:  # the error of the pairs is all there is
                assert row["pooled 95 % interval"] == row["95 % interval"]
                assert row["degrees of freedom"] == "2"
                assert row["least detectable"] == f"{detectable(3, stdev(values)):.4f}"
    assert cells(table, study="small", arm="prism")["paper's"] == shown(-0.0143)


def test_an_overview_has_each_contrast_of_each_study_once(
    views: list[View], numbers: list[Numbers]
) -> None:
    table = overview([[view] for view in views])
    asked = [
        ["prism minus uniform"] + ["prism minus reversed"] * (len(view.arms) > 2) for view in views
    ]
    assert table.values("contrast") == [name for names in asked for name in names]
    for view, found in zip(views, numbers, strict=True):
        row = cells(table, study=view.facts.name, contrast="prism minus uniform")
        values = paired(found, "final_val_loss", "prism")
        assert row["difference"] == shown(mean(values))
        assert row["pairs"] == "3"


def test_contrasts(views: list[View], numbers: list[Numbers]) -> None:
    view = next(each for each in views if len(each.arms) > 2)
    found = numbers[views.index(view)]
    (row,) = [cells(contrasts(views), contrast="prism against reversed")]
    ours, theirs = (paired(found, "final_val_loss", arm) for arm in ("prism", "reversed"))
    values = [one - other for one, other in zip(ours, theirs, strict=True)]
    assert row["what"] == "prism minus reversed"
    assert row["difference"] == shown(mean(values))
    assert row["seed by seed"] == ", ".join(map(shown, values))
    assert row["flip p"] == f"{sign_flip(values):.3g}"
    assert row["degrees of freedom"] == "4"
    half = stats.t.ppf(0.975, 4) * pooled_sd(view, found) * sqrt(2 / 3)
    low, high = shown(mean(values) - half), shown(mean(values) + half)
    assert row["pooled 95 % interval"] == f"{low} to {high}"


def test_holm_counts_contrasts_too(views: list[View]) -> None:
    for view in views:
        family = [*view.compared.values(), *view.contrasts]
        single = [each.difference.p for each in family if each.difference]
        worst = min(1.0, len(single) * min(single))
        assert pytest.approx(worst) in [each.holm_p for each in family]


def test_the_figure_of_contrasts_shows_every_seed(report: Report) -> None:
    drawn = drawing(report, "nano-contrasts")
    (row,) = drawn.table.rows
    assert row["arm"] == "prism against reversed"
    assert [row[f"seed {seed}"] is not None for seed in range(4)] == [True, True, True, False]
    assert "prism against reversed" in drawn.alt
    alone = replace(report.sections[0].view, contrasts=())
    assert contrast_figure(alone, report.tones) is None


def test_sentences_name_contrasts_and_remarks(report: Report) -> None:
    view = replace(report.sections[0].view, remarks=("Something of the whole.",))
    told = sentences(view)
    assert any(each.startswith("prism against reversed: ") for each in told)
    assert told[-1] == "Something of the whole."


def test_an_estimate_that_is_adjusted_stands_beside_its_interval(views: list[View]) -> None:
    """Seed 3 of one arm alone moves no difference; without a pair, no estimate is the mean."""
    view = next(each for each in views if len(each.arms) > 2)
    test = view.compared["prism"]
    assert test.pooled is not None
    row = cells(differences(views), study=view.name, arm="prism")
    assert row["pooled difference"] == shown(test.pooled.mean)
    low, _, high = row["pooled 95 % interval"].replace("\u2212", "-").partition(" to ")
    assert (float(low) + float(high)) / 2 == pytest.approx(test.pooled.mean, abs=2e-4)


def test_a_contrast_that_names_an_arm_against_the_baseline_is_told_once(tmp_path: Path) -> None:
    named = (
        ContrastFacts(name="number", weights={"two": 1.0, "uniform": -1.0}),
        ContrastFacts(name="gain", weights={"prism": 1.0, "uniform": -1.0}),
    )
    arms = {"uniform": "8x8", "prism": "2x2 4x2 8x4", "two": "2x8", "four": "4x8"}
    study = drawn(arms=arms, seeds=range(4), tasks={})
    (view,) = views_of(tmp_path, renamed(study, contrasts=named))
    told = [line.split(":")[0] for line in sentences(view)[:3]]
    assert told == [
        "four against uniform", "number (two minus uniform)", "gain (prism minus uniform)",
    ]  # fmt: skip
    assert differences([view]).values("arm") == ["prism", "two", "four"]  # tables have all
