from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prism_transformer.core.disk import (
    appended,
    file_sha256,
    locked,
    new_folder,
    partial_of,
    plain_name,
    read_json,
    read_whole,
    sweep_partial,
    write_whole,
    writing,
)
from prism_transformer.core.errors import InputError


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
        "import sys; from pathlib import Path; from prism_transformer.core.disk import locked\n"
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
        "import os, sys; from pathlib import Path; from prism_transformer.core.disk import locked\n"
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


def test_a_link_is_not_followed_when_a_lock_is_taken(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept", "utf-8")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / ".lock").symlink_to(precious)
    with pytest.raises(InputError, match="is a symbolic link"), locked(folder):
        pass
    with pytest.raises(InputError, match="is a symbolic link"):
        appended(folder / ".lock")
    assert precious.read_text("utf-8") == "kept"


def test_a_link_is_replaced_by_the_file_that_is_written(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / "link"
    precious.write_text("kept", "utf-8")
    link.symlink_to(precious)
    write_whole(link, "new")
    assert (precious.read_text("utf-8"), link.read_text("utf-8")) == ("kept", "new")


def test_whoever_comes_second_hears_who_was_first(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "out"),
        pytest.raises(InputError, match=rf"writing there \(process {os.getpid()} on "),
        locked(tmp_path / "out"),
    ):
        pass


def test_what_a_killed_process_left_is_swept_and_what_lives_stays(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from prism_transformer.core.disk import new_folder\n"
        "with new_folder(Path(sys.argv[1])) as place:\n"
        "    (place / 'half').touch()\n"
        "    os.kill(os.getpid(), 9)"
    )
    target = tmp_path / "out"
    subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.partial-")
    with new_folder(target) as first:
        assert not left.exists()
        sweep_partial(target)
        assert first.exists()  # somebody is at it
        (first / "file").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_with_a_key_is_found_by_others_and_not_swept(tmp_path: Path) -> None:
    target = tmp_path / "out"
    partial_of(target, "shared").mkdir()  # of somebody who was killed
    (partial_of(target, "shared") / "half").touch()
    with new_folder(target, "shared") as place:
        assert place == partial_of(target, "shared")
        assert not (place / "half").exists()
        sweep_partial(target)
        (partial_of(target, "shared") / "part").touch()
        with pytest.raises(InputError, match="File exists"), new_folder(target, "shared"):
            pass
    assert [path.name for path in target.iterdir()] == ["part"]


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "environment.json"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=r"environment\.json: cannot be read: is no ordinary file"):
        read_json(pipe)
    with pytest.raises(OSError, match="is no ordinary file"):
        file_sha256(pipe)
    (tmp_path / "there").write_bytes(b"x")
    assert read_whole(tmp_path / "there") == b"x"


def test_the_file_that_failed_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"source\.txt: No such file"),
        new_folder(tmp_path / "out"),
    ):
        (tmp_path / "source.txt").read_bytes()
    (tmp_path / "folder").mkdir()
    refused = pytest.raises(InputError, match=r"folder.?: cannot be written: Is a directory")
    with refused, writing(tmp_path / "folder"):
        (tmp_path / "folder").write_bytes(b"")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\0b"])
def test_a_path_is_no_name(name: str) -> None:
    with pytest.raises(InputError, match="is no name of a file"):
        plain_name(name)
    assert plain_name("train_000000.bin") == "train_000000.bin"
