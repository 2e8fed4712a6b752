"""The hub, as far as it can be had without one: faults of a network, and files as ranges."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from prism_transformer.core.errors import InputError
from prism_transformer.data import hub
from prism_transformer.data.corpora import Files, open_corpus
from prism_transformer.data.hub import HubFile, commit_of, read_name

COMMIT = "0123456789" * 4


class Flaky:
    """A file system of local files whose every other read fails."""

    def __init__(self, folder: Path, every: int = 2) -> None:
        self.folder, self.every, self.asked, self.n_bytes = folder, every, 0, 0

    def info(self, url: str) -> dict[str, int]:
        return {"size": (self.folder / url.rpartition("/")[2]).stat().st_size}

    def cat_file(self, url: str, start: int, end: int) -> bytes:
        self.asked += 1
        if self.asked % self.every == 0:
            raise ConnectionError("the line is gone")
        self.n_bytes += end - start
        return (self.folder / url.rpartition("/")[2]).read_bytes()[start:end]


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Flaky, list[HubFile]]:
    for number in range(2):
        texts = [f"row {n} of file {number} {'x' * 3000}" for n in range(400)]
        table = pyarrow.table({"text": texts, "language": ["en", "de"] * 200})
        file = tmp_path / f"{number}.parquet"
        parquet.write_table(table, file, row_group_size=50, compression="none")
    files = Flaky(tmp_path)
    monkeypatch.setattr(hub, "_filesystem", lambda: files)
    monkeypatch.setattr(hub, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(hub, "BLOCK", 4096)
    return files, [HubFile(f"hf://datasets/o/n@{COMMIT}/{number}.parquet") for number in range(2)]


def test_a_line_that_breaks_changes_nothing(
    remote: tuple[Flaky, list[HubFile]], tmp_path: Path
) -> None:
    flaky, files = remote
    here = Files("here", sorted(tmp_path.glob("*.parquet")))
    assert list(Files("there", files).documents()) == list(here.documents())
    assert flaky.asked > 100
    # Going on near the end reads a footer and a row group, not everything again.
    flaky.n_bytes = 0
    assert len(list(Files("there", files).documents((1, 390)))) == 10
    assert flaky.n_bytes < 0.25 * files[1].stat().st_size


def test_a_line_that_stays_broken_is_said(remote: tuple[Flaky, list[HubFile]]) -> None:
    flaky, files = remote
    flaky.every = 1
    with pytest.raises(InputError, match=r"0\.parquet: .*the line is gone; tried 3 times.*go on"):
        list(Files("there", files).documents())


def test_names_and_commits() -> None:
    assert read_name("o/n:c@main") == ("o/n", "c", "main")
    assert read_name("o/n") == ("o/n", "", "")
    assert commit_of(read_name(f"o/n@{COMMIT}")) == COMMIT  # nobody is asked
    one, two = (open_corpus(f"hf:o/n@{each}") for each in (COMMIT, COMMIT[::-1]))
    assert one.revision == COMMIT
    assert one.fingerprint() != two.fingerprint()
    assert open_corpus(f"hub:o/n@{COMMIT}").name == one.name


def test_records_are_left_out_by_their_fields(remote: tuple[Flaky, list[HubFile]]) -> None:
    _, files = remote
    from prism_transformer.data.conditions import read_condition

    found = list(Files("there", files, where=(read_condition("language=de"),)).documents())
    assert sum(document.problem is None for document in found) == 400
    assert {d.problem.cause for d in found if d.problem} == {"not language=de"}
