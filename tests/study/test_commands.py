"""``prism study`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prism_transformer.study.plan import make_plan
from prism_transformer.study.queue import Queue
from prism_transformer.study.study import Home
from prism_transformer.study.table import read_collected
from tests.conftest import Prism
from tests.study.files import STAGES, STUDY, write_study


def test_a_study_from_the_plan_to_the_sentence(
    prism_inside: Prism, tmp_path: Path, data: Path
) -> None:
    file = str(write_study(tmp_path, data, STUDY + STAGES))
    planned = prism_inside("study", "plan", file)
    assert planned.returncode == 0, planned.stderr
    for part in ("8 heads |", "2 arms x 2 seeds = 4 runs of 20 steps, 0 done", "matrix products"):
        assert part in planned.stdout
    assert not (tmp_path / "studies").exists()

    ran = prism_inside("study", "run", file)
    assert ran.returncode == 0, ran.stderr
    assert "prism-seed1: step 20, validation loss" in ran.stdout
    *_, sentence, _, report = ran.stdout.splitlines()
    assert sentence.startswith("prism against uniform: ")
    assert report == "report: studies/tiny/report/index.html"
    assert "prism against uniform" in (tmp_path / report.partition(" ")[2]).read_text("utf-8")

    again = prism_inside("study", "run", file)
    assert "4 done" in again.stdout
    assert "training takes about 0 s" in again.stdout
    assert "step 20" not in again.stdout

    rows = json.loads(prism_inside("study", "status", file, "--json").stdout)
    assert [row["state"] for row in rows] == ["done"] * 4

    compared = json.loads(prism_inside("study", "compare", file, "--json").stdout)
    (row,) = compared["rows"]
    losses = read_collected(tmp_path / "studies" / "tiny" / "collected").final_loss()
    by_hand = (losses["prism"] - losses["uniform"]).tolist()
    assert row["difference"]["differences"] == pytest.approx(by_hand)

    collected = prism_inside(
        "study", "collect", file, "--to", "results/tiny", "--note", "Beside other work."
    )
    assert "4 runs: 4 complete" in collected.stdout
    assert read_collected(tmp_path / "results" / "tiny").facts["note"] == "Beside other work."
    there = prism_inside("study", "compare", "results/tiny")
    assert "prism against uniform" in there.stdout


def test_studies_that_ship_are_listed(prism_inside: Prism) -> None:
    rows = json.loads(prism_inside("study", "list", "--json").stdout)
    assert {row["study"]: row["runs"] for row in rows}["small"] == 6


BAD = [
    (("run", "nothing.toml"), "no such study file"),
    (("work", "{file}"), "prism study plan"),
    (("search", "{file}"), "has no [search]"),
    (("run", "{file}", "--heartbeat", "0"), "for --heartbeat"),
    (("run", "{file}", "--processes", "0"), "for --processes"),
    (("collect", "{file}", "nowhere"), "nowhere: there is no such folder"),
    (("plan", "{file}", "--begin", "--storage", "nothing://x"), "--storage nothing://x"),
]


@pytest.mark.parametrize(("arguments", "reason"), BAD)
def test_errors_are_plain(
    prism_inside: Prism, tmp_path: Path, data: Path, arguments: tuple[str, ...], reason: str
) -> None:
    file = str(write_study(tmp_path, data))
    result = prism_inside("study", *(each.replace("{file}", file) for each in arguments))
    assert result.returncode == 2
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_runs_when_the_study_is_not_sound(
    prism_inside: Prism, tmp_path: Path, data: Path
) -> None:
    file = write_study(tmp_path, data, STUDY + 'odd = "5x3"\n')
    result = prism_inside("study", "run", str(file))
    assert result.returncode == 2
    assert "arms.odd = '5x3': layer 0" in result.stderr
    assert not (tmp_path / "studies").exists()


def test_a_failed_run_gives_exit_code_1(prism_inside: Prism, tmp_path: Path, data: Path) -> None:
    text = STUDY.replace("[0, 1]", "[0]") + 'hot = { schedule = "prism", optim.lr = 1e30 }\n'
    result = prism_inside("study", "run", str(write_study(tmp_path, data, text)))
    assert result.returncode == 1
    assert "FAILED  hot-seed0" in result.stdout
    assert "prism against uniform" in result.stdout


def test_a_search_ends_with_its_standings(prism_inside: Prism, tmp_path: Path, data: Path) -> None:
    more = 'steep = "1x1 8x2"\nback = "reversed"\n[search]\nrungs = [0.5]\nkeep = 0.4\n'
    text = STUDY.replace("[0, 1]", "[0]") + more
    result = prism_inside("study", "search", str(write_study(tmp_path, data, text)), "--json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [row["step"] for row in rows] == [10] * 4 + [20] * 3
    assert "step 20 of 20" in result.stderr


@pytest.mark.slow
def test_a_run_ends_also_after_a_search_that_did_not(
    prism_inside: Prism, tmp_path: Path, data: Path
) -> None:
    """A search that was stopped leaves word that more cells come; a run waits for none."""
    text = STUDY.replace("[0, 1]", "[0]") + "[search]\nrungs = [0.5]\n"
    file = write_study(tmp_path, data, text)
    folder = tmp_path / "studies" / "tiny"
    plan = make_plan(file)
    queue = Queue(plan, folder)
    Home(plan, folder).begin(queue, [])
    queue.close(finished=False)
    assert prism_inside("study", "run", str(file)).returncode == 0
