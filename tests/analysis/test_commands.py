"""prism analyze and prism loss as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Prism
from tests.train.runs import finish, tiny


@pytest.fixture(scope="session")
def uniform(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "uniform"
    finish(folder, tiny(data, "model.schedule=8x3"))
    return folder


def test_two_arms_are_compared(
    trained: Path, uniform: Path, tmp_path: Path, prism_inside: Prism
) -> None:
    done = prism_inside(
        "analyze", str(uniform), "--compare", str(trained), "--sequences", "6", "--batch", "4",
        "--figure", "profile.svg",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "difference" in done.stdout
    assert "8 / 2" in done.stdout
    assert "6 sequences of 32 tokens, last half of each" in done.stdout
    kept = json.loads((trained / "analysis/step-00000020/attention.json").read_text())
    assert [layer["heads"] for layer in kept["profile"]["layers"]] == [2, 4, 8]
    drawn = (tmp_path / "profile.svg").read_text("utf-8")
    assert "2x1 4x1 8x1 less 8x3" in drawn
    assert "mean attention distance, tokens" in drawn


def test_one_arm_as_json(trained: Path, prism_inside: Prism) -> None:
    done = prism_inside("analyze", str(trained), "--sequences", "2", "--effective-rank", "--json")
    result = json.loads(done.stdout)
    assert [row["heads"] for row in result["rows"]] == [2, 4, 8]
    statistics = result["profiles"][0]["layers"][0]["statistics"]
    assert set(statistics) >= {"distance", "sink", "entropy", "effective_rank"}
    assert len(statistics["distance"]["heads"]) == 2


def test_loss_of_a_checkpoint(trained: Path, prism_inside: Prism) -> None:
    done = prism_inside("loss", str(trained), "--json")
    last = json.loads(done.stdout)
    assert last["sequences"] == 50
    assert len(last["by_position"]) == 32
    done = prism_inside("loss", str(trained), "--checkpoint", "step-00000016", "--json")
    assert json.loads(done.stdout)["loss"] != last["loss"]
    done = prism_inside("loss", str(trained), "--length", "64", "--rope-scaling", "linear:2")
    assert "25 sequences of 64 tokens, standard error" in done.stdout
    assert "bits per byte" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["analyze"], "nothing to analyze"),
        (["analyze", "runs/there/is/none"], "no such run or Hugging Face folder"),
        (["analyze", "{run}", "--statistic", "farness"], "--statistic 'farness': is not one of"),
        (["analyze", "{run}", "--sequences", "100000"], "windows, 100000 were asked"),
        (["analyze", "{run}", "--text", "no/file.jsonl"], "matches no file"),
        (["analyze", "{run}", "--length", "100000"], "hold no window of 100000"),
        (["analyze", "{run}", "--length", "33"], "sequences of 33 tokens; this model's context is"),
        (["loss", "{run}", "--length", "64"], "--length 64: this model's context is 32"),
        (["loss", "{run}", "--checkpoint", "step-9"], "has no checkpoint 'step-9'"),
        (["loss", "{run}", "--rope-scaling", "twice"], "--rope-scaling 'twice'"),
    ],
)
def test_bad_input(trained: Path, prism_inside: Prism, arguments: list[str], message: str) -> None:
    done = prism_inside(*(each.format(run=trained) for each in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
