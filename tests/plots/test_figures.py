from __future__ import annotations

import re
from pathlib import Path

import pytest

from prism_transformer.design import presets
from prism_transformer.errors import InputError
from prism_transformer.plots.figures import head_schedules, save
from prism_transformer.schedule import HeadSchedule

UNIFORM = HeadSchedule.uniform(12, 12)
SMALL = presets()["small"].schedule

MAGIC = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.mark.parametrize("ending", MAGIC)
def test_formats(tmp_path: Path, ending: str) -> None:
    file = tmp_path / "new folder" / f"figure{ending}"
    save(head_schedules(UNIFORM, SMALL, 768), file)
    assert file.read_bytes().startswith(MAGIC[ending])


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


def test_svg_keeps_its_text_and_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(head_schedules(UNIFORM, SMALL, 768), tmp_path / f"{name}.svg")
    text = (tmp_path / "one.svg").read_text("utf-8")
    assert text == (tmp_path / "two.svg").read_text("utf-8")
    for label in ("256", "128", "96", "64", "attention heads"):
        assert re.search(rf">{label}<", text), label
    assert "uniform: 12x12" in text
    assert "4 phases: 3x2 6x2 8x2 12x6" in text


def test_deep_models_with_many_heads_are_drawn(tmp_path: Path) -> None:
    deep = HeadSchedule.parse("16x24 32x24 128x48")
    figure = head_schedules(HeadSchedule.uniform(128, 96), deep, 8192)
    save(figure, tmp_path / "deep.png")
    assert not figure.axes[1].collections  # no lines between heads: they would hide low bars
    assert head_schedules(UNIFORM, SMALL, 768).axes[1].collections


def test_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.svg, \.pdf, \.png"):
        save(head_schedules(UNIFORM, SMALL, 768), tmp_path / "figure.bmp")
    assert not list(tmp_path.iterdir())
