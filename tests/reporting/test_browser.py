"""The page in a real browser: Debian's chromium, or Chrome; its own download is not needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prism_transformer.reporting.contents import make_report
from prism_transformer.reporting.page import to_html
from prism_transformer.reporting.reading import read_views
from prism_transformer.reporting.views import View
from prism_transformer.reporting.write import write_figures
from tests.browsing import DESK, PHONE, ROOT, Tab, serious
from tests.reporting.studies import SMALL, TASKS, at_scale, drawn, factorial, views_of
from tests.reporting.test_page import many

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two drawn studies with everything a page can have."""
    folder = tmp_path_factory.mktemp("page")
    arms = {
        "uniform": "8x8", "prism": "2x2 4x2 8x4", "reversed": "8x4 4x2 2x2",
        "<b>odd & long name</b> of an arm": "4x8",
    }  # fmt: skip
    states = {("reversed", 0, 2): "failed"}
    nano = drawn(arms=arms, tasks=TASKS, states=states)
    small = at_scale("small", arms=SMALL, tasks={}, noise=0.001)
    return write_page(folder, views_of(folder, nano, small))


def write_page(folder: Path, views: list[View], *, live: bool = False) -> Path:
    report = make_report(views, live=live)
    file = folder / "index.html"
    file.write_text(to_html(report, write_figures(report, folder, ())), "utf-8")
    return file


@pytest.fixture
def tab(browser: Any, page_file: Path) -> Iterator[Any]:
    opened: list[Tab] = []

    def make(**context: Any) -> Tab:
        opened.append(Tab(browser, page_file, **context))
        return opened[-1]

    yield make
    for one in opened:
        one.context.close()


def test_nothing_is_complained_about_and_nothing_is_fetched(tab: Any, page_file: Path) -> None:
    one = tab()
    one.page.wait_for_timeout(200)
    assert one.errors == []
    assert {url for url in one.requests if not url.startswith("data:")} == {page_file.as_uri()}


def test_figures_have_text_alternatives(tab: Any) -> None:
    page = tab().page
    figures = page.locator("figure svg")
    # Two of each study stand at its top, all others below.
    assert figures.count() == page.locator("figure").count() == 20
    assert page.locator(".front figure").count() == 4
    for place in range(figures.count()):
        assert figures.nth(place).get_attribute("role") == "img"
        assert len(figures.nth(place).get_attribute("aria-label")) > 20
        box = figures.nth(place).bounding_box()
        assert box["width"] > 200
        assert box["height"] > 50


def test_tables_sort_by_number_and_by_name(tab: Any) -> None:
    page = tab().page
    table = page.locator("#table-ablation table")
    assert not table.is_visible()
    page.locator("#table-ablation > summary").click()
    head = table.locator("th", has_text="mean heads")

    def column() -> list[float]:
        return [float(text) for text in table.locator("tbody td:nth-child(4)").all_text_contents()]

    before = column()
    head.locator("button").click()
    assert column() == sorted(before)
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").press("Enter")
    assert column() == sorted(before, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    table.locator("th", has_text="arm").first.locator("button").click()
    names = table.locator("tbody td:nth-child(2)").all_text_contents()
    assert names[0].startswith("<b>odd")
    assert head.get_attribute("aria-sort") is None


def test_arms_can_be_switched_off_and_on_with_the_keyboard(tab: Any) -> None:
    page = tab().page
    box = page.get_by_role("checkbox", name="reversed")
    number = box.get_attribute("id").removeprefix("arm-")
    of_it = page.locator(f"[data-arm='{number}']")
    shown = f"() => [...document.querySelectorAll(\"[data-arm='{number}']\")]"
    visible = f"({shown})().filter(e => getComputedStyle(e).display !== 'none').length"
    assert of_it.count() > 10
    assert page.evaluate(visible) == of_it.count()
    box.focus()
    page.keyboard.press("Space")
    assert page.evaluate(visible) == 0
    page.get_by_role("button", name="none", exact=True).click()
    assert page.locator("input:checked").count() == 0
    page.get_by_role("button", name="all", exact=True).click()
    assert page.evaluate(visible) == of_it.count()


def test_arms_switch_without_script_too(tab: Any) -> None:
    page = tab(java_script_enabled=False).page
    row = page.locator("#table-results tr[data-arm]", has_text="reversed").first
    page.locator("#table-results > summary").click()
    assert row.is_visible()
    page.get_by_role("checkbox", name="reversed").uncheck()
    assert not row.is_visible()
    assert page.locator("h1").is_visible()
    assert page.locator("th button").count() == 0


def test_values_under_the_pointer_and_by_arrow_keys(tab: Any) -> None:
    page = tab().page
    point = page.locator("#figure-nano-differences .point").first
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2)
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    assert tip.text_content().startswith("prism: ")
    page.mouse.move(2, 2)
    page.locator("#figure-nano-loss .picture").focus()
    page.keyboard.press("ArrowRight")
    assert "uniform, 0 thousands of tokens" in tip.text_content()
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def check_first_screen(page: Any, size: dict[str, int]) -> None:
    """Question, answer and a whole figure, without scrolling."""
    for place in ("h1", ".answer", ".front figure svg >> nth=0"):
        box = page.locator(place).first.bounding_box()
        assert box["y"] >= 0, place
        assert box["y"] + box["height"] <= size["height"], place
        assert box["width"] <= size["width"], place


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_first_screen_answers(tab: Any, size: dict[str, int]) -> None:
    page = tab(viewport=size).page
    check_first_screen(page, size)
    if size is DESK:  # both figures beside each other, and every arm's heads
        boxes = [
            each.bounding_box() for each in page.locator(".front").first.locator("figure").all()
        ]
        assert boxes[0]["y"] == boxes[1]["y"]
        stairs = page.locator(".stairs").first.bounding_box()
        assert stairs["y"] + stairs["height"] <= size["height"]
        assert page.locator(".side nav").bounding_box()["x"] < boxes[0]["x"]


