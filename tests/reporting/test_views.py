from __future__ import annotations

from pathlib import Path

from prism_transformer.models.cost import parameters
from prism_transformer.recipes.files import load_recipe
from prism_transformer.reporting.reading import read_views
from prism_transformer.study.collected import write_collected
from tests.reporting.studies import at_scale, drawn


def test_a_point_of_a_sweep_has_its_own_recipe(tmp_path: Path) -> None:
    points = [{"model.d_model": 128, "train.tokens": 8192}, {"model.d_model": 256}]
    write_collected(tmp_path, drawn(points=points))
    first, second = read_views([tmp_path])
    assert (first.d_model, second.d_model) == (128, 256)
    assert first.tokens == 8192 < second.tokens
    wide = load_recipe("baseline-micro", ["model.d_model=256"]).model
    assert second.parameters == parameters(wide).total > first.parameters


def test_the_main_arm(tmp_path: Path) -> None:
    arms = {"uniform": "12x12", "other": "6x12", "ours": "3x2 6x2 8x2 12x6"}
    for place, study in enumerate(
        (
            at_scale("small", arms=arms),  # the paper's schedule, whatever it is called
            drawn(arms={"uniform": "8x8", "b": "4x8", "Prism": "2x2 8x6"}),  # by name
            drawn(arms={"uniform": "8x8", "b": "4x8"}),  # the first
            drawn(arms={"uniform": "8x8"}),  # none
        )
    ):
        write_collected(tmp_path / str(place), study)
    assert [view.main for view in read_views([tmp_path])] == ["ours", "Prism", "b", None]
