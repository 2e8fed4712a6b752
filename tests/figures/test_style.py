from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from prism_transformer.core.errors import InputError
from prism_transformer.figures.schedules import head_schedules
from prism_transformer.figures.style import BASELINE, REST, TONES, arm_tones, plain_text, save
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.paper import presets

UNIFORM = HeadSchedule.uniform(12, 12)
SMALL = presets()["small"].schedule

MAGIC = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.mark.parametrize("ending", MAGIC)
def test_formats(tmp_path: Path, ending: str) -> None:
    file = tmp_path / "new folder" / f"figure{ending}"
    save(head_schedules(UNIFORM, SMALL, 768), file)
    assert file.read_bytes().startswith(MAGIC[ending])


def test_svg_keeps_its_text_and_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(head_schedules(UNIFORM, SMALL, 768), tmp_path / f"{name}.svg")
    text = (tmp_path / "one.svg").read_text("utf-8")
    assert text == (tmp_path / "two.svg").read_text("utf-8")
    for label in ("256", "128", "96", "64", "attention heads"):
        assert re.search(rf">{label}<", text), label
    assert "uniform: 12x12" in text
    assert "4 phases: 3x2 6x2 8x2 12x6" in text


def test_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.svg, \.pdf, \.png"):
        save(head_schedules(UNIFORM, SMALL, 768), tmp_path / "figure.bmp")
    assert not list(tmp_path.iterdir())


def test_one_colour_for_each_arm_and_grey_for_the_rest() -> None:
    tones = arm_tones(["uniform"], ["uniform", *(f"arm-{n}" for n in range(60))])
    assert tones["uniform"] is BASELINE
    assert [tones[f"arm-{n}"] for n in range(7)] == list(TONES)
    assert {tones[f"arm-{n}"] for n in range(7, 60)} == {REST}


def contrast(first: str, second: str) -> float:
    """WCAG's ratio of luminances."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("tone", [BASELINE, *TONES], ids=lambda tone: tone.name)
def test_lines_stand_out_from_the_paper(tone: object) -> None:
    assert contrast(tone.light, "#ffffff") > 3  # type: ignore[attr-defined]
    assert contrast(tone.dark, "#17181b") > 3  # type: ignore[attr-defined]


def test_a_figure_obeys_no_control_characters_and_is_whole_or_not_there(tmp_path: Path) -> None:
    figure = Figure()
    figure.suptitle(plain_text("red \x1b[31m and \u202e back"))
    figure.gca().set_xlabel("raw \x07 bell")
    save(figure, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text("utf-8")
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    ElementTree.fromstring(text)
    (tmp_path / "b.svg").mkdir()
    with pytest.raises(InputError, match=r"b\.svg: cannot be written"):
        save(figure, tmp_path / "b.svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "b.svg"]
