"""Rules about attention, layer by layer, on drawn profiles whose truth is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from prism_transformer.study.collected import Collected
from tests.reporting.studies import Judge, three, with_metric


def profile(shift: Callable[[int, int], float]) -> Callable[[str, int, int], float]:
    """Attention distance that grows with depth; Prism's is shifted by layer."""
    draw = np.random.default_rng(0)

    def value(arm: str, seed: int, layer: int) -> float:
        moved = shift(layer, seed) if arm == "prism" else 0.0
        return 200 + 5 * layer + moved + float(draw.normal(0, 0.3))

    return value


def attention(shift: Callable[[int, int], float], **what: object) -> list[Collected]:
    return [with_metric(one, "attention.distance", profile(shift)) for one in three(**what)]


def test_attention_as_the_paper_has_it(judged: Judge) -> None:
    # Every scale's ramp completes after layer 5, and 30 tokens are far from noise.
    found = judged(*attention(lambda layer, _: -30 if layer < 6 else peak(layer, 6)))
    for key in ("early-local", "late-equal", "boundary"):
        assert found[key].verdict == "supported", key
    assert found["middle-global"].verdict in ("supported", "within noise")


def peak(layer: int, top: int) -> float:
    """Farther from layer 6 to 8, farthest at one of them."""
    return 0.0 if layer > 8 else 40.0 if layer == top else 30.0


def test_a_turn_at_the_boundary_that_peaks_elsewhere_is_not_the_papers(judged: Judge) -> None:
    """Whole layers that are all equal are no surer than a layer: it takes more than three seeds."""
    off = attention(lambda layer, _: -30 if layer < 6 else peak(layer, 8), seeds=range(6))
    found = judged(*off)
    assert found["boundary"].verdict == "contradicted"
    words = found["boundary"].deciding[0].words
    assert "6 of 6 seeds turn" in words
    assert "they peak: +2.0 layers from layer 6" in words
    few = judged(*attention(lambda layer, _: -30 if layer < 6 else peak(layer, 8), seeds=range(2)))
    assert few["boundary"].verdict == "could not be seen"


def test_attention_the_other_way_round(judged: Judge) -> None:
    """That no seed turns is a sign test: of two it says nothing."""
    found = judged(*attention(lambda layer, _: 30.0 if layer < 6 else -30.0, seeds=range(8)))
    for key in ("early-local", "middle-global", "late-equal", "boundary"):
        assert found[key].verdict == "contradicted", key
    few = judged(*attention(lambda layer, _: 30.0 if layer < 6 else -30.0, seeds=range(2)))
    assert few["boundary"].verdict == "could not be seen"
    assert "0 of 2 seeds turn from nearer to farther (sign test p 0.5)" in (
        few["boundary"].deciding[0].words
    )


def test_attention_that_is_noise(judged: Judge) -> None:
    draw = np.random.default_rng(1)
    found = judged(*attention(lambda *_: float(draw.normal(0, 40))))
    for key in ("early-local", "middle-global", "late-equal"):
        assert found[key].verdict == "could not be seen", key


def test_noise_that_crosses_zero_at_the_boundary_is_no_turn_there(judged: Judge) -> None:
    """Each profile changes its sign where the ramp completes, but turns elsewhere."""
    alternating = attention(
        lambda layer, _: -40.0 + 30 * (layer % 2) if layer < 9 else 30.0, seeds=range(6)
    )
    assert judged(*alternating)["boundary"].verdict == "contradicted"
    draw = np.random.default_rng(3)
    noise = judged(*attention(lambda *_: float(draw.normal(0, 40))))["boundary"]
    assert noise.verdict != "supported"
    assert "changes of sign a seed" in noise.deciding[0].words
