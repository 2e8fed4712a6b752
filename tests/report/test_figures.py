from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from xml.etree import ElementTree

import pytest

from prism_transformer.report.contents import Report, make_report
from prism_transformer.report.figures import Drawing, tokens_unit
from prism_transformer.report.svg import inline_svg, svg_text
from tests.report.studies import TASKS, at_scale, drawn, views_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    arms = {"uniform": "8x8", "prism": "2x2 4x2 8x4", "reversed": "8x4 4x2 2x2"}
    nano = drawn(arms=arms, effect={"prism": -0.02, "reversed": 0.01}, tasks=TASKS)
    return make_report(
        views_of(tmp_path_factory.mktemp("figures"), nano, at_scale("small", tasks=TASKS))
    )


def drawing(report: Report, key: str) -> Drawing:
    (found,) = [one for one in report.drawings if one.key == key]
    return found


def test_every_figure_of_the_paper_is_drawn(report: Report) -> None:
    names = {one.key for one in report.drawings if one.picture is not None}
    for key in ("nano", "small"):
        assert {
            f"{key}-{name}"
            for name in ("schedules", "differences", "gap", "loss", "benchmarks", "attention",
                         "pareto", "positions")
        } <= names  # fmt: skip
    assert {"gap-scales", "nano-schedule-map"} <= names


def test_every_figure_says_what_it_shows(report: Report) -> None:
    for one in report.drawings:
        assert one.picture is not None
        assert one.alt.endswith(".")
        assert one.note
        assert one.command.startswith("prism study run")
        if not one.key.endswith("schedule-map"):
            assert one.data is not None
            assert one.data.rows
        for ax in one.picture.figure.axes:
            if ax.axison:
                words = ax.get_xlabel() + ax.get_ylabel() + ax.get_title()
                assert words or one.picture.figure.get_supxlabel()


@pytest.mark.parametrize(
    ("key", "unit"),
    [
        ("nano-loss", "nats/token"),
        ("nano-gap", "nats/token"),
        ("nano-differences", "nats/token"),
        ("nano-pareto", "tokens/s"),
        ("nano-positions", "tokens"),
        ("nano-attention", "tokens"),
        ("gap-scales", "nats/token"),
    ],
)
def test_axes_have_units(report: Report, key: str, unit: str) -> None:
    picture = drawing(report, key).picture
    assert picture is not None
    assert any(unit in ax.get_xlabel() + ax.get_ylabel() for ax in picture.figure.axes)


def test_points_answer_to_hovering_with_their_numbers(report: Report) -> None:
    one = drawing(report, "nano-differences")
    assert one.picture is not None
    text = inline_svg(svg_text(one.picture.figure), one.picture, "k", one.alt, report.arms)
    root = ElementTree.fromstring(text)
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert [title.split(":")[0] for title in titles] == ["prism", "reversed"]
    assert one.data is not None
    for title, row in zip(titles, one.data.rows, strict=True):
        assert row.cells[2].text in title
    assert {root.find(f".//{SVG}g[@data-arm='{n}']") is not None for n in (1, 2)} == {True}


def test_curves_answer_point_by_point(report: Report) -> None:
    for key in ("nano-loss", "nano-gap", "nano-positions", "nano-attention"):
        one = drawing(report, key)
        assert one.picture is not None
        text = inline_svg(svg_text(one.picture.figure), one.picture, "k", one.alt, report.arms)
        marked = [mark for mark in one.picture.marks if mark.tips]
        assert text.count("<title>") == sum(len(mark.tips) for mark in marked), key


def test_inline_figures_are_images_with_ids_of_their_own(report: Report) -> None:
    seen: set[str] = set()
    for one in report.drawings:
        assert one.picture is not None
        text = inline_svg(svg_text(one.picture.figure), one.picture, one.key, one.alt, report.arms)
        root = ElementTree.fromstring(text)
        assert root.get("role") == "img"
        assert root.get("aria-label") == one.alt
        ids = {element.get("id") for element in root.iter() if element.get("id")}
        assert not ids & seen
        seen |= {str(name) for name in ids}
        for element in root.iter(f"{SVG}use"):
            assert (element.get("href") or "")[1:] in ids
        assert "http" not in text.replace("http://www.w3.org/", "")
        assert "var(--" in text


