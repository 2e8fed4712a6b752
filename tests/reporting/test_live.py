"""The page of a study that is under way."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from prism_transformer.core.progress import Begun, Event, Measured, Note, Of
from prism_transformer.reporting.live import live_page, write_live
from prism_transformer.study.folder import StudyFolder, load_study
from tests.reporting.test_page import outline
from tests.study.files import write_study

PATIENCE = 120.0  # seconds; a page takes two on an idle machine
VALIDATED = {"kind": "val", "step": 5, "loss": 3.0}  # a row as training/loop.py logs it


def begun(folder: Path, data: Path) -> StudyFolder:
    return load_study(write_study(folder, data), folder / "study")


def wait_for(file: Path) -> None:
    until = monotonic() + PATIENCE
    while not file.is_file():
        assert monotonic() < until, f"{file} was not written"
        sleep(0.05)


def test_a_page_before_any_run_has_begun(tmp_path: Path, data: Path) -> None:
    study = begun(tmp_path, data)
    page = outline(write_live(study, tmp_path / "out"))
    assert "Nothing yet: 0 of 4 runs are complete." in " ".join(page.words)
    ids = {attributes.get("id") for _, attributes in page.tags}
    assert "claims" not in ids
    assert {"tables", "live"} <= ids
    assert not (study.folder / "collected").exists()  # looking leaves no trace


def test_the_page_follows_the_news_and_events_go_on(tmp_path: Path, data: Path) -> None:
    heard: list[Event] = []
    page = tmp_path / "out" / "index.html"
    with live_page(begun(tmp_path, data), tmp_path / "out", heard.append, 0.0) as tell:
        wait_for(page)
        for news in (Begun("training"), Measured(VALIDATED)):
            page.unlink(missing_ok=True)
            tell(Of("prism-seed0", news))
            wait_for(page)
    assert heard == [
        Of("prism-seed0", Begun("training")),
        Of("prism-seed0", Measured(VALIDATED)),
    ]


def test_a_page_that_cannot_be_written_stops_nobody(tmp_path: Path, data: Path) -> None:
    (tmp_path / "out").write_text("a file")
    heard: list[Event] = []
    with live_page(begun(tmp_path, data), tmp_path / "out", heard.append, 0.0) as tell:
        until = monotonic() + PATIENCE
        while not heard and monotonic() < until:
            sleep(0.05)
        tell(Of("prism-seed0", Begun("training")))
    notes = [each for each in heard if isinstance(each, Note)]
    assert len(notes) == 1
    assert "cannot be written now" in notes[0].line


def test_a_page_of_a_stopped_study_refreshes_no_more(tmp_path: Path, data: Path) -> None:
    page = tmp_path / "out" / "index.html"
    with (
        suppress(KeyboardInterrupt),
        live_page(begun(tmp_path, data), tmp_path / "out", least_seconds=0.0),
    ):
        wait_for(page)
        assert "data-refresh" in page.read_text()
        raise KeyboardInterrupt
    assert "refresh" not in page.read_text().split("<script")[0]
    assert "stopped before its end" in " ".join(outline(page).words)