def test_every_section_has_an_address_that_opens_it(browser: Any, page_file: Path) -> None:
    one = Tab(browser, page_file)
    links = one.page.locator(".side nav a").evaluate_all("all => all.map(a => a.hash.slice(1))")
    assert {"study-nano", "contrasts-nano", "claims", "tables", "audit"} <= set(links)
    assert all(one.page.locator(f"[id='{link}']").count() == 1 for link in links)
    one.page.goto(f"{page_file.as_uri()}#table-runs")
    assert one.page.locator("#table-runs table").is_visible()
    one.context.close()


def test_a_claim_opens_to_its_rule(tab: Any) -> None:
    page = tab(java_script_enabled=False).page
    claim = page.locator("#claims .claims > li").first
    assert not claim.locator(".rule").is_visible()
    claim.locator("summary").click()
    assert claim.locator(".rule").is_visible()


CASES = {
    "factorial": factorial,
    "sweep": lambda: drawn(points=[{"optim.lr": 10.0**-n} for n in (4, 3, 2)], tasks={}),
    "sixty arms": many,
    "one seed": lambda: drawn(seeds=(0,)),
    "failed runs": lambda: drawn(states={("prism", 0, n): "failed" for n in (0, 1)}),
    "one run": lambda: drawn(arms={"uniform": "8x8"}, seeds=(0,), tasks={}),
}


@pytest.mark.parametrize("what", CASES)
def test_first_screens_of_odd_studies(browser: Any, axe: str, tmp_path: Path, what: str) -> None:
    file = write_page(tmp_path, views_of(tmp_path, CASES[what]()))
    assert file.stat().st_size < 2_000_000
    for size, scheme in ((DESK, "light"), (PHONE, "dark")):
        one = Tab(browser, file, viewport=size, color_scheme=scheme, bypass_csp=True)
        check_first_screen(one.page, size)
        assert one.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert one.errors == []
        assert serious(one.page, axe) == []
        one.context.close()


def test_control_characters_are_seen_and_not_obeyed(browser: Any, tmp_path: Path) -> None:
    arms = {"uniform": "8x8", "pri\x1b[31msm\u202etxt": "2x2 4x2 8x4"}
    one = Tab(browser, write_page(tmp_path, views_of(tmp_path, drawn(arms=arms, tasks={}))))
    assert r"pri\x1b[31msm\u202etxt ends" in one.page.locator(".answer").text_content()
    assert not {"\x1b", "\u202e"} & set(one.page.content())
    assert one.errors == []
    one.context.close()


def test_a_live_page_reads_itself_anew_and_can_be_stopped(
    browser: Any, axe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prism_transformer.reporting.page.REFRESH", 2)
    file = write_page(tmp_path, views_of(tmp_path, drawn(tasks={})), live=True)
    one = Tab(browser, file, bypass_csp=True)
    page = one.page
    file.write_text(file.read_text("utf-8").replace("Nothing yet", "Some more"), "utf-8")
    page.locator(".answer", has_text="Some more").wait_for()
    page.get_by_role("button", name="stop refreshing").click()
    file.write_text(file.read_text("utf-8").replace("Some more", "Too late"), "utf-8")
    page.wait_for_timeout(3000)
    assert "Some more" in page.locator(".answer").text_content()
    assert serious(page, axe) == []  # a refresh by <meta> would be
    assert one.errors == []
    one.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_no_sideways_scrolling_in_light_and_dark(
    tab: Any, tmp_path: Path, scheme: str, size: dict[str, int]
) -> None:
    page = tab(viewport=size, color_scheme=scheme).page
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 100_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_axe_finds_nothing_serious(tab: Any, axe: str, scheme: str, size: dict[str, int]) -> None:
    # The page's own policy would refuse a script that is not its own.
    page = tab(viewport=size, color_scheme=scheme, bypass_csp=True).page
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert serious(page, axe) == []


def test_prints(tab: Any, tmp_path: Path) -> None:
    page = tab(color_scheme="dark").page
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".side").is_visible()
    assert page.locator("#table-runs table").is_visible()  # what is folded is on paper
    order = ["#study-nano", "#contrasts-nano", "#measured-nano", "#claims", "#tables", "#audit"]
    tops = [page.locator(place).bounding_box()["y"] for place in order]
    assert tops == sorted(tops)


RESULTS = sorted(file.parent for file in ROOT.glob("results/*/study.json"))


@pytest.mark.parametrize("study", RESULTS, ids=lambda study: study.name)
def test_the_page_of_each_committed_study(
    browser: Any, axe: str, tmp_path: Path, study: Path
) -> None:
    file = write_page(tmp_path, read_views([study]))
    one = Tab(browser, file, viewport=PHONE, bypass_csp=True)
    assert one.page.locator("figure svg[role=img]").count() > 5
    assert one.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert serious(one.page, axe) == []
    assert one.errors == []
    assert {url for url in one.requests if not url.startswith("data:")} == {file.as_uri()}
    one.context.close()
