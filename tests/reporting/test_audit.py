"""The paper's numbers held against each other: worked out here by hand."""

from __future__ import annotations

import pytest

from prism_transformer.reporting.audit import (
    Statement,
    amount,
    audit,
    derived_hours,
    gain_and_mean_heads,
)


@pytest.fixture(scope="module")
def findings() -> dict[str, Statement]:
    return {finding.key: finding for finding in audit()}


def test_gain_follows_the_mean_head_count(findings: dict[str, Statement]) -> None:
    heads = [12, 10.4167, 10.3333, 10, 10, 9.6667, 9.5, 8.8333, 8.3333]
    gains = [0, 0.0056, 0.0065, 0.0093, 0.0100, 0.0101, 0.0120, 0.0143, 0.0150]
    x, y = sum(heads) / 9, sum(gains) / 9
    top = sum((h - x) * (g - y) for h, g in zip(heads, gains, strict=True))
    bottom = sum((h - x) ** 2 for h in heads) * sum((g - y) ** 2 for g in gains)
    assert gain_and_mean_heads() == pytest.approx(top / bottom**0.5, abs=1e-5)
    assert gain_and_mean_heads() == pytest.approx(-0.98, abs=0.005)
    assert "\u22120.98" in findings["mean-heads"].found


def test_hours(findings: dict[str, Statement]) -> None:
    assert amount("2.88B") == 2.88e9
    for scale, tokens, rate, printed in (
        ("small", 2.88e9, 2.875e6, 0.31),
        ("medium", 10.49e9, 1.025e6, 3.03),
        ("large", 20.97e9, 0.656e6, 9.09),
    ):
        assert derived_hours()[scale] == pytest.approx((tokens / rate / 3600, printed))
    assert "small 0.28 h against 0.31 (11 % longer)" in findings["hours"].found


@pytest.mark.parametrize(
    ("key", "meets", "words"),
    [
        ("tokens-per-parameter", False, "small 23.3, medium 29.6, large 27.7"),
        ("abrupt", False, "config-4 (6x4 12x8, 2 phases) 0.0100; config-2"),
        ("start", False, "start 3: 0.0056, 0.0120, 0.0143"),
        ("blimp", False, "small +0.5, medium \u22120.2, large +0.0"),
        ("scales", False, "small 0.0144, medium 0.0071, large 0.0084"),
        ("share", True, "0.0143 of 0.0150 is 95.3 %"),
        ("noise", True, "small p = 0.00"),
        ("rounding", True, "config-1, config-4, small"),
        ("widths", False, "small 256, 128, 96, 64"),
    ],
)
def test_findings(findings: dict[str, Statement], key: str, meets: bool, words: str) -> None:
    assert findings[key].meets is meets
    assert words in findings[key].found
    assert findings[key].where


def test_what_divides_all_layers(findings: dict[str, Statement]) -> None:
    """3, 6, 8, 12; 4, 8, 16; 6, 12, 16."""
    one = findings["shared-divisor"]
    assert "small 1; medium 4; large 2" in one.found
    assert not one.meets


def test_what_table_5_does_not_have(findings: dict[str, Statement]) -> None:
    """Of its twelve layers Prism and Config-7 have six at the base, and none has fewer."""
    assert "at least 50 %" in findings["half"].found
    assert "Of its 8 schedules not one ever falls" in findings["trajectory"].found
    assert not findings["half"].meets
    assert not findings["trajectory"].meets


def test_the_items_of_winogrande(findings: dict[str, Statement]) -> None:
    one = findings["winogrande"]
    assert "small +0.8, medium +0.7, large +0.7" in one.found
    assert f"{100 * (0.494 * 0.506 / 1267) ** 0.5:.1f} points" in one.found  # 1.4
    assert not one.meets
