"""Names of numbers: what is written can be read again."""

from __future__ import annotations

import pytest

from prism_transformer.study import metrics


@pytest.mark.parametrize(
    "key", [("piqa", "acc"), ("blimp", "acc_norm"), ("a.task.with.dots", "word_perplexity")]
)
def test_a_score_is_told_from_its_error_and_count(key: tuple[str, str]) -> None:
    assert metrics.scored(metrics.eval_score(*key)) == key
    assert metrics.scored(metrics.eval_score(*key) + metrics.STDERR) is None
    assert metrics.scored(metrics.eval_score(*key) + metrics.ITEMS) is None


def test_other_numbers_are_no_scores() -> None:
    for name in (metrics.FINAL_LOSS, metrics.attention("distance"), metrics.inference("prefill")):
        assert metrics.scored(name) is None


def test_names_are_those_of_tables_that_were_collected_before() -> None:
    """Tables in results/ are committed: a renamed number would vanish from their reports."""
    assert metrics.eval_score("piqa", "acc") == "eval.piqa.acc"
    assert metrics.attention("distance") == "attention.distance"
    assert metrics.inference_ratio("decoding") == "inference.decoding.ratio"
    assert (metrics.VAL_LOSS, metrics.FINAL_LOSS) == ("val_loss", "final_val_loss")
