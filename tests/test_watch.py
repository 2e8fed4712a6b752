"""A run as people see it, on a terminal and elsewhere."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from prism_transformer import watch as module
from prism_transformer.train.run import Row
from prism_transformer.watch import watch


def rows() -> Iterator[Row]:
    yield {"step": 0, "kind": "val", "loss": 8.0, "seconds": 1.0}
    for step in range(1, 5):
        speed = {"tokens_per_second": 12345.6, "utilisation": 0.41 if step > 2 else None}
        yield {"step": step, "kind": "train", "loss": 8.0 - step, **speed}
    yield {"step": 4, "kind": "attention", "largest_logit": [1.0]}
    yield {"step": 4, "kind": "val", "loss": 4.25, "seconds": 1.0}


@pytest.mark.parametrize("terminal", [True, False])
def test_rows_pass_through_and_are_shown(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_SECONDS", 0)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, highlight=False)
    assert list(watch(console, rows(), 0, 4)) == list(rows())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "step 0  validation loss 8.0000" in shown
    assert "step 4  validation loss 4.2500" in shown
    assert "4/4" in shown if terminal else "step 2 of 4  loss 6.0000  12,346 tokens/s" in shown
    assert "41% of peak" in shown
