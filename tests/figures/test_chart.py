"""A row in words, and charts within a page: points that answer, ids of their own."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from prism_transformer.core.table import Column
from prism_transformer.figures.chart import (
    Chart,
    arm_legend,
    axis_label,
    canvas,
    inline_svg,
    listed,
    place_text,
    svg_text,
    values_text,
)
from prism_transformer.figures.style import arm_tones
from tests.figures.tables import ARMS, DIFFERENCES, LOSS, SPEED, charts

SVG = "{http://www.w3.org/2000/svg}"
NUMBERS = {arm: place for place, arm in enumerate(ARMS)}


def test_a_row_in_words() -> None:
    keys = ("difference", "95 % interval")
    first, second = (values_text(DIFFERENCES, row, *keys) for row in DIFFERENCES.rows)
    assert first == "\u22120.0200, 95 % interval \u22120.0300 to \u22120.0100 nats/token"
    assert second == "+0.0100 nats/token"  # there is no interval
    speed = values_text(SPEED, SPEED.rows[0], "loss", "rate")
    assert speed == "3.0000 \u00b1 0.1000 nats/token, 1,000 \u00b1 5 tokens/s"


def test_where_a_point_stands() -> None:
    assert place_text(LOSS.column("training"), 2) == "2 thousands of tokens"
    assert place_text(Column("layer", name="layer of the model"), 3) == "layer 3"


def test_labels_are_no_mathematics() -> None:
    assert axis_label(Column("loss", "nats", name="less $a_1$'s")) == r"less \$a_1\$'s, nats"


def test_long_lists_are_cut() -> None:
    assert listed(["a", "b"]) == "a; b."
    assert listed(list("abcdefghijklmno")).endswith("l; 3 more are in the data.")


def test_arms_that_share_the_grey_are_counted() -> None:
    tones = arm_tones(["uniform"], [f"arm-{n}" for n in range(10)])
    chart, _ = canvas(6.4, 3.6)
    arm_legend(chart.figure, tones, tones)
    (legend,) = chart.figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["uniform", *(f"arm-{n}" for n in range(7)), "3 more"]


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    """Each chart as it stands in a page."""
    return {key: inline(chart, key) for key, chart in charts().items()}


def inline(chart: Chart, key: str) -> str:
    return inline_svg(svg_text(chart.figure), chart, key, f"{key} in words.", NUMBERS)


def test_points_answer_to_hovering_with_their_numbers(drawn: dict[str, str]) -> None:
    root = ElementTree.fromstring(drawn["differences"])
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert sorted(map(str, titles)) == [
        "prism, paper: \u22120.0143 nats/token",
        "prism: \u22120.0200, 95 % interval \u22120.0300 to \u22120.0100 nats/token",
        "reversed: +0.0100 nats/token, one pair",
    ]
    assert {root.find(f".//{SVG}g[@data-arm='{n}']") is not None for n in (1, 2)} == {True}


def test_every_tip_stands_at_a_point(drawn: dict[str, str]) -> None:
    for key, chart in charts().items():
        tips = [tip for mark in chart.marks for tip in mark.tips]
        assert drawn[key].count("<title>") == len(tips) > 0, key


def test_inline_figures_are_images_with_ids_of_their_own(drawn: dict[str, str]) -> None:
    seen: set[str] = set()
    for key, text in drawn.items():
        root = ElementTree.fromstring(text)
        assert root.get("role") == "img"
        assert root.get("aria-label") == f"{key} in words."
        ids = {str(element.get("id")) for element in root.iter() if element.get("id")}
        assert not ids & seen
        seen |= ids
        for element in root.iter(f"{SVG}use"):
            assert (element.get("href") or "")[1:] in ids
        assert "http" not in text.replace("http://www.w3.org/", "")
        assert "var(--" in text
