"""The page of ordinary and of odd studies: whole, self-contained, and showing text as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from prism_transformer.reporting.contents import make_report
from prism_transformer.reporting.page import to_html, to_text
from prism_transformer.reporting.write import write_figures
from prism_transformer.study.collected import Collected
from tests.reporting.studies import TASKS, at_scale, drawn, renamed, views_of

NASTY = "<script>alert('x')</script><img src=x onerror=alert(1)> & \"$math_1$\""


class Outline(HTMLParser):
    """Tags, ids and text of a page; whether every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("pre", "script", "style"):
            self.words.append(data)


def page_of(folder: Path, *studies: Collected) -> Outline:
    """The page alone, without the files beside it."""
    report = make_report(views_of(folder, *studies))
    (folder / "page.html").write_text(to_html(report, write_figures(report, folder, ())), "utf-8")
    (folder / "report.md").write_text(to_text(report), "utf-8")
    return outline(folder / "page.html")


def outline(page: Path) -> Outline:
    found = Outline()
    found.feed(page.read_text("utf-8"))
    assert not found.open
    return found


def many() -> Collected:
    arms = {"uniform": "8x8"} | {f"arm-{n}": f"{(1, 2, 4)[n % 3]}x{1 + n % 4} 8x{7 - n % 4}" for n in range(59)}  # fmt: skip # noqa: E501
    return drawn("many", arms=arms, tasks={}, seeds=(0, 1))


ODD = {
    "one arm": lambda: drawn(arms={"uniform": "8x8"}, tasks={}),
    "one seed": lambda: drawn(seeds=(0,)),
    "one run": lambda: drawn(arms={"uniform": "8x8"}, seeds=(0,), tasks={}),
    "a failed run": lambda: drawn(states={("prism", 0, 1): "failed"}),
    "no baseline": lambda: drawn(states={("uniform", 0, n): "failed" for n in range(3)}),
    "nothing complete": lambda: drawn(
        states={(arm, 0, n): "missing" for arm in ("uniform", "prism") for n in range(3)}
    ),
    "no evaluation": lambda: drawn(tasks={}),
    "a sweep": lambda: drawn(points=[{"optim.lr": 0.001}, {"optim.lr": 0.003}]),
    "equal losses": lambda: drawn(noise=0.0, effect=0.0),
    "sixty arms": many,
}


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=[pytest.mark.slow] * (what == "sixty arms")) for what in ODD],
)
def test_odd_studies_give_a_sensible_page(tmp_path: Path, what: str) -> None:
    page = page_of(tmp_path, ODD[what]())
    ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert {"claims", "tables", "audit", "main"} <= set(ids)
    text = " ".join(page.words)
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b", text.replace("loss is <nan>", ""))
    assert (tmp_path / "report.md").read_text("utf-8").startswith("# Prism Transformer")


def test_arms_of_one_schedule_are_told_apart_by_what_they_change(tmp_path: Path) -> None:
    study = drawn(arms={"uniform": "8x8", "prism": "2x2 4x2 8x4", "tiled": "2x2 4x2 8x4"})
    *others, tiled = study.facts.arms
    tiled = tiled.model_copy(update={"changes": {"model.rope_frequencies": "tiled"}})
    page = page_of(tmp_path, renamed(study, arms=(*others, tiled)))
    assert page.words.count("model.rope_frequencies=tiled") == 1


def test_a_remark_is_shown_as_text(tmp_path: Path) -> None:
    page = page_of(tmp_path, renamed(drawn(), note="<b>beside</b> other work"))
    assert "<b>beside</b> other work" in " ".join(page.words)


def test_a_failed_run_is_named(tmp_path: Path) -> None:
    text = " ".join(page_of(tmp_path, ODD["a failed run"]()).words)
    assert "5 of 6 runs complete" in text
    assert "1 failed: these results are partial" in text
    assert "loss is <nan> & no number" in text


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outline]:
    """The folder of an ordinary page, and what is on it."""
    folder = tmp_path_factory.mktemp("page")
    return folder, page_of(folder, at_scale("small", tasks=TASKS))


def test_the_page_needs_nothing_else(ordinary: tuple[Path, Outline]) -> None:
    folder, page = ordinary
    for tag, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "action"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, (tag, value)
    text = (folder / "page.html").read_text("utf-8")
    assert "@import" not in text
    assert "url(" not in re.sub(r"url\(#", "", text)
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_figures_have_text_alternatives(ordinary: tuple[Path, Outline]) -> None:
    _, page = ordinary
    images = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(images) == 9 + 2  # figures, and the heads of two arms
    assert all(a.get("role") == "img" and a.get("aria-label") for a in images)


def test_names_and_failures_are_shown_as_text(tmp_path: Path) -> None:
    study = drawn(arms={"uniform": "8x8", NASTY: "2x2 4x2 8x4"})
    odd = {"failure": NASTY, "run": NASTY}
    runs = tuple(run.model_copy(update=odd) for run in study.facts.runs)
    study = renamed(study, name=NASTY, question=NASTY, command=f"prism {NASTY}", runs=runs)
    page = page_of(tmp_path, study)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "img" not in {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, a in page.tags for name in a)
    assert NASTY in " ".join(page.words)
    markdown = re.sub(r"(`+).*?\1", "", (tmp_path / "report.md").read_text("utf-8"))
    assert "<script" not in markdown
    for figure in tmp_path.glob("*.svg"):
        assert "<script" not in figure.read_text("utf-8")


def test_markdown_links_to_its_figures(tmp_path: Path) -> None:
    page_of(tmp_path, drawn(tasks={}))
    text = (tmp_path / "report.md").read_text("utf-8")
    links = re.findall(r"\]\(figures/([^)]+)\)", text)
    assert links
    assert all((tmp_path / link).is_file() for link in links)
    assert "Not measured: no run has these numbers yet" in text