def test_the_data_of_a_curve_are_means_over_seeds(report: Report) -> None:
    view = report.sections[0].view
    table = view.collected.table
    rows = table[(table["metric"] == "val_loss") & (table["arm"] == "prism")]
    data = drawing(report, "nano-loss").data
    assert data is not None
    shown = [row for row in data.rows if row.arm == "prism"]
    steps = sorted(set(rows["step"]))
    assert len(shown) == len(steps)
    for step, row in zip(steps, shown, strict=True):
        values = [float(value) for value in rows[rows["step"] == step]["value"]]
        assert row.cells[1].text == f"{step * 2048 / 1e3:g}"
        assert row.cells[2].text == f"{mean(values):.4f}"
        assert row.cells[3].text == f"{stdev(values):.4f}"


def test_gap_across_scales_has_ours_and_the_papers(report: Report) -> None:
    data = drawing(report, "gap-scales").data
    assert data is not None
    gaps = {(r.cells[0].text, r.cells[1].text): r.cells[3].value for r in data.rows}
    assert gaps["small", "paper"] == pytest.approx(-0.0144)
    losses = report.sections[1].view.collected.final_loss()
    expected = losses["prism"].mean() - losses["uniform"].mean()
    assert gaps["small", "ours"] == pytest.approx(expected)
    errors = {r.cells[0].text: r.cells[4].value for r in data.rows if r.cells[1].text == "ours"}
    both = losses["prism"].std() ** 2 + losses["uniform"].std() ** 2
    assert errors["small"] == pytest.approx(both**0.5)


def test_gap_across_scales_says_whose_the_marks_are(report: Report) -> None:
    picture = drawing(report, "gap-scales").picture
    assert picture is not None
    (legend,) = picture.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ours", "the paper's"]


def test_the_built_in_check_is_not_called_a_benchmark(report: Report, tmp_path: Path) -> None:
    both = {"diagnostic_pairs": "acc", "diagnostic_cloze": "acc"}
    alone = make_report(views_of(tmp_path, drawn(tasks=both)))
    figure = drawing(alone, "nano-benchmarks")
    table = next(one for one in alone.tables if one.key == "benchmarks")
    assert figure.title == table.title == "Zero-shot diagnostic"
    assert "no benchmarks, and not in the paper" in figure.note
    assert "no benchmarks, and not in the paper" in table.note
    mixed = make_report(views_of(tmp_path, drawn(tasks=TASKS | both)))
    assert drawing(mixed, "nano-benchmarks").title == "Zero-shot benchmarks"
    assert "built-in check" in drawing(mixed, "nano-benchmarks").note
    assert "built-in check" not in drawing(report, "nano-benchmarks").note


def test_missing_inputs_leave_labelled_gaps(tmp_path: Path) -> None:
    study = drawn(tasks={})
    gone = study.table["metric"].str.startswith(("attention.", "loss_at_position", "val_loss"))
    study = replace(study, table=study.table[~gone])
    found = {one.key: one for one in make_report(views_of(tmp_path, study)).drawings}
    for name, command in (
        ("benchmarks", "prism eval"),
        ("attention", "prism analyze"),
        ("positions", "prism study run, of a study with [loss]"),
        ("loss", "prism study run"),
        ("gap", "prism study run"),
    ):
        one = found[f"nano-{name}"]
        assert one.picture is None
        assert one.missing
        assert one.command.startswith(command)


def test_units_of_tokens() -> None:
    assert tokens_unit(2e10) == (1e9, "billions")
    assert tokens_unit(5e6) == (1e6, "millions")
    assert tokens_unit(5e3) == (1e3, "thousands")
    assert tokens_unit(5) == (1.0, "tokens")
