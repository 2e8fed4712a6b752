"""Loss, rate and time of every arm, computed again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest

from prism_transformer.core.table import NONE, Spread
from prism_transformer.figures.style import arm_tones
from prism_transformer.recipes.files import changed
from prism_transformer.reporting import training
from prism_transformer.reporting.contents import Report, make_report
from prism_transformer.reporting.views import View
from tests.reporting.again import Numbers, cells, drawing, of, pm
from tests.reporting.studies import beside_others, drawn, renamed, views_of


def test_results(views: list[View], numbers: list[Numbers]) -> None:
    table = training.results(views)
    assert len(table.rows) == 5
    for view, found in zip(views, numbers, strict=True):
        for arm in view.arms:
            row = cells(table, study=view.name, arm=arm)
            losses = of(found, "final_val_loss", arm)
            assert row["seeds"] == str(len(losses))
            assert row["validation loss"] == pm(losses)
            done = [s for name, who, s in found if (name, who) == ("final_val_loss", arm)]
            assert row["rate"] == pm([found["tokens_per_second", arm, s] for s in done], 0)
            assert row["training time"] == pm(
                [found["seconds", arm, s] / 3600 for s in done],
                4,  # nano's take seconds
            )
    known = cells(table, study="small", arm="prism")
    assert known["paper's loss"] == "3.3604 \u00b1 0.0010"
    assert (known["paper's rate"], known["paper's wall-clock"]) == ("2,875,000", "0.31")
    assert cells(table, study="nano", arm="prism")["paper's loss"] == NONE


def test_the_data_of_a_curve_are_means_over_seeds(report: Report) -> None:
    view = report.sections[0].view
    table = view.collected.table
    rows = table[(table["metric"] == "val_loss") & (table["arm"] == "prism")]
    shown = [row for row in drawing(report, "nano-loss").table.rows if row["arm"] == "prism"]
    steps = sorted(set(rows["step"]))
    assert len(shown) == len(steps)
    for step, row in zip(steps, shown, strict=True):
        values = [float(value) for value in rows[rows["step"] == step]["value"]]
        assert row["training"] == pytest.approx(step * 2048 / 1e3)
        loss = row["validation loss"]
        assert isinstance(loss, Spread)
        assert (loss.mean, loss.sd) == pytest.approx((mean(values), stdev(values)))


def test_gap_across_scales_has_ours_and_the_papers(report: Report) -> None:
    gaps = {
        (row["study"], row["source"]): row["gap"]
        for row in drawing(report, "gap-scales").table.rows
    }
    theirs, ours = gaps["small", "paper"], gaps["small", "ours"]
    assert isinstance(theirs, Spread)
    assert isinstance(ours, Spread)
    assert theirs.mean == pytest.approx(-0.0144)
    losses = report.sections[1].view.collected.final_loss()
    expected = losses["prism"].mean() - losses["uniform"].mean()
    assert ours.mean == pytest.approx(expected)
    both = losses["prism"].std() ** 2 + losses["uniform"].std() ** 2
    assert ours.sd == pytest.approx(both**0.5)


def test_gap_across_scales_says_whose_the_marks_are(report: Report) -> None:
    chart = drawing(report, "gap-scales").chart
    assert chart is not None
    (legend,) = chart.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ours", "the paper's"]


def test_units_of_tokens() -> None:
    assert training.tokens_unit(2e10) == (1e9, "billions of tokens")
    assert training.tokens_unit(5e6) == (1e6, "millions of tokens")
    assert training.tokens_unit(5e3) == (1e3, "thousands of tokens")
    assert training.tokens_unit(5) == (1.0, "tokens")


def test_runs(views: list[View], numbers: list[Numbers]) -> None:
    table = training.runs(views)
    assert len(table.rows) == 12 + 6
    failed = cells(table, run="reversed-seed3")
    assert (failed["state"], failed["failure"]) == ("failed", "loss is <nan> & no number")
    missing = cells(table, run="uniform-seed3")
    assert missing["rate"] == missing["hardware"] == missing["failure"] == NONE
    done = cells(table, study="nano", run="prism-seed0")
    rate = numbers[0]["tokens_per_second", "prism", 0]
    assert done["rate"] == f"{rate:,.0f}"
    assert done["training time"] == f"{numbers[0]['seconds', 'prism', 0] / 3600:.4f}"
    assert done["peak memory"] == "0.50"
    assert cells(table, study="small", run="prism-seed0")["hardware"] == "8 x NVIDIA H100"


def test_the_loss_of_masked_tokens_says_so_and_stands_beside_no_other(tmp_path: Path) -> None:
    plain = drawn()
    masked = {"model.attention": "bidirectional", "train.objective": "masked"}
    recipe = changed(plain.facts.recipe, masked, "test")
    views = views_of(tmp_path, plain, renamed(drawn("masked"), recipe=recipe))
    notes = [
        training.loss_curves(view, arm_tones([view.baseline], view.arms)).table.note
        for view in views
    ]
    assert [note.endswith("Of masked tokens only.") for note in notes] == [False, True]
    assert [training._final_gap(view) is None for view in views] == [False, True]


def test_corpora_of_a_mixture_have_their_shares(tmp_path: Path) -> None:
    plain = drawn()
    named = [{"folder": "data/web", "weight": 3.0}, {"folder": "data/code", "weight": 1.0}]
    recipe = changed(plain.facts.recipe, {"data.mixture": named}, "test")
    first, second = views_of(tmp_path, plain, renamed(drawn("mixed"), recipe=recipe))
    assert training.mixtures([first]) is None
    table = training.mixtures([first, second])
    assert table is not None
    assert [row["corpus"] for row in table.rows] == ["data/web", "data/code"]
    total = recipe.n_steps * recipe.train.batch_tokens
    for row, share in zip(table.rows, (0.75, 0.25), strict=True):
        found, tokens = row["share"], row["training tokens"]
        assert isinstance(found, Spread)
        assert isinstance(tokens, Spread)
        assert found.mean == pytest.approx(100 * share, abs=0.5)
        assert tokens.mean == pytest.approx(total * found.mean / 100)
    made = make_report([first, second])
    assert "mixtures" in {each.key for each in made.tables}
    assert "mixtures" not in {each.key for each in make_report([first]).tables}


def test_rates_taken_beside_other_workers_are_shown_marked_and_on_no_front(tmp_path: Path) -> None:
    alone, beside = drawn(), beside_others(drawn("shared"))
    first, second = views_of(tmp_path, alone, beside)
    assert "beside others" not in training.results([first]).note
    both = training.results([first, second])
    assert "beside others or other work compare nothing" in both.note
    rates = [cells(both, study=name, arm="prism")["rate"] for name in ("nano", "shared")]
    assert rates[0] == rates[1]
    table = training.runs([second])
    assert cells(table, run="prism-seed0")["hardware"] == "one, 2 cores; beside other work"
    tones = arm_tones(["uniform"], ["prism"])
    assert training.pareto_figure(first, tones).table.rows
    empty = training.pareto_figure(second, tones).table
    assert (empty.rows, empty.missing) == ((), "no run is complete that was trained alone")


def test_a_pair_that_has_only_begun_has_no_gap_over_training_yet(tmp_path: Path) -> None:
    whole = drawn()
    later = (whole.table["arm"] == "prism") & (whole.table["step"] > 0)
    (view,) = views_of(tmp_path, replace(whole, table=whole.table[~later.fillna(False)]))
    found = training.gap_figure(view, arm_tones(["uniform"], ["prism"]))
    assert "prism" not in {row["arm"] for row in found.table.rows}
