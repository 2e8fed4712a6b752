"""Loss against learning rate on the page: what the losses say, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prism_transformer.core.table import signed
from prism_transformer.figures.style import arm_tones
from prism_transformer.reporting.answers import answer_of
from prism_transformer.reporting.contents import make_report, sentences
from prism_transformer.reporting.page import to_text
from prism_transformer.reporting.rates import rate_figure, rates
from prism_transformer.study.collected import ContrastFacts
from tests.reporting.studies import renamed, views_of
from tests.study.test_best_rates import BEST, RATES, losses, swept


def test_a_sweep_has_one_figure_with_every_seed_and_a_star_for_each_arm(tmp_path: Path) -> None:
    collected = renamed(swept(), name="sweep")
    views = views_of(tmp_path, collected)
    assert [view.envelope is not None for view in views] == [True, False, False, False]
    tones = arm_tones(["uniform"], ["uniform", "prism", "reversed"])
    drawn = rate_figure(views[0], tones)
    assert drawn is not None
    assert drawn.chart is not None
    ax: Any = drawn.chart.figure.axes[0]
    assert ax.get_xscale() == "log"
    stars = [line for line in ax.lines if line.get_marker() == "*"]
    assert [star.get_xdata()[0] for star in stars] == pytest.approx(list(BEST.values()), rel=0.1)
    for line, arm in zip([e for e in ax.lines if e not in stars], BEST, strict=True):
        assert list(line.get_xdata()) == list(RATES)
        assert list(line.get_ydata()) == pytest.approx(losses(collected, arm).mean(0))
        assert line.get_color() == tones[arm].light
    assert [len(dots.get_offsets()) for dots in ax.collections] == [16, 16, 16]
    assert rate_figure(views[1], tones) is None

    table = rates(views)
    assert [row["arm"] for row in table.rows] == list(BEST)
    assert "prism minus reversed" not in table.note
    assert "each arm's best" not in " ".join(sentences(views[0]))  # they are of no one rate
    report = make_report(views)
    (contrasts,) = [each for each in report.tables if each.key == "contrasts"]
    names = [row["contrast"] for row in contrasts.rows]
    assert "prism against reversed, each arm's best rate" in names
    assert [each.key for each in report.drawings].count("sweep-0-rates") == 1


def test_arms_at_their_best_rates_stand_under_a_heading_of_their_own(tmp_path: Path) -> None:
    views = views_of(tmp_path, renamed(swept(), name="sweep"))
    text = to_text(make_report(views))
    parts = {part.splitlines()[0]: part for part in text.split("\n### ")}
    best = parts["sweep, each arm's best learning rate"]
    assert "- optim.lr=each arm's best, prism against uniform: " in best
    others = [part for head, part in parts.items() if head.startswith("sweep, optim.lr=")]
    assert len(others) == len(RATES)
    assert not any("optim.lr=each arm's best, " in part for part in others)
    assert text.count("Best learning rates: ") == 1  # of the study as a whole, before the points
    assert text.index("Best learning rates: ") < text.index("### sweep, each arm")


def test_a_sweep_of_rates_answers_what_it_names(tmp_path: Path) -> None:
    named = (
        ContrastFacts(name="order", weights={"prism": 1.0, "reversed": -1.0}),
        ContrastFacts(name="gain", weights={"prism": 1.0, "uniform": -1.0}),
    )
    views = views_of(tmp_path, renamed(swept(), name="sweep", contrasts=named))
    assert views[0].envelope is not None
    order, gain = views[0].envelope.contrasts[-2:]
    assert (order.name, gain.name) == ("order", "gain")
    assert order.difference is not None
    answer = answer_of(views).answer
    assert " at optim.lr = " not in answer
    said = f"order (prism minus reversed: {signed(order.difference.mean)})"
    wanted = f" Decided too: {said}." if order.decided else " Undecided: order."
    assert answer.endswith(wanted)  # gain is what the answer itself says
    assert order.values["optim.lr"] == "each arm's best"


def test_a_study_at_one_rate_says_that_it_is(tmp_path: Path) -> None:
    from tests.study.frames import make_collected

    views = views_of(tmp_path, make_collected(tasks={}))
    assert "tuned for none" in sentences(views[0])[-1]
    assert rates(views).missing
