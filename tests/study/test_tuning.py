"""[tune]: which runs find the rates, when a grid is extended, and what is written down."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import inf, log2
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Event, Measured, Of
from prism_transformer.recipe import differences
from prism_transformer.study.api import run_study, tune_study, work_on
from prism_transformer.study.collected import TuningFacts, read_collected, write_collected
from prism_transformer.study.folder import StudyFolder, load_study
from prism_transformer.study.metrics import FINAL_LOSS
from prism_transformer.study.sharing import Crew
from prism_transformer.study.slurm import do_cells, submit_study
from prism_transformer.study.tuning import RATES_FILE, read_rates
from prism_transformer.training.run import (
    METRICS_FILE,
    NOT_FINITE,
    checkpoint_folder,
    create_run,
)
from tests.study.files import STUDY, write_study
from tests.study.frames import make_collected

TUNE = "[tune]\noptim.lr = [1e-3, 2e-3, 4e-3]\nseeds = [7, 8]\n"
BEST = {"uniform": 2.2e-3, "prism": 9e-3}


def tuned(tmp_path: Path, data: Path, tune: str = TUNE, name: str = "tiny") -> StudyFolder:
    return load_study(write_study(tmp_path, data, STUDY + tune, name), tmp_path / "here")


def finish(study: StudyFolder, loss: Callable[[str, float], float]) -> list[str]:
    """Leave what trained runs leave, with losses that a rule gives; the runs that were to do."""
    names = []
    for cell, n_steps in study.tuner.left:
        folder, value = study.tuner.run_of(cell).folder, loss(cell.arm, cell.recipe.optim.lr)
        hashes = {"initial_weights": f"{cell.seed}", "data_order": f"{cell.seed}", "shards": {}}
        facts = {"hashes": hashes, "hardware": {}, "software": {}, "sessions": []}
        create_run(folder, cell.recipe, {"recipe": cell.recipe.model_dump(), **facts})
        if value == inf:
            (folder / "dump-step-00000003").mkdir()
        else:
            checkpoint_folder(folder, n_steps).mkdir(parents=True)
            rows: list[dict[str, object]] = [
                {"kind": "train", "step": n_steps, "tokens_per_second": 1.0},
                {"kind": "val", "step": n_steps, "loss": value + 0.01 * cell.seed},
            ]
            (folder / METRICS_FILE).write_text("".join(json.dumps(r) + "\n" for r in rows))
        names.append(cell.name)
    return names


def near(arm: str, rate: float) -> float:
    return 3 + 0.02 * log2(rate / BEST[arm]) ** 2


def test_each_arm_has_the_rates_it_needs_and_no_more(tmp_path: Path, data: Path) -> None:
    study = tuned(tmp_path, data)
    assert study.plan.untuned == ["uniform", "prism"]
    assert not study.folder.exists()  # looking writes nothing
    first = finish(study, near)
    assert len(first) == 2 * 3 * 2
    assert first[0] == "uniform-lr0.001-seed7"
    study = load_study(study)
    assert study.plan.untuned == ["prism"]  # which is best at 4e-3, the end
    assert finish(study, near) == ["prism-lr0.008-seed7", "prism-lr0.008-seed8"]
    assert finish(load_study(study), near) == ["prism-lr0.016-seed7", "prism-lr0.016-seed8"]
    study = load_study(study)
    assert not study.plan.untuned
    assert study.tuning is not None
    assert study.tuning.best == pytest.approx(BEST)
    prism, uniform = (study.plan.cell(arm, 0, 1).recipe for arm in ("prism", "uniform"))
    assert sorted(line.partition(":")[0] for line in differences(prism, uniform)) == [
        "model.schedule", "optim.lr",
    ]  # fmt: skip
    states = study.status().values("state")
    assert states == ["done"] * 16 + ["to do: train"] * 4


def test_what_diverged_is_done_and_never_the_best(tmp_path: Path, data: Path) -> None:
    study = tuned(tmp_path, data)
    finish(study, lambda _, rate: inf if rate > 3e-3 else 3 - rate)
    study = load_study(study)
    assert study.tuning is not None
    assert study.tuning.best == {"uniform": 2e-3, "prism": 2e-3}
    assert study.tuning.arms[0].losses[0][2] is None
    assert study.status().values("state").count("done: diverged") == 4
    assert not study.tuner.left


def test_extending_ends_and_an_end_is_not_taken(tmp_path: Path, data: Path) -> None:
    study = tuned(tmp_path, data, TUNE + "extend = 2\n")
    for _ in range(3):
        finish(load_study(study), lambda arm, rate: 3 - rate if arm == "prism" else near(arm, rate))
    study = load_study(study)
    assert study.plan.untuned == ["prism"]
    best = r"prism is best at the highest .*0\.016.* never taken"
    with pytest.raises(InputError, match=best):
        run_study(study, device="cpu")
    with pytest.raises(InputError, match=best):
        tune_study(study, Crew("cpu"))
    with pytest.raises(InputError, match="never taken"):
        submit_study(study, dry_run=True)
    with pytest.raises(InputError, match="rate of prism is not found yet"):
        study.begin(study.queue())


def test_rates_are_frozen_when_the_comparison_begins(tmp_path: Path, data: Path) -> None:
    study = tuned(tmp_path, data)
    for _ in range(3):
        finish(load_study(study), near)
    study = load_study(study)
    part = load_study(study, arms="uniform")
    part.begin(part.queue())
    assert [each.arm.name for each in read(study).arms] == ["uniform"]
    study.begin(study.queue())
    assert read(study).best == pytest.approx(BEST)
    found = study.folder / RATES_FILE
    text = found.read_text("utf-8")
    found.write_text(text.replace('"best": 0.00', '"best": 0.0', 1), "utf-8")
    with pytest.raises(InputError, match=f"{RATES_FILE}: is damaged or was changed"):
        load_study(study.plan.file, study.folder)
    found.write_text(text, "utf-8")
    for file in study.folder.glob("tuning/runs/*/metrics.jsonl"):
        file.unlink()
    again = load_study(study.plan.file, study.folder)
    assert again.plan.cells == study.plan.cells

    other = write_study(tmp_path, data, STUDY + TUNE.replace("[7, 8]", "[7, 9]"))
    with pytest.raises(InputError, match=r"tune.seeds: \[7, 8\] -> \[7, 9\]; .* another --out"):
        load_study(other, study.folder)
    write_study(tmp_path, data, STUDY + TUNE)
    with pytest.raises(InputError, match=r"train.tokens: 10240 -> 5120"):
        load_study(other, study.folder, overrides=["train.tokens=5120"])
    # Who names one rate for all has no tuning, and says so.
    plain = load_study(other, tmp_path / "plain", overrides=["optim.lr=0.002"])
    assert not plain.plan.untuned
    assert {cell.recipe.optim.lr for cell in plain.plan.cells} == {0.002}


def swept(study: StudyFolder, loss: Callable[[str, float], float], kept: Path) -> Path:
    """The tuning of a study as a sweep that was collected before; its points are not in order."""
    rates, seeds = [4e-3, 1e-3, 2e-3], [7, 8]
    arms = {arm.name: str(arm.schedule) for arm in study.plan.arms}
    runs = [(arm, at, seed) for arm in arms for at in range(3) for seed in seeds]
    lost = [run for run in runs if loss(run[0], rates[run[1]]) == inf]
    points = [{"optim.lr": rate} for rate in rates]
    states = dict.fromkeys(lost, "failed")
    made = make_collected(arms=arms, seeds=seeds, points=points, states=states, tasks={})
    table = made.table.copy()
    for place in table.index[table["metric"] == FINAL_LOSS]:
        arm, at, seed = table.loc[place, ["arm", "point", "seed"]]
        table.loc[place, "value"] = loss(arm, rates[at]) + 0.01 * seed
    why = {"failure": f"step 3: {NOT_FINITE}"}
    told = [each.model_copy(update=why) if each.failure else each for each in made.facts.runs]
    facts = made.facts.model_copy(update={"recipe": study.plan.base, "runs": tuple(told)})
    write_collected(kept, replace(made, facts=facts, table=table))
    return kept


def test_a_collected_sweep_is_a_tuning(tmp_path: Path, data: Path) -> None:
    study = tuned(tmp_path, data)
    kept = swept(study, near, tmp_path / "kept")
    given = load_study(study.plan.file, tmp_path / "given", with_=[kept])
    assert given.plan.untuned == ["prism"]  # best at the sweep's end, which is not taken
    finish(study, near)
    known = load_study(study).tuning
    assert given.tuning is not None
    assert known is not None
    assert given.tuning.arms == known.arms  # the same as from runs of its own
    # Where all best rates are inside, nothing is left to tune; its runs are not the study's.
    kept = swept(study, lambda _, rate: 3 + log2(rate / 2e-3) ** 2, tmp_path / "inside")
    given = load_study(study.plan.file, tmp_path / "all", with_=[kept])
    assert not given.plan.untuned
    assert not given.earlier
    other = write_study(tmp_path, data, STUDY + TUNE.replace("[7, 8]", "[7, 9]"))
    with pytest.raises(InputError, match=r"tune.seeds: \[7, 8\] -> \[7, 9\]"):
        load_study(other, tmp_path / "other", with_=[kept])


def test_what_diverged_in_a_sweep_is_never_the_best(tmp_path: Path, data: Path) -> None:
    study = tuned(tmp_path, data)
    kept = swept(study, lambda _, rate: inf if rate > 3e-3 else 3 - rate, tmp_path / "kept")
    given = load_study(study.plan.file, tmp_path / "given", with_=[kept])
    assert given.tuning is not None
    assert given.tuning.best == {"uniform": 2e-3, "prism": 2e-3}
    assert given.tuning.arms[0].losses[0][2] is None


def read(study: StudyFolder) -> TuningFacts:
    found = read_rates(study.folder)
    assert found is not None
    return found


def test_a_file_that_would_not_be_fair_is_refused(tmp_path: Path, data: Path) -> None:
    for text, reason in {
        TUNE.replace("[7, 8]", "[1, 8]"): r"the comparison has \[1\], too",
        TUNE.replace("[7, 8]", "[8, 8]"): "each seed once",
        TUNE.replace("2e-3, 4e-3", "4e-3, 2e-3"): "give growing rates",
        TUNE.replace(", 4e-3", ""): "tune.optim.lr: has too few; give at least 3",
        TUNE + "[sweep]\noptim.lr = [1e-3]\n": r"\[tune\] and \[sweep\] do not go together",
        TUNE + "[search]\n": r"\[tune\] and \[search\] do not go together",
        'own = { schedule = "8x3", optim.lr = 1e-3 }\n' + TUNE: r"which \[tune\] finds",
    }.items():
        with pytest.raises(InputError, match=reason):
            tuned(tmp_path, data, text)


def test_slurm_gets_the_tuning_first(tmp_path: Path, data: Path) -> None:
    study = tuned(tmp_path, data)
    first = submit_study(study, dry_run=True)
    assert first.tuning
    assert len(first.cells) == 12
    assert "uniform-lr0.001-seed7" in first.script
    with pytest.raises(InputError, match="prism-seed0: waits for its learning rate"):
        do_cells(study, ["prism-seed0"], Crew("cpu"))
    for _ in range(3):
        finish(load_study(study), near)
    then = submit_study(load_study(study), dry_run=True)
    assert not then.tuning
    assert list(then.cells) == ["uniform-seed0", "prism-seed0", "uniform-seed1", "prism-seed1"]


@pytest.mark.slow
def test_a_study_is_tuned_run_collected_and_goes_on_elsewhere(tmp_path: Path, data: Path) -> None:
    wide = TUNE.replace("1e-3, 2e-3, 4e-3", "1.6e-2, 6.4e-2, 0.26").replace("[7, 8]", "[7]")
    study, steps = tuned(tmp_path, data, wide), 0

    def count(event: Event) -> None:
        nonlocal steps
        if isinstance(event, Of) and isinstance(event.event, Measured):
            steps += event.event.row["kind"] == "train"

    with pytest.raises(InputError, match="no such study"):
        work_on(study, Crew("cpu"))
    result = run_study(study, device="cpu", tell=count)
    facts = result.collected.facts
    assert facts.complete
    assert facts.tuning is not None
    trained = {run.folder.name: run for run in load_study(study).runs}
    for arm, rate in facts.tuning.best.items():
        assert trained[f"{arm}-seed0"].cell.recipe.optim.lr == rate
    assert (study.folder / RATES_FILE).is_file()
    done = steps
    run_study(load_study(study.plan.file, study.folder), device="cpu", tell=count)
    assert steps == done  # nothing is tuned or trained twice

    # On a machine that has neither its folders nor its tuning.
    kept = tmp_path / "kept"
    load_study(study, seeds="0").collect(out=kept)
    assert read_collected(kept).facts.tuning == facts.tuning
    there = load_study(study.plan.file, tmp_path / "there", with_=[kept])
    assert not there.plan.untuned
    again = run_study(there, device="cpu", tell=count)
    assert steps == done + 2 * 20
    assert again.collected.final_loss().equals(result.collected.final_loss())


@pytest.mark.slow
def test_helpers_tune_and_then_compare(tmp_path: Path, data: Path) -> None:
    """Work on a study that is only begun: the rates first, then the runs at them."""
    wide = TUNE.replace("1e-3, 2e-3, 4e-3", "1.6e-2, 6.4e-2, 0.26").replace("[7, 8]", "[7]")
    study = tuned(tmp_path, data, wide)
    study.tuner.begin(study.tuner.queue(), study.tuner.left)
    assert work_on(study, Crew("cpu")) == {}
    helped = load_study(study)
    assert not helped.plan.untuned
    assert [run.to_do(20) for run in helped.runs] == [[]] * 4
    alone = load_study(study.plan.file, tmp_path / "alone")
    expected = run_study(alone, device="cpu").collected.final_loss()
    assert helped.collect().final_loss().equals(expected)
