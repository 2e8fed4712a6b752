"""``prism compare`` as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from prism_transformer.study.collected import read_collected, write_collected
from prism_transformer.study.compare import compare
from prism_transformer.study.folder import StudyFolder
from tests.conftest import Prism
from tests.older import without_sums
from tests.study.test_best_rates import swept
from tests.study.test_lengths import longer


@pytest.fixture
def runs(finished: StudyFolder, tmp_path: Path) -> Path:
    """Runs as ``prism train`` would have left them."""
    return Path(shutil.copytree(finished.folder / "runs", tmp_path / "runs"))


@pytest.mark.slow
def test_runs_compare_as_their_study_does(
    prism_inside: Prism, finished: StudyFolder, runs: Path
) -> None:
    names = [f"runs/{arm}-seed{seed}" for arm in ("uniform", "prism") for seed in (0, 1)]
    wanted = compare(read_collected(finished.folder / "collected")).to_json()
    said = prism_inside("compare", *names, "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["rows"] == wanted["rows"]

    plain = prism_inside("compare", *names)
    assert plain.stdout.startswith("uniform: 8x3\nprism: 2x1 4x1 8x1\n")
    assert "prism against uniform: " in plain.stdout

    turned = prism_inside("compare", *names, "--baseline", "prism")
    assert "uniform against prism: " in turned.stdout
    (row,) = json.loads(prism_inside("compare", *names[::-1], "--json").stdout)["rows"]
    assert row["difference"]["mean"] == -wanted["rows"][0]["difference"]["mean"]


def test_a_run_that_has_not_ended_is_said_to_be_left_out(prism_inside: Prism, runs: Path) -> None:
    shutil.rmtree(runs / "prism-seed1" / "checkpoints" / "step-00000020")
    file = runs / "prism-seed1" / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    ended = [json.dumps(row) for row in rows if row["step"] < 20]
    file.write_text("\n".join(ended) + "\n", "utf-8")
    said = prism_inside("compare", *(f"runs/{name}" for name in ("uniform-seed1", "prism-seed1")))
    assert "prism-seed1: not trained to its end, so not compared" in said.stdout
    assert "prism against uniform: no seed is complete in both arms" in said.stdout


def test_unfair_pairs_and_what_is_no_comparison_are_refused(
    prism_inside: Prism, runs: Path
) -> None:
    file = runs / "prism-seed0" / "environment.json"
    facts = json.loads(file.read_text("utf-8"))
    facts["hashes"]["data_order"] = "0123456789abcdef"
    file.write_text(json.dumps(facts), "utf-8")
    without_sums(file)
    one, two, other = "runs/uniform-seed0", "runs/prism-seed0", "runs/uniform-seed1"
    for arguments, reason in (
        ((one, two), "the order of the data differ: "),
        ((one,), "at least two runs"),
        ((), "at least two runs"),
        ((one, other), "all runs are of one arm, 8x3"),
        ((one, "runs"), "runs: is not a run"),
        ((one, two, "--baseline", "back"), "--baseline back: is none of the runs: uniform, prism"),
    ):
        said = prism_inside("compare", *arguments)
        assert said.returncode == 2, arguments
        assert reason in said.stderr
        assert "Traceback" not in said.stderr


def test_every_contrast_is_printed_with_its_seeds(prism_inside: Prism, tmp_path: Path) -> None:
    """Arms at their best rates, and in longer sequences."""
    write_collected(tmp_path / "rates", swept())
    said = prism_inside("study", "compare", "rates").stdout
    (contrast,) = [
        each
        for each in compare(swept()).envelopes[0].contrasts
        if each.name == "prism against uniform"
    ]
    assert contrast.difference is not None
    sentence, seeds = said.partition("optim.lr=each arm's best, prism against uniform: ")[2].split(
        "\n"
    )[:2]
    assert f"{contrast.difference.n} seeds" in sentence
    shown = [float(each.replace("\u2212", "-")) for each in seeds.partition(": ")[2].split(", ")]
    assert shown == pytest.approx(contrast.difference.differences, abs=1e-4)

    write_collected(tmp_path / "context", longer())
    said = prism_inside("study", "compare", "context").stdout
    assert "Rise of the loss in sequences of 1,024 tokens, 8 times the training context" in said
    told = said.partition("scaling=yarn, frequencies (prism minus tiled): ")[2].splitlines()
    assert told[1].startswith("    seeds 0, 1, 2, 3: ")
    plain = json.loads(prism_inside("study", "compare", "context", "--json").stdout)
    assert plain["lengths"][0]["losses"].keys() == {"none", "yarn"}
