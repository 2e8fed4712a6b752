"""Gaps against model size."""

from __future__ import annotations

from typing import cast

import pytest
from matplotlib.text import Annotation

from prism_transformer.core.table import PAPER, Column, Row, Spread, Table, words
from prism_transformer.figures.sizes import across_sizes, size_label
from prism_transformer.figures.style import REST


def test_sizes_in_words() -> None:
    assert [size_label(n) for n in (470_000, 123_587_328, 7e9)] == ["470K", "124M", "7B"]


def test_studies_of_one_size_stand_side_by_side_about_it() -> None:
    columns = (*words("study", "arm", "source"), Column("parameters"), Column("gap", sign=True))
    sizes = {"a": 1e6, "b": 1e6, "c": 1e6, "d": 5e6}
    rows: list[Row] = [
        {"study": name, "arm": "prism", "source": "ours", "parameters": size,
         "gap": Spread(-0.01, 0.005)}
        for name, size in sizes.items()
    ]  # fmt: skip
    rows.append({"study": "small", "arm": None, "source": PAPER, "parameters": 1e8, "gap": -0.02})
    chart = across_sizes(Table("sizes", columns, tuple(rows)), "parameters", "gap", {"prism": REST})
    (ax,) = chart.figure.axes
    texts = {each.get_text(): cast(Annotation, each).xy for each in ax.texts}
    assert sorted(texts) == ["a", "b", "c", "d"]
    places = [texts[name][0] for name in "abc"]
    assert places[1] == pytest.approx(1e6)
    assert places[1] / places[0] == pytest.approx(places[2] / places[1])
    assert places[2] > 1.2 * places[1]
    assert texts["d"][0] == pytest.approx(5e6)  # alone: at its size
    assert [y for _, y in texts.values()] == pytest.approx([-0.005] * 4)  # above the whisker
