"""When a search drops arms, and why then: rungs.json in the study's folder.

Rungs that were chosen from finished runs are final once the search has begun: its own runs finish
too, and would move them under a search that goes on after a kill.
"""

from __future__ import annotations

from pathlib import Path

from prism_transformer.core.sealed import SealedPart, read_sealed, typed, write_sealed

RUNGS_FILE = "rungs.json"
CONFIRM = "confirm"  # folder of the runs with fresh seeds, in the study's


class Rungs(SealedPart):
    """Shares of the budget at which arms are dropped, and why these."""

    shares: tuple[float, ...]
    why: str


def read_rungs(folder: Path) -> Rungs | None:
    """What a search wrote down, in the study's folder or that of its confirmation; None before."""
    places = [folder, folder.parent] if folder.name == CONFIRM else [folder]
    file = next((file for each in places if (file := each / RUNGS_FILE).is_file()), None)
    return typed(file, read_sealed(file), Rungs) if file else None


def write_rungs(folder: Path, rungs: Rungs) -> None:
    """Write down what was chosen."""
    write_sealed(folder / RUNGS_FILE, rungs.model_dump(mode="json"))
