from __future__ import annotations

import pytest

from prism_transformer.schedule import HeadSchedule, ScheduleError
from prism_transformer.schedules.design import reverse
from prism_transformer.schedules.paper import presets
from prism_transformer.schedules.rules import check_rules, layer_ranges


def broken(text: str, d_model: int = 768, h_base: int | None = 12) -> dict[str, tuple[int, ...]]:
    findings = check_rules(HeadSchedule.parse(text), d_model, h_base)
    return {finding.rule: finding.layers for finding in findings if not finding.ok}


@pytest.mark.parametrize("name", ["small", "medium", "large", "baseline", "config-7"])
def test_the_paper_keeps_its_own_rules(name: str) -> None:
    preset = presets()[name]
    assert broken(str(preset.schedule), preset.d_model, preset.h_base) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5x2 12x10", {"divisibility": (0, 1)}),
        ("6x2 3x2 12x8", {"monotonicity": (2,)}),
        ("3x2 6x10", {"convergence": (11,), "preservation": tuple(range(12))}),
        ("3x1 6x1 8x1 12x9", {"smoothness": (0, 1, 2)}),
        ("3x4 6x4 12x4", {"preservation": tuple(range(8))}),
        ("3x3 6x3 12x6", {}),
    ],
)
def test_each_rule_is_reported_alone_with_its_layers(
    text: str, expected: dict[str, tuple[int, ...]]
) -> None:
    assert broken(text) == expected


def test_half_of_an_odd_depth_is_rounded_against_the_ramp() -> None:
    assert "preservation" in broken("3x3 12x2")
    assert "preservation" not in broken("3x2 12x3")


def test_findings_come_in_the_papers_order_with_reasons() -> None:
    findings = check_rules(presets()["small"].schedule, 768, 12)
    assert [(f.kind, f.rule) for f in findings] == [
        ("constraint", "divisibility"),
        ("constraint", "monotonicity"),
        ("constraint", "convergence"),
        ("guideline", "smoothness"),
        ("guideline", "preservation"),
    ]
    assert all(f.reason for f in findings)


def test_base_defaults_to_the_largest_count_so_that_a_reversed_schedule_does_not_converge() -> None:
    reversed_small = reverse(presets()["small"].schedule)
    assert set(broken(str(reversed_small), h_base=None)) == {"monotonicity", "convergence"}


def test_what_no_model_can_have_is_an_error_not_a_finding() -> None:
    with pytest.raises(ScheduleError, match="odd"):
        check_rules(HeadSchedule.parse("256x2"), 768)
    with pytest.raises(ScheduleError, match=r"layer 1.*odd"):
        check_rules(HeadSchedule.parse("5x1 256x1"), 768)
    with pytest.raises(ScheduleError, match="d_model=-4"):
        check_rules(HeadSchedule.parse("2x2"), -4)
    with pytest.raises(ScheduleError, match="h_base=0"):
        check_rules(HeadSchedule.parse("2x2"), 768, 0)


@pytest.mark.parametrize(
    ("layers", "text"),
    [((0,), "layer 0"), ((0, 1, 2, 5), "layers 0-2, 5"), ((1, 3), "layers 1, 3")],
)
def test_layer_ranges(layers: tuple[int, ...], text: str) -> None:
    assert layer_ranges(layers) == text
