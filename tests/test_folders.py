from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prism_transformer.errors import InputError
from prism_transformer.folders import locked, new_folder, write_whole


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    with new_folder(target) as place:
        (place / "file").write_text("text", "utf-8")
        assert not target.exists()
    assert (target / "file").read_text("utf-8") == "text"
    assert [path.name for path in target.parent.iterdir()] == ["b"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("bug")])
def test_what_fails_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    expected = InputError if isinstance(error, OSError) else RuntimeError

    def fail() -> None:
        with new_folder(tmp_path / "out") as place:
            (place / "half").write_text("text", "utf-8")
            raise error

    with pytest.raises(expected):
        fail()
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_but_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with new_folder(empty) as place:
        (place / "file").touch()
    with pytest.raises(InputError, match="exists already"), new_folder(empty):
        pass
    with pytest.raises(InputError, match="exists already"), new_folder(empty / "file"):
        pass


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    script = (
        "import sys; from pathlib import Path; from prism_transformer.folders import locked\n"
        "with locked(Path(sys.argv[1])): pass"
    )
    other = [sys.executable, "-c", script, str(folder)]
    with locked(folder):
        done = subprocess.run(other, capture_output=True, text=True, check=False)
        assert "another process is writing there" in done.stderr
        (folder / "work").touch()
    assert subprocess.run(other, check=False).returncode == 0
    assert [file.name for file in folder.iterdir()] == ["work"]


def test_a_killed_process_leaves_no_lock_behind(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from prism_transformer.folders import locked\n"
        "with locked(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert (tmp_path / ".lock").exists()
    with locked(tmp_path):
        pass
    assert not any(tmp_path.parent.glob(f"{tmp_path.name}/*"))


def test_a_file_is_whole_whoever_else_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    texts = [letter * 100_000 for letter in "abcd"]

    def write(text: str) -> None:
        for _ in range(10):
            write_whole(file, text)
            assert file.read_text("utf-8") in texts

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(write, texts))
    assert list(tmp_path.iterdir()) == [file]
