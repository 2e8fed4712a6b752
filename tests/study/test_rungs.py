"""Rungs of a search, written down when it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.study.compare import compare
from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.halving import choose_rungs
from prism_transformer.study.rungs import RUNGS_FILE, Rungs, read_rungs, write_rungs
from prism_transformer.study.sentences import remarks
from tests.study.files import STUDY, tiny_plan


def test_rungs_are_final_once_a_search_has_begun(tmp_path: Path, data: Path) -> None:
    plain = StudyFolder(tiny_plan(tmp_path, data, STUDY + "[search]\n"), tmp_path / "tiny")
    begun = Rungs(shares=(0.75,), why="a rung at 0.75 of training: as it was then")
    write_rungs(plain.folder, begun)
    assert choose_rungs(plain) == begun
    told = remarks(compare(plain.collect()))
    assert any("Its rungs: a rung at 0.75 of training: as it was then." in line for line in told)
    assert read_rungs(plain.folder / "confirm") == begun  # the confirmation is of the same search
    file = plain.folder / RUNGS_FILE
    file.write_text(file.read_text("utf-8").replace("0.75", "0.25"), "utf-8")
    with pytest.raises(InputError, match=f"{RUNGS_FILE}: is damaged or was changed"):
        read_rungs(plain.folder)
    assert read_rungs(tmp_path) is None
