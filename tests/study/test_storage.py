"""The database of a queue; how it is shared and killed is in test_together.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.study.queue import _Retry
from prism_transformer.study.storage import open_storage, shown


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("postgresql://me:secret@host/name", "postgresql://host/name"),
        ("postgresql://host/name?user=me&password=secret", "postgresql://host/name?..."),
        ("sqlite:////tmp/queue.db", "sqlite:////tmp/queue.db"),
    ],
)
def test_a_password_is_never_shown(url: str, plain: str) -> None:
    assert shown(url) == plain


def test_no_error_shows_it_either() -> None:
    url = "postgresql://127.0.0.1:1/name?password=secret%20word&connect_timeout=1&odd=secret%20word"
    with pytest.raises(InputError, match="cannot be opened") as caught:
        open_storage(url, 1, 6, _Retry)
    assert "secret" not in str(caught.value)


def test_a_damaged_file_may_be_deleted_and_a_missing_one_is_made(tmp_path: Path) -> None:
    file = tmp_path / "queue.db"
    url = f"sqlite:///{file}"
    open_storage(url, 1, 6, _Retry)
    whole = file.read_bytes()
    for damaged in (b"not a database" * 300, whole[:100] + bytes(4000) + whole[4100:]):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match=r"queue\.db: is damaged: .* may be deleted"):
            open_storage(url, 1, 6, _Retry)
