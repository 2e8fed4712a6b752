"""Predictors whose worth is known, against runs whose losses are."""

from __future__ import annotations

from math import isnan
from pathlib import Path

import pytest

from prism_transformer.recipes.files import load_recipe
from prism_transformer.schedule import HeadSchedule
from prism_transformer.search.judge import (
    CEILING,
    EFFECTS,
    MEAN_HEADS,
    RANDOM,
    comparable,
    judge,
    read_truths,
)
from prism_transformer.search.scores import OneShot, Settings, file_of, find_scores, write_scores
from prism_transformer.study.factorial import schedules
from tests.search import studies
from tests.search.studies import factorial_study, study, written

OTHER_DATA = load_recipe("base/nano", ["data.corpus=other", "train.seed=9", "run.val_every=7"])


def oracle(folder: Path, sign: float, run: str = "oracle", **changes: object) -> Path:
    """A one-shot file that knows the truth, or its opposite."""
    losses = {str(s): sign * studies._sum(s) for s in schedules(8, 1, 4).values()}
    scores = OneShot(
        run=run, seed=0, step=1536, d_model=64, h_base=4, queries_per_kv=1, lr=1.6e-2,
        asked=Settings(windows=1), sampling="layers 1/4x8", losses=losses,
    )  # fmt: skip
    scores = scores.model_copy(update=changes)
    write_scores(file_of(folder, "one-shot", scores.asked, f"{run}-"), scores)
    return folder


def test_a_predictor_that_knows_has_tau_1_and_one_that_errs_minus_1(tmp_path: Path) -> None:
    truth = written(tmp_path / "truth", factorial_study(noise=0.0))
    found = judge([truth], [oracle(tmp_path / "right", 1.0)])
    by_name = {each.predictor: each for each in found.judged}
    assert list(by_name) == ["one-shot", EFFECTS, MEAN_HEADS, RANDOM, CEILING]
    assert by_name["one-shot"].tau == pytest.approx(1.0)
    assert by_name["one-shot"].regret == 0.0
    assert by_name["one-shot"].tau_interval == pytest.approx((1.0, 1.0))
    assert by_name[CEILING].tau == by_name[EFFECTS].tau == pytest.approx(1.0)
    assert by_name[RANDOM].tau == 0.0
    assert by_name[RANDOM].tau_interval[0] < 0 < by_name[RANDOM].tau_interval[1]
    assert found.left_out == ("known: blocks: no run was asked",)
    wrong = judge([truth], [oracle(tmp_path / "wrong", -1.0)]).judged[0]
    assert wrong.tau == pytest.approx(-1.0)
    values = [studies._sum(s) for s in schedules(8, 1, 4).values()]
    assert wrong.regret == pytest.approx(max(values) - min(values))
    chance = sum(values) / len(values) - min(values)
    assert by_name[RANDOM].regret == pytest.approx(chance)


def test_noise_lowers_the_ceiling_and_what_learns_from_it(tmp_path: Path) -> None:
    quiet = judge([written(tmp_path / "a", factorial_study(0.01))]).judged
    loud = judge([written(tmp_path / "b", factorial_study(3.0))]).judged
    tau = {
        name: {each.predictor: each.tau for each in judged}
        for name, judged in (("quiet", quiet), ("loud", loud))
    }
    assert tau["quiet"][CEILING] > 0.8
    assert tau["quiet"][EFFECTS] > tau["quiet"][CEILING]  # eight numbers of sixteen: less noise
    assert abs(tau["loud"][CEILING]) < 0.3
    assert all(-1 <= each.tau_interval[0] <= each.tau_interval[1] <= 1 for each in quiet)


def test_one_seed_has_no_ceiling_and_no_effects(tmp_path: Path) -> None:
    found = judge([written(tmp_path / "a", factorial_study(0.01, n_seeds=1))])
    by_name = {each.predictor: each for each in found.judged}
    assert EFFECTS not in by_name
    assert isnan(by_name[CEILING].tau)
    assert any(EFFECTS in line for line in found.left_out)
    assert found.table.rows[-1]["tau"] is None


def test_an_unfinished_study_is_judged_by_what_is_there(tmp_path: Path) -> None:
    """Seeds that every schedule has; without any, those that have what the fullest seed has."""
    arms = {str(n): HeadSchedule.uniform(n, 2) for n in (1, 2, 4, 8, 16)}
    losses = {"1": [1.0, 1.1], "2": [2.0], "4": [3.0], "8": [4.0], "16": [5.0]}
    partial = study(arms, losses, factorial=False)
    (first, *_) = judge([written(tmp_path / "a", partial)]).judged
    assert (first.predictor, first.arms, first.seeds) == (MEAN_HEADS, 5, 1)
    assert first.tau == pytest.approx(1.0)
    unbegun = {name: [each[0], each[0] + 0.1] for name, each in losses.items()} | {"16": []}
    (first, *_) = judge([written(tmp_path / "c", study(arms, unbegun, factorial=False))]).judged
    assert (first.arms, first.seeds) == (4, 2)
    few = study(arms, {"1": [1.0], "2": [2.0], "4": [3.0]}, factorial=False)
    found = judge([written(tmp_path / "b", few)])
    assert found.judged == ()
    assert found.left_out == ("known: fewer than 4 schedules have a finished run",)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lr": 4e-3}, "learning rate 0.004 and not 0.016"),
        ({"d_model": 128}, "d_model 128 and not 64"),
        ({"sampling": "layers 1/4x6"}, "layers 6 and not 8"),
        ({"h_base": 8, "queries_per_kv": 2}, "h_base 8 and not 4, queries_per_kv 2 and not 1"),
        ({"objective": "masked"}, "objective masked and not next"),
        ({"boundaries": "isolate"}, "boundaries isolate and not cross"),
        ({"step": 768}, "step 768 and not 1536"),
        ({"recipe": OTHER_DATA}, "data.corpus: sotu -> other"),
    ],
)
def test_other_runs_than_the_truths_do_not_predict(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    (truth,) = read_truths(written(tmp_path / "truth", factorial_study(0.0)), [])
    place = oracle(tmp_path / "scores", 1.0, "oracle", **changes)
    assert comparable(truth, find_scores([place])) == ([], (f"oracle: {reason}",))
    used, left = comparable(truth, find_scores([oracle(place, 1.0, "like")]))
    assert ([each.run for each in used], left) == (["like"], (f"oracle: {reason}",))


def test_only_losses_that_were_asked_alike_are_averaged(tmp_path: Path) -> None:
    """Of two settings that both runs have the plain one; a run that lacks it is named."""
    (truth,) = read_truths(written(tmp_path / "truth", factorial_study(0.0)), [])
    place, plain, tuned = tmp_path / "scores", Settings(windows=8), Settings(windows=9, steps=8)
    for run in ("a", "b"):
        oracle(place, 1.0, run, asked=tuned)
        oracle(place, 1.0, run, asked=plain)
    oracle(place, 1.0, "c", asked=Settings(windows=4))
    used, left = comparable(truth, find_scores([place]))
    assert [(each.run, each.asked) for each in used] == [("a", plain), ("b", plain)]
    assert left == ("c: asked with 4 windows and not 8 windows",)
    oracle(place, 1.0, "c", asked=tuned)  # what all have goes before what is plain
    used, left = comparable(truth, find_scores([place]))
    assert ([each.asked for each in used], left) == ([tuned] * 3, ())
