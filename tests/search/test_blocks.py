"""Block scores of a trained run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.schedule import HeadSchedule
from prism_transformer.search.blocks import block_scores
from prism_transformer.search.scores import Settings, read_scores
from prism_transformer.search.shared import Shared
from prism_transformer.training.api import train
from prism_transformer.training.run import Run
from tests.training.runs import tiny


def test_each_layer_at_each_count_alone(uniform_run: Run, tmp_path: Path) -> None:
    run = tmp_path / "uniform"
    shutil.copytree(uniform_run.folder, run)
    found = block_scores(run, "2/4x1 2x2", windows=3, steps=2, rate=0.5, device="cpu")
    assert [sorted(own) for own in found.losses] == [[2, 4, 8], [2, 8], [2, 8]]
    assert [own[8] for own in found.scores] == [0, 0, 0]
    shared, asked = Shared.open(run, "cpu"), Settings(windows=3, steps=2, rate=0.5)
    by_hand = shared.loss(HeadSchedule.parse("8x1 2x1 8x1"), asked, layer=1, how="matched")
    own = shared.loss(HeadSchedule.parse("8x3"), asked, layer=1)
    assert found.losses[1] == {2: by_hand, 8: own}
    assert sorted(found.milliseconds) == [2, 4, 8]
    assert all(each > 0 for each in found.milliseconds.values())
    assert read_scores(run / "search" / "blocks.json") == found
    total = found.scores[0][4] + found.scores[1][2] + found.scores[2][2]
    assert found.predicted(HeadSchedule.parse("4x1 2x2")) == pytest.approx(total)


def test_speeds_that_belong_to_heads_are_asked_as_they_are(tmp_path: Path, data: Path) -> None:
    recipe = tiny(data, "model.schedule=8x3", "model.rope_frequencies=split", "train.tokens=1024")
    run = train(recipe, tmp_path / "split", device="cpu")
    found = block_scores(run, "4/8x1 8x2", windows=2, steps=0, timed=False, device="cpu")
    shared, asked = Shared.open(run, "cpu"), Settings(windows=2)
    assert found.losses[0][4] == shared.loss(HeadSchedule.parse("4x1 8x2"), asked)
    assert found.losses[0][4] != found.losses[0][8]


def test_spaces_of_another_model_are_refused(uniform_run: Run) -> None:
    with pytest.raises(InputError, match="has 2 layers but the model has 3"):
        block_scores(uniform_run, "2/8x2")
    with pytest.raises(InputError, match="3 heads do not divide"):
        block_scores(uniform_run, "3/8x3")
