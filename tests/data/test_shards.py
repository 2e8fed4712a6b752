from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_transformer.core.disk import file_sha256
from prism_transformer.core.errors import InputError
from prism_transformer.data.shards import (
    HEADER_BYTES,
    UINT16,
    UINT32,
    Blocks,
    Manifest,
    ShardEntry,
    ShardError,
    ShardWriter,
    Split,
    Tokens,
    Variant,
    check_tokens,
    open_shard,
    read_manifest,
    sums_of,
    variant_for,
)
from tests.older import without_sums

REAL = Path(__file__).parents[3] / "shared" / "data" / "corpus"


def write(file: Path, tokens: Tokens, variant: Variant = UINT16) -> Path:
    writer = ShardWriter(file, variant)
    writer.append(tokens.astype(np.uint16) if tokens.dtype == np.int64 else tokens)
    writer.finish()
    return file


@pytest.mark.parametrize("variant", [UINT16, UINT32], ids=["uint16", "uint32"])
def test_tokens_come_back(tmp_path: Path, variant: Variant) -> None:
    tokens = np.random.default_rng(0).integers(0, 2**16, 5000).astype(variant.dtype)
    shard = open_shard(write(tmp_path / "a.bin", tokens, variant))
    assert shard.dtype == variant.dtype
    assert np.array_equal(shard, tokens)
    assert [file.name for file in tmp_path.iterdir()] == ["a.bin"]


def test_layout_is_that_of_llm_c_byte_for_byte(tmp_path: Path) -> None:
    """Built here by hand, as llm.c's own scripts do."""
    tokens = [50256, 1, 2, 65535]
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, 4
    expected = header.tobytes() + np.array(tokens, np.uint16).tobytes()
    assert write(tmp_path / "a.bin", np.array(tokens)).read_bytes() == expected


@pytest.mark.skipif(not REAL.exists(), reason="no real llm.c shards beside this checkout")
@pytest.mark.parametrize(("name", "count"), [("train", 305_260), ("val", 32_768)])
def test_real_shards_of_other_software_load_as_they_are(name: str, count: int) -> None:
    file = REAL / f"tiny_shakespeare_{name}.bin"
    shard = open_shard(file)
    assert len(shard) == count
    check_tokens(file, shard, 50257)


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_every_damage_to_header_or_length_is_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    file = write(tmp_path_factory.mktemp("shard") / "a.bin", np.arange(700))
    sound = file.read_bytes()
    damage = data.draw(st.sampled_from(["cut", "grow", "flip", "retype"]))
    if damage == "cut":
        file.write_bytes(sound[: data.draw(st.integers(0, len(sound) - 1))])
    elif damage == "grow":
        file.write_bytes(sound + bytes(data.draw(st.integers(1, 3000))))
    elif damage == "flip":
        place = data.draw(st.integers(0, HEADER_BYTES - 1))
        flipped = bytes([sound[place] ^ (1 << data.draw(st.integers(0, 7)))])
        file.write_bytes(sound[:place] + flipped + sound[place + 1 :])
    else:  # tokens of the other type behind the same header
        wide = np.arange(700, dtype=np.uint32).tobytes()
        file.write_bytes(sound[:HEADER_BYTES] + wide)
    with pytest.raises(ShardError, match=r"a\.bin"):
        open_shard(file)


def test_tokens_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.bin", np.array([1, 2, 300]))
    check_tokens(file, open_shard(file), 301)
    with pytest.raises(ShardError, match="token 300, beyond the vocabulary of 300"):
        check_tokens(file, open_shard(file), 300)


def test_layout_follows_the_vocabulary() -> None:
    assert variant_for(50257) == variant_for(2**16) == UINT16
    assert variant_for(2**16 + 1) == UINT32


def test_an_abandoned_shard_leaves_nothing(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "a.bin", UINT16)
    writer.append(np.arange(10, dtype=np.uint16))
    with pytest.raises(TypeError):
        writer.append(np.arange(10, dtype=np.uint32))
    writer.abandon()
    assert not list(tmp_path.iterdir())


def manifest() -> Manifest:
    def shard(split: Split, tokens: int) -> ShardEntry:
        name = f"{split}_{tokens}.bin"
        return ShardEntry(
            file=name, split=split, tokens=tokens, documents=1, text_bytes=9, sha256="0"
        )

    return Manifest(
        corpus="sotu",
        corpus_fingerprint="a",
        tokenizer="bytes",
        tokenizer_fingerprint="b",
        vocab_size=257,
        end_of_text=256,
        shard_tokens=100,
        val_tokens=10,
        train_tokens_wanted=None,
        next_document=(3, 4),
        shards=[shard("val", 11), shard("train", 100), shard("train", 20)],
    )


def test_a_manifest_that_is_saved_is_read(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    manifest().save(tmp_path)
    found = read_manifest(tmp_path)
    assert found == manifest()
    assert found is not None
    assert (found.tokens("val"), found.tokens("train")) == (11, 120)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('"vocab_size": 257', '"vocab_size": "many"'), "valid integer"),
        (('"corpus"', '"corpse"'), "is damaged"),
    ],
)
def test_a_damaged_manifest_fails(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    manifest().save(tmp_path)
    file = tmp_path / "manifest.json"
    file.write_text(file.read_text("utf-8").replace(*change, 1), "utf-8")
    with pytest.raises(InputError, match=r"manifest\.json: is damaged or was changed"):
        read_manifest(tmp_path)
    without_sums(file)
    with pytest.raises(InputError, match=r"manifest\.json: is damaged: ") as found:
        read_manifest(tmp_path)
    assert reason in str(found.value)


def test_blocks_are_told_apart_whether_their_sums_are_short_or_whole(tmp_path: Path) -> None:
    content = bytes(range(256)) * 41
    file = tmp_path / "file"
    file.write_bytes(content)
    parts = [content[start : start + 1000] for start in range(0, len(content), 1000)]
    sums = [hashlib.sha256(part).hexdigest() for part in parts]
    sha256, short = sums_of(file, 1000)
    assert sha256 == file_sha256(file)
    whole = Blocks(size=1000, sha256=tuple(sums))  # as older ones are
    assert short.sha256 == "".join(each[:16] for each in sums)
    assert short.count == whole.count == len(parts) == 11
    damaged = bytearray(content)
    damaged[3500] ^= 4
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    for blocks in (short, whole):
        again = Blocks.model_validate_json(blocks.model_dump_json())
        assert [number for number in range(11) if again.differs(file, number)] == [3, 10]
