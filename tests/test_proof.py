"""Neutrality, whole, as the command proves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer import proof
from prism_transformer.neutrality import Measurement
from tests.conftest import Prism


@pytest.mark.slow
def test_it_draws_builds_and_proves(prism: Prism, tmp_path: Path) -> None:
    result = prism("neutrality")
    assert result.returncode == 0, result.stderr
    for expected in ("Prism small, 124M", "16 heads |", "123,587,328", "the schedule acts"):
        assert expected in result.stdout
    assert " NO" not in result.stdout
    written = sorted(file.name for file in (tmp_path / "figures").iterdir())
    assert written == ["schedule-large.png", "schedule-medium.png", "schedule-small.png"]


def test_it_would_see_a_pair_that_is_not_neutral(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch
    from rich.console import Console

    seen = iter(
        Measurement(123, "weights", 1, 2, 3, logits=torch.full((1,), float(n))) for n in range(2)
    )
    monkeypatch.setattr(proof, "measure", lambda *_: next(seen))
    assert not proof.prove(Console(quiet=True), tmp_path)
