from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.data.loader import open_windows
from prism_transformer.data.prepare import Preparation, prepare, verify_shards
from tests.data.test_foreign import LITDATA, by_datatrove, documents


def test_files_are_trained_on_where_they_are(tmp_path: Path) -> None:
    source = by_datatrove(tmp_path / "tokens").parent
    before = sorted(file.name for file in source.iterdir())
    order = Preparation(str(source), "bytes", tmp_path / "out", val_tokens=8, like=None)
    manifest = prepare(order).manifest
    # Validation ends with the document that has the ninth token: 2 + 3 + 4.
    assert [(e.split, e.start, e.tokens, e.documents) for e in manifest.shards] == [
        ("val", 0, 9, 3),
        ("train", 9, 81, 9),
    ]
    assert verify_shards(tmp_path / "out") == 2
    tokens = [token for row in documents() for token in row]
    windows = open_windows(tmp_path / "out", "train", 10, 257)
    assert windows.read([0, 3]).tolist() == [tokens[9:20], tokens[39:50]]
    assert windows.names == ["00000_tokens.ds[9:]"]
    names = {"verified.json"}  # what was checked is remembered beside the files
    assert {file.name for file in source.iterdir()} - names == set(before)
    assert not list((tmp_path / "out").glob("*.bin"))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    source = by_datatrove(tmp_path / "tokens")
    order = Preparation(str(source), "gpt2", tmp_path / "out", val_tokens=8, like=None)
    with pytest.raises(InputError, match="not parted by token 50256"):
        prepare(order)
    tokens = np.fromfile(source, np.uint16)
    tokens[0] = 300
    tokens.tofile(source)
    with pytest.raises(InputError, match="has token 300, beyond the vocabulary of 257"):
        prepare(Preparation(str(source), "bytes", tmp_path / "out", val_tokens=8, like=None))
    with pytest.raises(InputError, match="token files are of gpt2 or bytes"):
        prepare(Preparation(str(source), "bpe:300", tmp_path / "out", like=None))
    assert not (tmp_path / "out").exists()


def test_litdatas_files_are_trained_on_behind_their_headers(tmp_path: Path) -> None:
    source = tmp_path / "tokens"
    shutil.copytree(LITDATA / "uint16", source)
    order = Preparation(str(source), "bytes", tmp_path / "out", val_tokens=8, like=None)
    manifest = prepare(order).manifest
    # A header of 4 x (8 + 2) bytes is 20 tokens; the second file has one of 4 x (4 + 2).
    assert [(e.file, e.split, e.start, e.tokens, e.documents) for e in manifest.shards] == [
        ("chunk-0-0.bin", "val", 20, 9, 3),
        ("chunk-0-0.bin", "train", 29, 35, 5),
        ("chunk-0-1.bin", "train", 12, 46, 4),
    ]
    assert verify_shards(tmp_path / "out") == 3
    tokens = [token for row in documents() for token in row]
    windows = open_windows(tmp_path / "out", "train", 10, 257)
    assert windows.read([0, 3]).tolist() == [tokens[9:20], tokens[39:50]]
