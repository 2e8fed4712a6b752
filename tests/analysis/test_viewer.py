"""The page that looks into attention: what is in it, and how it reads in a real browser."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prism_transformer import attention_view
from prism_transformer.analysis.viewer import AttentionView
from prism_transformer.analysis.weights import WHOLE
from prism_transformer.core.errors import InputError
from prism_transformer.data.tokenizer import ByteTokenizer
from prism_transformer.hf.export import Opened, to_hf, to_hf_tokenizer, write_hf
from tests.analysis.models import model_of
from tests.browsing import DESK, PHONE, Tab, serious
from tests.reporting.test_page import outline

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(1)> & the state of the Union."


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "a<b>.txt"
    file.write_text(f"My fellow citizens: {NASTY} Once more: the state of the Union is strong.\n")
    return file


@pytest.fixture(scope="module")
def view(text: Path) -> AttentionView:
    return attention_view("nano", "nano-uniform", text=str(text))


@pytest.fixture(scope="module")
def page(view: AttentionView, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return view.write(tmp_path_factory.mktemp("view") / "out.html")


def facts_of(page: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = model_of(attention="bidirectional")
    place = tmp_path_factory.mktemp("encoder") / "hf"
    write_hf(Opened(to_hf(model), to_hf_tokenizer(ByteTokenizer(), 64, 257)), place)
    return str(place)


@pytest.fixture(scope="module")
def encoder_view(encoder: str, text: Path) -> AttentionView:
    return attention_view(encoder, text=str(text))


@pytest.fixture(scope="module")
def encoder_page(encoder_view: AttentionView, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder_view.write(tmp_path_factory.mktemp("view") / "encoder.html")


@pytest.mark.parametrize("kind", ["", "encoder_"], ids=["causal", "bidirectional"])
def test_what_is_packed_is_what_was_measured(kind: str, request: pytest.FixtureRequest) -> None:
    """Unpacked as the script does it: for each head its keys, weights and blocks."""
    view: AttentionView = request.getfixturevalue(f"{kind}view")
    page: Path = request.getfixturevalue(f"{kind}page")
    for one, told in zip(view.models, facts_of(page)["models"], strict=True):
        values = np.frombuffer(gzip.decompress(b64decode(told["packed"])), "<u2")
        length, n, blocks = len(one.tokens), told["kept"], told["blocks"]
        both_ways = one.found.profile.attention == "bidirectional"
        assert told["both_ways"] == both_ways == bool(kind)
        triangle = blocks * (blocks + 1) // 2
        size = 2 * length * n + (blocks**2 if both_ways else triangle)
        assert len(values) == size * sum(told["heads"])
        each = (head for layer in one.found.heads for head in layer)
        for part, head in zip(values.reshape(-1, size), each, strict=True):
            assert (part[: length * n].reshape(length, n) == head.keys[:, :n]).all()
            assert (
                part[length * n : 2 * length * n].reshape(length, n) == head.weights[:, :n]
            ).all()
            row, column = blocks - 1, blocks // 2
            start = row * blocks if both_ways else row * (row + 1) // 2
            assert part[2 * length * n + start + column] == head.blocks[row, column]
        assert both_ways or "".join(told["tokens"]).endswith("Union is strong.\n")
        assert told["tokens"] == list(one.tokens)
        for layer, found in enumerate(one.found.profile.layers):
            known = told["statistics"]["entropy"][layer]
            assert known == pytest.approx(found["entropy"].heads, rel=1e-5)


def test_texts_and_names_stay_text_and_nothing_is_fetched(page: Path) -> None:
    found = outline(page)
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert not {"img", "b"} & {tag for tag, attributes in found.tags if attributes.get("src")}
    assert "alert(1)</script>" not in page.read_text("utf-8")
    assert "a<b>.txt" in " ".join(found.words)
    policy = next(a["content"] for _, a in found.tags if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert page.stat().st_size < 1_000_000


def test_an_encoder_has_its_own_statistics_and_no_causal_model_beside_it(
    encoder: str, encoder_page: Path, text: Path
) -> None:
    (told,) = facts_of(encoder_page)["models"]
    assert list(told["statistics"]) == ["distance", "entropy", "sink", "ahead"]
    assert all(0 < value < 1 for layer in told["statistics"]["ahead"] for value in layer)
    assert "all of the text" in encoder_page.read_text("utf-8")
    with pytest.raises(InputError, match="hf is bidirectional and nano is causal"):
        attention_view(encoder, "nano", text=str(text))


def test_wrong_endings_and_empty_texts_are_refused(view: AttentionView, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.html, not '\.txt'"):
        view.write(tmp_path / "out.txt")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match=r"empty\.txt"):
        attention_view("nano", text=str(tmp_path / "empty.txt"))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_in_a_browser(
    browser: Any, axe: str, page: Path, view: AttentionView, size: dict[str, int], scheme: str
) -> None:
    one = Tab(browser, page, viewport=size, color_scheme=scheme, bypass_csp=True)
    first = one.page.locator(".model").first
    first.locator(".looks td").first.wait_for()
    heads = [one.found.profile.schedule for one in view.models]
    assert one.page.locator(".map button").count() == sum(map(sum, heads))
    # As many heads in each column as the layer has: a staircase.
    columns = first.locator(".map button").evaluate_all(
        "all => all.map(b => Math.round(b.getBoundingClientRect().x))"
    )
    assert [columns.count(x) for x in dict.fromkeys(columns)] == list(heads[0])
    assert one.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert serious(one.page, axe) == []
    assert one.errors == []
    assert {url for url in one.requests if not url.startswith("data:")} == {page.as_uri()}
    one.context.close()


@pytest.mark.slow
def test_a_head_and_a_token_by_keyboard_say_exact_numbers(
    browser: Any, page: Path, view: AttentionView
) -> None:
    one = Tab(browser, page)
    first = one.page.locator(".model").first
    cell = first.get_by_role("button", name=re.compile("^layer 5, head 1:"))
    cell.click()
    cell.press("ArrowRight")
    assert (
        first.locator("[aria-pressed=true]")
        .get_attribute("aria-label")
        .startswith("layer 6, head 1")
    )
    first.locator(".text").focus()
    one.page.keyboard.press("ArrowLeft")
    seen = view.models[0]
    query, head = len(seen.tokens) - 2, seen.found.heads[6][1]
    shown = first.locator(".looks tbody tr").all_text_contents()
    weights = [f"{100 * int(units) / WHOLE:.2f} %" for units in head.weights[query] if units]
    assert [row[-len(text) :] for row, text in zip(shown, weights, strict=False)] == weights
    # The other model reads the same text and shows the same token.
    other = one.page.locator(".model").nth(1).locator(".text .now")
    assert other.text_content() == first.locator(".text .now").text_content()
    box = first.locator(f".text span:nth-child({int(head.keys[query][0]) + 1})").bounding_box()
    one.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert weights[0] in one.page.locator("#tip").text_content()
    one.page.get_by_label("sink").check()
    assert "sink" in cell.get_attribute("aria-label")
    assert one.errors == []
    one.context.close()


@pytest.mark.slow
def test_of_an_encoder_later_tokens_are_seen(
    browser: Any, encoder_page: Path, encoder_view: AttentionView
) -> None:
    one = Tab(browser, encoder_page)
    cell = one.page.get_by_role("button", name=re.compile("^layer 0, head 0:"))
    cell.click()
    one.page.locator(".text span").first.click()
    assert one.page.locator(".text .later").count() == 0
    head = encoder_view.models[0].found.heads[0][0]
    best = int(head.keys[0][0])
    assert best > 0
    one.page.locator(f".text span:nth-child({best + 1})").hover()
    weight = f"{100 * int(head.weights[0][0]) / WHOLE:.2f} %"
    assert weight in one.page.locator("#tip").text_content()
    one.page.get_by_label("ahead").check()
    assert "ahead" in cell.get_attribute("aria-label")
    assert one.errors == []
    one.context.close()


@pytest.mark.slow
def test_without_script_the_numbers_are_there(browser: Any, page: Path) -> None:
    one = Tab(browser, page, java_script_enabled=False)
    one.page.locator("#numbers summary").click()
    assert one.page.locator("#numbers tbody tr").count() == 22 + 32
    one.context.close()
