from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.errors import InputError
from prism_transformer.folders import new_folder


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
