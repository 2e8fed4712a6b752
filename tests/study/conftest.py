"""A study that was run to its end, shared by the tests that only look at it."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.study.folder import StudyFolder
from tests.study.files import STAGES, STUDY, finish_study, tiny_plan


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, data: Path) -> StudyFolder:
    folder = tmp_path_factory.mktemp("study")
    home = finish_study(tiny_plan(folder, data, STUDY + STAGES), folder / "tiny")
    home.collect()
    return home
