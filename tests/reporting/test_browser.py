"""The page in a real browser: Debian's chromium, or Chrome; its own download is not needed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prism_transformer.reporting.contents import make_report
from prism_transformer.reporting.page import to_html
from prism_transformer.reporting.reading import read_views
from prism_transformer.reporting.views import View
from prism_transformer.reporting.write import write_figures
from tests.reporting.studies import SMALL, TASKS, at_scale, drawn, views_of

AXE = "axe-core@4.14.0"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ROOT = Path(__file__).parents[2]
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no browser: install chromium (apt-get install chromium) to test the page")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        # The sandbox needs privileges that containers do not have; the page is our own.
        opened = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of axe-core, from node_modules or from npm."""
    inside = Path("node_modules") / "axe-core" / "axe.min.js"
    if (ROOT / inside).is_file():
        return (ROOT / inside).read_text("utf-8")
    if shutil.which("npm") is None:
        pytest.skip("no npm, and no axe-core in node_modules: accessibility is not tested")
    folder = tmp_path_factory.mktemp("npm")
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), AXE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install axe-core: {done.stderr[-200:]}")
    return (folder / inside).read_text("utf-8")


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


def write_page(folder: Path, views: list[View]) -> Path:
    report = make_report(views)
    file = folder / "index.html"
    file.write_text(to_html(report, write_figures(report, folder, ())), "utf-8")
    return file


class Tab:
    """A page that remembers what it complained about and what it asked for."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.context = browser.new_context(**({"viewport": DESK} | context))
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.errors.append(m.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())


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
    figures = tab().page.locator("figure svg")
    assert figures.count() == 20
    for place in range(figures.count()):
        assert figures.nth(place).get_attribute("role") == "img"
        assert len(figures.nth(place).get_attribute("aria-label")) > 20
        box = figures.nth(place).bounding_box()
        assert box["width"] > 200
        assert box["height"] > 50


def test_tables_sort_by_number_and_by_name(tab: Any) -> None:
    page = tab().page
    table = page.locator("#table-ablation table")
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
    page.evaluate(axe)
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")
    serious = [
        f"{one['id']}: {one['help']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:3]
    ]
    assert serious == [], json.dumps(serious, indent=1)


def test_prints(tab: Any, tmp_path: Path) -> None:
    page = tab(color_scheme="dark").page
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".arms").is_visible()


RESULTS = sorted(file.parent for file in ROOT.glob("results/*/study.json"))


@pytest.mark.parametrize("study", RESULTS, ids=lambda study: study.name)
def test_the_page_of_each_committed_study(
    browser: Any, axe: str, tmp_path: Path, study: Path
) -> None:
    file = write_page(tmp_path, read_views([study]))
    one = Tab(browser, file, viewport=PHONE, bypass_csp=True)
    assert one.page.locator("figure svg[role=img]").count() > 5
    assert one.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    one.page.evaluate(axe)
    found = one.page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []
    assert one.errors == []
    assert {url for url in one.requests if not url.startswith("data:")} == {file.as_uri()}
    one.context.close()
