"""Runs that belong to no study."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.errors import InputError
from prism_transformer.recipe_file import load_recipe
from prism_transformer.study.runs import collect_runs
from prism_transformer.train.run import create_run

HASHES = {"initial_weights": "w", "data_order": "o", "shards": {"a": "b"}}


def run(folder: Path, name: str, recipe: str = "baseline-nano", *changes: str) -> Path:
    """The folder of a run that has not taken a step."""
    wanted = load_recipe(recipe, list(changes))
    facts = {"hashes": HASHES, "recipe": wanted.model_dump(mode="json")}
    create_run(folder / name, wanted, facts | {"hardware": {}, "software": {}, "sessions": []})
    return folder / name


def test_arms_are_schedules_and_changes_and_the_uniform_one_is_the_baseline(tmp_path: Path) -> None:
    found = collect_runs(
        [
            run(tmp_path, "prism-seed1", "prism-nano", "train.seed=1"),
            run(tmp_path, "prism-seed2", "prism-nano", "train.seed=2"),
            run(tmp_path, "tiled", "prism-nano", "model.rope_frequencies=tiled", "run.val_every=7"),
            run(tmp_path, "wide", "baseline-nano", "model.schedule=4x8"),
            run(tmp_path, "flat_s2", "baseline-nano", "train.seed=2"),
        ]
    )
    arms = {arm["name"]: (arm["schedule"], arm["changes"]) for arm in found.facts["arms"]}
    assert arms == {
        "prism": ("2x2 4x2 8x4", {}),
        "tiled": ("2x2 4x2 8x4", {"model.rope_frequencies": "tiled"}),
        "wide": ("4x8", {}),
        "flat": ("8x8", {}),
    }
    assert found.baseline == "flat"
    assert found.facts["seeds"] == [0, 1, 2]
    assert [each["state"] for each in found.facts["runs"]] == ["incomplete"] * 5
    assert found.facts["name"] == tmp_path.name


def test_names_that_do_not_tell_arms_apart_give_way_to_schedules(tmp_path: Path) -> None:
    found = collect_runs(
        [
            run(tmp_path, "a/run", "prism-nano"),
            run(tmp_path, "b/run", "baseline-nano"),
            run(tmp_path, "c/run", "prism-nano", "optim.lr=0.002"),
        ]
    )
    assert found.arms == ["2x2 4x2 8x4", "8x8", "2x2 4x2 8x4 (2)"]
    assert found.facts["arms"][2]["changes"] == {"optim.lr": 0.002}


def test_a_run_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    one = run(tmp_path, "seed0")
    found = collect_runs([one, tmp_path / "." / "seed0", run(tmp_path, "heads2", "prism-nano")])
    assert found.arms == ["seed0", "heads2"]


def test_damaged_runs_are_named(tmp_path: Path) -> None:
    one = run(tmp_path, "one")
    (one / "metrics.jsonl").write_text('{"kind": "val"\n', "utf-8")
    with pytest.raises(InputError, match=r"one.metrics\.jsonl: has a line that is no JSON"):
        collect_runs([one])
    (one / "environment.json").write_text("{}", "utf-8")
    with pytest.raises(InputError, match=r"one.environment\.json: does not have all of"):
        collect_runs([one])


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    one = run(tmp_path, "one")
    with pytest.raises(InputError, match=r"two.*one.*train\.tokens: \d+ -> 4096"):
        collect_runs([one, run(tmp_path, "two", "prism-nano", "train.tokens=4096")])
    with pytest.raises(InputError, match=r"three and .*one: the same recipe and the same seed"):
        collect_runs([one, run(tmp_path, "three")])
    with pytest.raises(InputError, match=r"deep.*8 -> 12 layers"):
        collect_runs([one, run(tmp_path, "deep", "prism-nano", "model.schedule=2x4 8x8")])
    with pytest.raises(InputError, match="is not a run"):
        collect_runs([tmp_path])
