from __future__ import annotations

import shutil
from pathlib import Path

from prism_transformer.core.progress import Event, Note
from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.grouping import group_runs
from tests.training.runs import finish, tiny


def test_runs_that_do_not_belong_together_are_told(
    finished: StudyFolder, tmp_path: Path, data: Path
) -> None:
    runs = [run.folder for run in finished.runs]
    events: list[Event] = []
    assert group_runs(runs, events.append) == [runs]
    assert not events
    again = shutil.copytree(runs[0], tmp_path / "again")
    other = tmp_path / "other"
    finish(other, tiny(data, "train.tokens=1024"))
    assert group_runs([*runs, again, other], events.append) == [runs]
    assert events == [
        Note(f"left out {again}: the same recipe and seed as {runs[0]}"),
        Note(f"left out {other}: no other run can be compared with it"),
    ]
    events.clear()
    assert group_runs([runs[0], other], events.append) == [[runs[0]], [other]]
    assert events[0] == Note("2 groups of runs that cannot be compared with each other:")
