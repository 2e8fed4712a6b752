"""What stands first on a page, held against the numbers in the table."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from prism_transformer.reporting.answers import answer_of
from prism_transformer.reporting.views import View
from prism_transformer.study.collected import ContrastFacts, LooksFacts, PlanFacts
from prism_transformer.study.peeking import peeks
from tests.reporting.again import Numbers, paired
from tests.reporting.studies import drawn, renamed, views_of

LOOKS = LooksFacts(seeds=(8, 16))
CONTROLS = {"uniform": "8x8", "prism": "2x2 4x2 8x4", "two": "2x8"}


def test_the_answer_has_the_mean_of_the_pairs(views: list[View], numbers: list[Numbers]) -> None:
    found = answer_of(views[:1])
    gap = mean(paired(numbers[0], "final_val_loss", "prism"))
    assert gap < 0
    assert f"prism ends {abs(gap):.4f} nats lower than uniform" in found.answer
    assert found.question == views[0].facts.question
    assert found.numbers[0].startswith("prism against uniform: ")


def test_an_undecided_difference_is_called_so(tmp_path: Path) -> None:
    found = answer_of(views_of(tmp_path, drawn(effect=0.0, noise=0.05)))
    assert found.answer.startswith("Undecided. prism ends")


def test_the_doubt_names_the_control_that_cannot_be_told_apart(tmp_path: Path) -> None:
    same = drawn(arms=CONTROLS, effect={"prism": -0.1, "two": -0.1}, seeds=range(8))
    view = views_of(tmp_path, same)[0]
    (gap,) = [each.difference for each in view.contrasts if "two" in each.weights]
    assert gap is not None
    found = answer_of([view])
    assert f"Its closest control, two, is {abs(gap.mean):.3f} nats away" in found.doubt
    assert "one learning rate, 0.003, was used for all arms and tuned for none" in found.doubt
    apart = drawn(arms=CONTROLS, effect={"prism": -0.1, "two": 0.1}, seeds=range(8))
    (tmp_path / "apart").mkdir()
    assert "control" not in answer_of(views_of(tmp_path / "apart", apart)).doubt


def test_contrasts_that_a_study_names_are_answered(tmp_path: Path) -> None:
    asked = (ContrastFacts(name="number", weights={"two": 1.0, "uniform": -1.0}),)
    study = drawn(arms=CONTROLS, effect={"prism": -0.1, "two": -0.1}, seeds=range(8))
    (view,) = views_of(tmp_path, renamed(study, contrasts=asked))
    (gap,) = [each.difference for each in view.contrasts]
    assert gap is not None
    said = f"Decided too: number (two minus uniform: \u2212{abs(gap.mean):.4f})."
    assert said in answer_of([view]).answer


def test_a_contrast_may_be_decided_alone(tmp_path: Path) -> None:
    asked = (ContrastFacts(name="number", weights={"two": 1.0, "uniform": -1.0}),)
    study = drawn(arms=CONTROLS, effect={"prism": 0.0, "two": -0.1}, seeds=range(8))
    answer = answer_of(views_of(tmp_path, renamed(study, contrasts=asked))).answer
    assert answer.startswith("Undecided. ")
    assert "Decided: number (two minus uniform: " in answer


def test_one_arm_and_a_sweep(tmp_path: Path) -> None:
    alone = views_of(tmp_path, drawn(arms={"uniform": "8x8"}))
    assert answer_of(alone).answer.startswith("One arm only")
    (tmp_path / "sweep").mkdir()
    points = [{"optim.lr": 0.001}, {"optim.lr": 0.003}]
    swept = views_of(tmp_path / "sweep", drawn(points=points))
    found = answer_of(swept)
    lower = sum(
        (view.scalar("final_val_loss")["prism"] - view.scalar("final_val_loss")["uniform"]).mean()
        < 0
        for view in swept
    )
    assert found.answer.startswith(f"prism ends lower than uniform at {lower} of 2 settings")
    assert len(found.numbers) == 2
    assert found.doubt.startswith("Learning rates 0.001 and 0.003 were used for all arms and tuned")


def test_the_doubt_says_that_looks_were_changed(tmp_path: Path) -> None:
    plans = (PlanFacts(looks=None, looked=(4,)), PlanFacts(looks=LOOKS, looked=(8,)))
    study = drawn(seeds=range(8), tasks={})
    views = views_of(tmp_path, renamed(study, looks=LOOKS, looked=(4, 8), plans=plans))
    seen = peeks(views[0].facts)
    assert seen is not None
    assert answer_of(views).doubt.startswith(
        "Its looks were changed after it had been seen: of studies without a difference "
        f"about {100 * seen.alarms:.2g} % find one; one learning rate"
    )


def test_while_runs_come_in_nothing_is_decided(tmp_path: Path) -> None:
    states = {("prism", 0, 2): "missing", ("uniform", 0, 2): "missing"}
    views = views_of(tmp_path, drawn(states=states, noise=1e-5))
    found = answer_of(views, live=True)
    assert found.answer.startswith("Nothing yet: 4 of 6 runs are complete. So far prism ends")
    assert "chance" not in found.answer
    assert found.numbers == ()
    (tmp_path / "begun").mkdir()
    none = {(arm, 0, n): "missing" for arm in ("uniform", "prism") for n in range(3)}
    nothing = answer_of(views_of(tmp_path / "begun", drawn(states=none)), live=True)
    assert nothing.answer == "Nothing yet: 0 of 6 runs are complete."
