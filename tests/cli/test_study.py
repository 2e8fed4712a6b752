"""``prism study`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prism_transformer.study.collected import read_collected
from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.plan import make_plan
from tests.conftest import Prism
from tests.study.files import STAGES, STUDY, write_study

ROOT = Path(__file__).parents[2]

ALONE = ("--workers", "1")  # in this process, where everything is imported already


def test_a_study_from_the_plan_to_the_sentence(
    prism_inside: Prism, tmp_path: Path, data: Path
) -> None:
    file = str(write_study(tmp_path, data, STUDY + STAGES))
    planned = prism_inside("study", "plan", file)
    assert planned.returncode == 0, planned.stderr
    for part in ("8 heads |", "2 arms x 2 seeds = 4 runs of 20 steps, 0 done", "matrix products"):
        assert part in planned.stdout
    assert not (tmp_path / "studies").exists()

    ran = prism_inside("study", "run", file, *ALONE)
    assert ran.returncode == 0, ran.stderr
    assert "prism-seed1: step 20, validation loss" in ran.stdout
    live = (tmp_path / "studies" / "tiny" / "report" / "index.html").as_uri()
    assert f"page, while runs come in: {live}" in ran.stdout.replace("\n", "")
    *_, sentence, seeds, rate, space, answer, doubt, _, report = ran.stdout.splitlines()
    assert space == ""
    assert answer.startswith("Answer: ")
    assert doubt.startswith("Doubt: ")
    assert sentence.startswith("prism against uniform: ")
    assert seeds.startswith("    seeds 0, 1: ")
    assert rate == "One learning rate, 0.003, was used for all arms and tuned for none."
    assert report == "report: studies/tiny/report/index.html"
    assert "prism against uniform" in (tmp_path / report.partition(" ")[2]).read_text("utf-8")

    again = prism_inside("study", "run", file, *ALONE)
    assert "4 done" in again.stdout
    assert "training about 0 s" in again.stdout
    assert "step 20" not in again.stdout

    rows = json.loads(prism_inside("study", "status", file, "--json").stdout)
    assert [row["state"] for row in rows] == ["done"] * 4

    compared = json.loads(prism_inside("study", "compare", file, "--json").stdout)
    (row,) = compared["rows"]
    losses = read_collected(tmp_path / "studies" / "tiny" / "collected").final_loss()
    by_hand = (losses["prism"] - losses["uniform"]).tolist()
    assert row["difference"]["differences"] == pytest.approx(by_hand)
    assert compared["looked"] == [2]

    collected = prism_inside(
        "study", "collect", file, "--to", "results/tiny", "--note", "Beside other work.",
        "--rates-compare-nothing",
    )  # fmt: skip
    assert "4 runs: 4 complete" in collected.stdout
    facts = read_collected(tmp_path / "results" / "tiny").facts
    assert facts.note == "Beside other work."
    assert all(run.rate_compares_nothing for run in facts.runs)
    there = prism_inside("study", "compare", "results/tiny")
    assert "prism against uniform" in there.stdout


def test_a_comparison_has_contrasts_with_every_seed(prism_inside: Prism, tmp_path: Path) -> None:
    nano = str(Path(__file__).parents[2] / "results" / "nano")
    shown = prism_inside("study", "compare", nano).stdout
    assert "order (prism minus reversed): -0.0226 nats" in " ".join(shown.split())
    assert "seeds 0, 1, 2, 3, 4, 5, 6, 7: \u22120.0034, \u22120.0217" in " ".join(shown.split())
    found = json.loads(prism_inside("study", "compare", nano, "--json").stdout)
    order = {each["name"]: each for each in found["contrasts"]}["order"]
    assert order["weights"] == {"prism": 1.0, "reversed": -1.0}
    assert len(order["difference"]["differences"]) == 8
    assert order["pooled"]["freedom"] == 21


def test_studies_that_ship_are_listed(prism_inside: Prism) -> None:
    rows = json.loads(prism_inside("study", "list", "--json").stdout)
    assert {row["study"]: row["runs"] for row in rows}["small"] == 6


def test_a_study_that_ships_is_copied_out(prism_inside: Prism, tmp_path: Path) -> None:
    said = prism_inside("study", "list", "demo", "--out", "mine.toml")
    assert said.stdout == "wrote mine.toml\n"
    rows = json.loads(prism_inside("study", "plan", "mine.toml", "--json").stdout)["runs"]
    assert rows == json.loads(prism_inside("study", "plan", "demo", "--json").stdout)["runs"]


def test_overrides_and_selections_mean_the_same_to_every_command(
    prism_inside: Prism, finished: StudyFolder, tmp_path: Path
) -> None:
    file, there = str(finished.plan.file), ("--out", str(finished.folder))
    few = ("--seeds", "1", *there)
    names = ["uniform-seed1", "prism-seed1"]
    for command in ("plan", "status"):
        found = json.loads(prism_inside("study", command, file, *few, "--json").stdout)
        rows = found["runs"] if command == "plan" else found
        assert [row["run"] for row in rows] == names
    compared = json.loads(prism_inside("study", "compare", file, *few, "--json").stdout)
    assert compared["seeds"] == [1]
    said = prism_inside("study", "collect", file, "run.keep_checkpoints=2", *few, "--to", "few")
    assert "2 runs: 2 complete" in said.stdout, said.stderr

    # From there in another folder: its runs count, and the others are to do.
    on = ("--with", "few", "--out", "on")
    assert "0 done and 2 collected before" in prism_inside("study", "plan", file, *on).stdout
    rows = json.loads(prism_inside("study", "status", file, *on, "--json").stdout)
    assert [row["state"].partition(":")[0] for row in rows] == ["to do", "to do", "done", "done"]
    compared = json.loads(prism_inside("study", "compare", file, *on, "--json").stdout)
    assert compared["rows"][0]["seeds"] == [1]
    assert "2 missing, 2 complete" in prism_inside("study", "collect", file, *on).stdout
    assert not (tmp_path / "on" / "runs").exists()


BAD = [
    (("run", "nothing.toml"), "no such study file"),
    (("run", "{file}", "--seeds", "0,7"), "--seeds: 7: "),
    (("run", "{file}", "--seeds", "a"), "--seeds 'a'"),
    (("run", "{file}", "--arms", "uniform,prsm"), "no arm 'prsm'"),
    (("work", "{file}", "--arms", "prism"), "add uniform, the baseline"),
    (("run", "{file}", "train.seed=3"), "use --seeds"),
    (("run", "{file}", "optim.speed=3"), "optim.speed: unknown key"),
    (("run", "{file}", "--with", "nowhere"), "nowhere: nothing collected there"),
    (("list", "demmo"), "none that ships"),
    (("list", "--out", "mine.toml"), "name the study too"),
    (("work", "{file}"), "prism study plan"),
    (("search", "{file}"), "has no [search]"),
    (("run", "{file}", "--heartbeat", "0"), "for --heartbeat"),
    (("run", "{file}", "--processes", "0"), "for --processes"),
    (("run", "{file}", "--workers", "0"), "for --workers"),
    (("work", "{file}", "--workers", "many"), "for --workers"),
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
    assert not (tmp_path / "studies" / "tiny" / "runs").exists()


def test_options_of_a_study_do_not_go_with_what_was_collected(
    prism_inside: Prism, finished: StudyFolder
) -> None:
    said = prism_inside("study", "compare", str(finished.folder / "collected"), "--seeds", "0")
    assert said.returncode == 2
    assert "options are for a study file" in said.stderr


def test_nothing_runs_when_the_study_is_not_sound(
    prism_inside: Prism, tmp_path: Path, data: Path
) -> None:
    file = write_study(tmp_path, data, STUDY + 'odd = "5x3"\n')
    result = prism_inside("study", "run", str(file))
    assert result.returncode == 2
    assert "arms.odd = '5x3': layer 0" in result.stderr
    assert not (tmp_path / "studies").exists()


@pytest.mark.slow
def test_a_failed_run_gives_exit_code_1(prism_inside: Prism, tmp_path: Path, data: Path) -> None:
    text = STUDY.replace("[0, 1]", "[0]") + 'hot = { schedule = "prism", optim.lr = 1e30 }\n'
    result = prism_inside("study", "run", str(write_study(tmp_path, data, text)), *ALONE)
    assert result.returncode == 1
    assert "FAILED  hot-seed0" in result.stdout
    assert "prism against uniform" in result.stdout


@pytest.mark.slow
def test_a_search_ends_with_its_standings(prism_inside: Prism, tmp_path: Path, data: Path) -> None:
    more = 'steep = "1x1 8x2"\nback = "reversed"\n[search]\nrungs = [0.5]\nkeep = 0.4\n'
    text = STUDY.replace("[0, 1]", "[0]") + more
    file = str(write_study(tmp_path, data, text))
    result = prism_inside("study", "search", file, "--json", *ALONE)
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
    study = StudyFolder(make_plan(file), folder)
    queue = study.queue()
    study.begin(queue, [])
    queue.close(finished=False)
    assert prism_inside("study", "run", str(file), *ALONE).returncode == 0


def test_a_plan_says_what_tuning_takes(prism_inside: Prism) -> None:
    shown = " ".join(prism_inside("study", "plan", "nano-tuned").stdout.split())
    assert "4 arms at 0.004, 0.008, 0.016, 0.032, with the seeds 20, 21, 22: 48 runs" in shown
    assert "4 arms x 8 seeds = 32 runs" in shown
    plan = json.loads(prism_inside("study", "plan", "nano-tuned", "--json").stdout)
    assert len(plan["runs"]) == 48 + 32
    assert plan["runs"][0]["point"] == {"optim.lr": 0.004}
    states = json.loads(prism_inside("study", "status", "nano-tuned", "--json").stdout)
    assert states[-1]["state"] == "waits for its learning rate"
    listed = json.loads(prism_inside("study", "list", "--json").stdout)
    assert {row["study"]: row["to tune"] for row in listed}["nano-tuned"] == 48
    plain = prism_inside("study", "plan", "nano-tuned", "optim.lr=0.016").stdout
    assert "tuning" not in plain
    # The study lr has asked the same.
    known = prism_inside("study", "plan", "nano-tuned", "--with", str(ROOT / "results" / "lr"))
    assert "uniform 0.013, prism 0.013, reversed 0.013, bracketing-2 0.012" in known.stdout


@pytest.mark.slow
def test_a_study_is_tuned_in_the_terminal(prism_inside: Prism, tmp_path: Path, data: Path) -> None:
    tune = "[tune]\noptim.lr = [6.4e-2, 0.26, 1.0]\nseeds = [7]\nextend = 4\n"
    file = str(write_study(tmp_path, data, STUDY.replace("[0, 1]", "[0]") + tune))
    ran = prism_inside("study", "run", file, "--workers", "2", "--device", "cpu")
    assert ran.returncode == 0, ran.stderr
    text = " ".join(ran.stdout.split())
    assert "prism: best learning rate" in text
    assert "Each arm was trained at its own best learning rate, found with seed 7" in text
    page = (tmp_path / "studies" / "tiny" / "report" / "index.html").read_text("utf-8")
    assert "Loss against learning rate" in page
