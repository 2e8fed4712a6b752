"""Training on a mixture: exact resume, hashes that know it, shares that are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Event, Note
from prism_transformer.data.prepare import Preparation, prepare
from prism_transformer.hf.export import export
from prism_transformer.recipe import Recipe
from prism_transformer.training.api import resume, train
from prism_transformer.training.run import read_environment, read_run
from tests.training.runs import assert_same_end, finish, tiny


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second corpus in bytes."""
    home = tmp_path_factory.mktemp("other")
    (home / "text.txt").write_text("def f(x):\n    return x + 1\n" * 600, "utf-8")
    prepare(Preparation(str(home / "text.txt"), "bytes", home / "code", 320, like=None))
    return home / "code"


def mixed(data: Path, other: Path, weight: float = 0.25, *overrides: str) -> Recipe:
    folders = f'{{folder="{data}", weight={1 - weight}}}, {{folder="{other}", weight={weight}}}'
    return tiny(data, f"data.mixture=[{folders}]", *overrides)


def test_a_run_that_was_stopped_ends_in_the_same_bits(
    tmp_path: Path, data: Path, other: Path
) -> None:
    recipe = mixed(data, other)
    finish(tmp_path / "whole", recipe)
    train(recipe, tmp_path / "stopped", until=7, device="cpu")
    assert read_run(tmp_path / "stopped") == recipe
    resume(tmp_path / "stopped", device="cpu")
    assert_same_end(tmp_path / "whole", tmp_path / "stopped")
    with pytest.raises(InputError, match=r"data\.mixture"):
        resume(tmp_path / "whole", mixed(data, other, 0.5), device="cpu")


def test_hashes_know_the_mixture(tmp_path: Path, data: Path, other: Path) -> None:
    runs = {
        "prism": mixed(data, other),
        "uniform": mixed(data, other, 0.25, "model.schedule=8x3"),
        "half": mixed(data, other, 0.5),
        "alone": tiny(data),
    }
    for name, recipe in runs.items():
        train(recipe, tmp_path / name, until=1, device="cpu")
    found = {name: read_environment(tmp_path / name)["hashes"] for name in runs}
    assert found["prism"] == found["uniform"]
    assert len({found[name]["data_order"] for name in ("prism", "half", "alone")}) == 3
    assert found["prism"]["shards"] == found["half"]["shards"]
    assert set(found["alone"]["shards"]) == {"train_000000.bin", "val_000000.bin"}
    assert set(found["prism"]["shards"]) == {
        "0:train_000000.bin",
        "1:train_000000.bin",
        "val_000000.bin",
    }


def test_shares_are_told_and_stand_in_the_card(tmp_path: Path, data: Path, other: Path) -> None:
    told: list[Event] = []
    recipe = mixed(data, other)
    train(recipe, tmp_path / "run", until=1, device="cpu", tell=told.append)
    lines = [each.line for each in told if isinstance(each, Note)]
    # 20 steps of 16 windows: a quarter of 320, as near as a part of a round has it.
    (line,) = (each for each in lines if each.startswith(f"mixture: {other}:"))
    windows = int(line.split("windows, ")[1].split(",")[0])
    assert abs(windows - 80) < 30
    assert f"{windows / 320:.1%} of the training windows" in line
    assert f"validation: {data}, whatever is mixed" in lines
    export(str(tmp_path / "run"), tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert f"{data} (75.0%), {other} (25.0%)" in card
