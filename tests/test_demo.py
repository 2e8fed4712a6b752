"""The demo, whole, as README's first command runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer import demo
from prism_transformer.neutrality import Measurement
from tests.conftest import Prism


@pytest.mark.slow
def test_demo_draws_builds_and_proves(prism: Prism, tmp_path: Path) -> None:
    result = prism("demo")
    assert result.returncode == 0, result.stderr
    for expected in ("Prism small, 124M", "16 heads |", "123,587,328", "the schedule acts"):
        assert expected in result.stdout
    assert " NO" not in result.stdout
    written = sorted(file.name for file in (tmp_path / "prism-demo").iterdir())
    assert written == ["schedule-large.png", "schedule-medium.png", "schedule-small.png"]


def test_demo_would_see_a_pair_that_is_not_neutral(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch
    from rich.console import Console

    seen = iter(
        Measurement(123, "weights", 1, 2, 3, logits=torch.full((1,), float(n))) for n in range(2)
    )
    monkeypatch.setattr(demo, "measure", lambda *_: next(seen))
    assert not demo.run_demo(Console(quiet=True), tmp_path)
