from __future__ import annotations

from pathlib import Path

from prism_transformer.figures.schedules import head_schedules
from prism_transformer.figures.style import save
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.paper import presets
from tests.figures.tables import charts

UNIFORM = HeadSchedule.uniform(12, 12)
SMALL = presets()["small"].schedule


def test_one_bar_a_layer_as_high_as_its_heads() -> None:
    left, right = head_schedules(UNIFORM, SMALL, 768).axes
    assert [round(bar.get_height()) for bar in left.patches] == [12] * 12  # type: ignore[attr-defined]
    assert [round(bar.get_height()) for bar in right.patches] == list(SMALL.heads)  # type: ignore[attr-defined]


def test_colour_is_the_width_and_the_same_in_every_figure() -> None:
    _, right = head_schedules(UNIFORM, SMALL, 768).axes
    colours = [bar.get_facecolor() for bar in right.patches]
    assert len(set(colours)) == 4
    medium = presets()["medium"].schedule
    _, other = head_schedules(HeadSchedule.uniform(16, 24), medium, 1024).axes
    assert other.patches[0].get_facecolor() == colours[0]  # both 256 wide


def test_deep_models_with_many_heads_are_drawn(tmp_path: Path) -> None:
    deep = HeadSchedule.parse("16x24 32x24 128x48")
    figure = head_schedules(HeadSchedule.uniform(128, 96), deep, 8192)
    save(figure, tmp_path / "deep.png")
    assert not figure.axes[1].collections  # no lines between heads: they would hide low bars
    assert head_schedules(UNIFORM, SMALL, 768).axes[1].collections


def test_tables_of_heads_say_what_is_drawn() -> None:
    stairs = [tip for mark in charts()["stairs"].marks for tip in mark.tips]
    assert stairs[-1] == "prism, layer 1: 4 heads of width 16"
    tips = [tip for mark in charts()["map"].marks for tip in mark.tips]
    assert tips == [
        "uniform, layers 0 to 1: 4 heads of width 16",
        "prism, layer 0: 1 heads of width 64",
        "prism, layer 1: 4 heads of width 16",
        "reversed, layer 0: 4 heads of width 16",
        "reversed, layer 1: 1 heads of width 64",
    ]
