"""Token files of other tools, made by those tools' own writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datatrove.pipeline.tokens.tokenizer import TokenizedFile

from prism_transformer.data import foreign
from prism_transformer.data.foreign import open_foreign
from prism_transformer.data.shards import ShardError

LITDATA = Path(__file__).parent / "litdata"  # litdata 0.2.76's optimize, with TokensLoader
DOLMA = Path(__file__).parent / "dolma" / "part-0-00000.npy"  # dolma 1.2.1's MemmapWriter


def documents(count: int = 12, end: int = 256) -> list[list[int]]:
    return [[*range(1, number + 2), end] for number in range(count)]


def by_datatrove(folder: Path, size: int = 2, metadata: bool = True) -> Path:
    writer = TokenizedFile(
        str(folder),
        "00000_tokens.ds",
        tokenizer_name_or_path="gpt2",
        save_final_metadata=metadata,
        token_size=size,
    )
    for row in documents():
        writer.write(row, None)
    writer.close()
    return folder / "00000_tokens.ds"


def by_megatron(folder: Path, dtype: Any = np.uint16) -> Path:
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    import torch

    builder = indexed.IndexedDatasetBuilder(str(folder / "a.bin"), dtype=dtype)
    for row in documents():
        builder.add_document(torch.tensor(row), [len(row)])
    builder.finalize(str(folder / "a.idx"))
    return folder / "a.bin"


def check(file: Path, token_type: str | None = None) -> None:
    found = open_foreign(file, token_type)
    assert found.tokens.tolist() == [token for row in documents() for token in row]
    assert found.ends.tolist() == np.cumsum([len(row) for row in documents()]).tolist()


def test_datatroves_files(tmp_path: Path) -> None:
    for size, kind in ((2, "uint16"), (4, "uint32")):
        file = by_datatrove(tmp_path, size)
        check(file)
        check(file, kind)
        with pytest.raises(ShardError, match=f"its metadata says {kind}"):
            open_foreign(file, "int32")
    bare = by_datatrove(tmp_path, 2)
    Path(f"{bare}.metadata").unlink()
    with pytest.raises(ShardError, match=r"does not say .*--token-type uint16 or uint32"):
        open_foreign(bare)
    check(bare, "uint16")
    with pytest.raises(ShardError, match=r"tokens\.ds: .*of another token type"):
        open_foreign(bare, "uint32")


def test_megatrons_files(tmp_path: Path) -> None:
    for dtype in (np.uint16, np.int32):
        check(by_megatron(tmp_path, dtype))
    with pytest.raises(ShardError, match=r"a\.idx: says int32"):
        open_foreign(tmp_path / "a.bin", "uint16")


def test_dolmas_files() -> None:
    check(DOLMA, "uint16")
    with pytest.raises(ShardError, match="--token-type uint16 or uint32"):
        open_foreign(DOLMA)


@pytest.mark.parametrize("kind", ["int32", "uint16"])
def test_litdatas_files(kind: str) -> None:
    files = sorted((LITDATA / kind).glob("*.bin"))
    assert len(files) == 2
    tokens: list[int] = []
    ends: list[int] = []
    for file in files:
        found = open_foreign(file)
        assert found.tokens.dtype == kind
        ends += [len(tokens) + int(end) for end in found.ends]
        tokens += found.tokens.tolist()
    assert tokens == [token for row in documents() for token in row]
    assert ends == np.cumsum([len(row) for row in documents()]).tolist()
    with pytest.raises(ShardError, match=f"its index says {kind}, --token-type uint32"):
        open_foreign(files[0], "uint32")


def test_damage_in_litdatas_files_is_named(tmp_path: Path) -> None:
    for each in (LITDATA / "uint16").iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    file, index = tmp_path / "chunk-0-0.bin", tmp_path / "index.json"
    sound, said = file.read_bytes(), index.read_text("utf-8")
    for content in (sound[:-2], sound[:10], b"", sound + b"ab", b"\x09" + sound[1:]):
        file.write_bytes(content)
        with pytest.raises(ShardError, match=r"chunk-0-0\.bin: has"):
            open_foreign(file)
    shifted = sound[:8] + b"\xff" + sound[9:]  # the first document would end behind the second
    file.write_bytes(shifted)
    with pytest.raises(ShardError, match=r"chunk-0-0\.bin"):
        open_foreign(file)
    file.write_bytes(sound)
    for before, after, why in (
        ('"compression": null', '"compression": "zstd"', "has compression zstd"),
        ("tensor:20", "tensor:18", "only tokens are read that were written with TokensLoader"),
        ('"TokensLoader"', '"PyTreeLoader"', "only tokens are read"),
    ):
        index.write_text(said.replace(before, after), "utf-8")
        foreign._read_chunks.cache_clear()  # which knows it by its time
        with pytest.raises(ShardError, match=why):
            open_foreign(file)
    for wrong in ("{", "[]", '{"shards": []}', '{"chunks": 3, "config": {}}'):
        index.write_text(wrong, "utf-8")
        foreign._read_chunks.cache_clear()
        with pytest.raises(ShardError, match="is no token file that is known"):
            open_foreign(file)


@pytest.mark.parametrize("make", [by_datatrove, by_megatron])
def test_damage_is_named(tmp_path: Path, make: Any) -> None:
    file = make(tmp_path)
    index = Path(f"{file}.index") if file.suffix == ".ds" else file.with_suffix(".idx")
    sound, marks = file.read_bytes(), index.read_bytes()
    for content in (sound[:-2], sound[:-1], b"", sound + b"ab"):
        file.write_bytes(content)
        with pytest.raises(ShardError, match=file.name):
            open_foreign(file)
    file.write_bytes(sound)
    for content in (marks[:-8], marks[:20], marks[:-1]):
        index.write_bytes(content)
        with pytest.raises(ShardError, match=file.stem):
            open_foreign(file)
    if file.suffix == ".ds":
        index.unlink()
        with pytest.raises(ShardError, match=r"needs 00000_tokens\.ds\.index beside it"):
            open_foreign(file)
