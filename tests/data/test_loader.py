from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_transformer.core.errors import InputError
from prism_transformer.data import loader
from prism_transformer.data.loader import Windows, open_windows, permuted, prefetched
from prism_transformer.data.prepare import Preparation, prepare, verify_shards
from prism_transformer.data.shards import UINT16, ShardError, ShardWriter
from tests.conftest import Prism

REAL = Path(__file__).parents[3] / "shared" / "data" / "corpus"


def write_shards(folder: Path, sizes: list[int], vocab: int = 1000) -> list[Path]:
    """Shards whose stream is 0, 1, 2, ... modulo the vocabulary."""
    files, start = [], 0
    for number, size in enumerate(sizes):
        files.append(folder / f"train_{number:06d}.bin")
        writer = ShardWriter(files[-1], UINT16)
        writer.append((np.arange(start, start + size) % vocab).astype(np.uint16))
        writer.finish()
        start += size
    return files


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_an_epoch_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    assert sorted(permuted(i, size, seed, epoch) for i in range(size)) == list(range(size))


def test_orders_differ_by_seed_and_epoch_and_look_random() -> None:
    size = 4096
    orders = {
        (seed, epoch): np.array([permuted(i, size, seed, epoch) for i in range(size)])
        for seed in range(4)
        for epoch in range(4)
    }
    assert len({tuple(order) for order in orders.values()}) == 16
    for order in orders.values():
        # Of a random permutation, ranks correlate with index by 1/sqrt(n), and steps are as wide.
        assert abs(np.corrcoef(np.arange(size), order)[0, 1]) < 5 / np.sqrt(size)
        assert np.abs(np.diff(order)).mean() == pytest.approx(size / 3, rel=0.05)
        halves = np.corrcoef(order[: size // 2], order[size // 2 :])[0, 1]
        assert abs(halves) < 6 / np.sqrt(size / 2)


def test_every_first_window_is_as_likely() -> None:
    firsts = np.bincount([permuted(0, 7, seed, 0) for seed in range(7000)], minlength=7)
    assert ((firsts - 1000) ** 2 / 1000).sum() < 30  # chi-squared, 6 degrees of freedom


def test_ten_billion_tokens_need_no_memory_and_no_time_to_start() -> None:
    size = 10**10 // 1024
    tracemalloc.start()
    seen = {permuted(index, size, 1, 0) for index in range(2000)}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(seen) == 2000
    assert max(seen) < size
    assert peak < 1_000_000
    assert permuted(10**12 - 1, 10**12, 3, 5) < 10**12


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.integers(1, 40))
def test_windows_read_the_concatenated_shards(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seq_len: int
) -> None:
    if sum(sizes) <= seq_len:
        sizes = [*sizes, seq_len + 1]
    files = write_shards(tmp_path_factory.mktemp("shards"), sizes)
    windows = Windows(files, seq_len, 1000)
    assert len(windows) == (sum(sizes) - 1) // seq_len
    rows = windows.read(range(len(windows)))
    starts = np.arange(len(windows)) * seq_len
    assert np.array_equal(rows, (starts[:, None] + np.arange(seq_len + 1)) % 1000)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("micro", [1, 2, 4])
def test_the_global_sequence_does_not_know_ranks_or_micro_batches(
    tmp_path: Path, world: int, micro: int
) -> None:
    """24 windows a step, shared out in any way, over more than two epochs, with a restart."""
    windows = Windows(write_shards(tmp_path, [500, 700, 61]), 20, 1000)
    expected = windows.batch(seed=5, first=0, count=24 * 6)
    found = []
    for step in range(6):
        if step == 3:  # a new process has nothing but the step number
            windows = Windows(windows.files, 20, 1000)
        share = 24 // world
        for rank in range(world):
            first = step * 24 + rank * share
            parts = [
                windows.batch(5, start, min(micro, first + share - start))
                for start in range(first, first + share, micro)
            ]
            found.append(np.concatenate(parts))
    assert np.array_equal(np.concatenate(found), expected)


def test_each_window_comes_exactly_once_an_epoch(tmp_path: Path) -> None:
    windows = Windows(write_shards(tmp_path, [900, 101], vocab=60_000), 10, 60_000)
    for epoch in range(3):
        rows = windows.batch(7, epoch * len(windows), len(windows))
        assert sorted(rows[:, 0]) == list(range(0, 10 * len(windows), 10))


def test_a_prepared_folder_is_loaded_and_watched(tmp_path: Path, prism_inside: Prism) -> None:
    prism_inside("prepare", "sotu", "--out", "out", "--tokenizer", "bytes")
    folder = tmp_path / "out"
    windows = open_windows(folder, "train", 64, 257)
    rows = windows.batch(0, 0, 8)
    assert rows.shape == (8, 65)
    assert rows.dtype == np.int64
    assert (folder / "verified.json").exists()

    file = folder / "train_000000.bin"
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    file.write_bytes(content)
    with pytest.raises(ShardError, match=r"train_000000\.bin: is not the shard that was prepared"):
        open_windows(folder, "train", 64, 257).batch(0, 0, 1)
    with pytest.raises(InputError, match="was made with 257 tokens, the model has 256"):
        open_windows(folder, "val", 64, 256)
    with pytest.raises(InputError, match="neither a manifest nor shards"):
        open_windows(tmp_path, "val", 64, 257)


def test_sound_shards_are_hashed_once(
    tmp_path: Path, prism_inside: Prism, monkeypatch: pytest.MonkeyPatch
) -> None:
    prism_inside("prepare", "sotu", "--out", "out", "--tokenizer", "bytes")
    open_windows(tmp_path / "out", "train", 64, 257).batch(0, 0, 1)
    open_windows(tmp_path / "out", "val", 64, 257).check()
    monkeypatch.setattr(loader, "file_sha256", lambda file: pytest.fail(f"hashed {file} again"))
    monkeypatch.setattr(loader, "check_tokens", lambda *_: pytest.fail("scanned again"))
    open_windows(tmp_path / "out", "train", 64, 257).batch(0, 0, 1)
    open_windows(tmp_path / "out", "val", 64, 257).check()


def test_shards_of_a_batch_are_checked_at_once_and_few_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 shards of which each window needs two."""
    files = write_shards(tmp_path, [10] * 200)
    windows = Windows(files, 10, 1000)
    wrote: list[Path] = []
    kept = loader.write_whole

    def write(file: Path, content: str) -> None:
        wrote.append(file)
        kept(file, content)

    monkeypatch.setattr(loader, "write_whole", write)
    before = len(os.listdir("/proc/self/fd"))
    rows = windows.read(range(0, 199, 2))
    assert np.array_equal(rows[:, 0], np.arange(0, 1990, 20) % 1000)
    assert len(wrote) == 1  # what was checked is remembered once a batch
    assert len(json.loads(wrote[0].read_text("utf-8"))) == 200
    assert len(windows.opened) == loader.MOST_OPEN
    assert len(os.listdir("/proc/self/fd")) <= before + loader.MOST_OPEN
    damaged = files[150]
    damaged.write_bytes(damaged.read_bytes()[:-2] + b"\xff\xff")
    with pytest.raises(ShardError, match="has token 65535"):
        Windows(files, 10, 1000).read([3, 150])


def test_another_vocabulary_is_another_check(tmp_path: Path) -> None:
    files = write_shards(tmp_path, [200, 300], vocab=500)
    Windows(files, 10, 500).check()
    with pytest.raises(ShardError, match="beyond the vocabulary of 100"):
        Windows(files, 10, 100).check()
    trusting = Windows(files, 10, 100)
    trusting.trust()
    assert len(trusting.batch(0, 0, 3)) == 3


@pytest.mark.skipif(not REAL.exists(), reason="no real llm.c shards beside this checkout")
def test_real_shards_without_a_manifest_are_checked_as_far_as_they_can_be() -> None:
    file = REAL / "tiny_shakespeare_train.bin"
    windows = Windows([file], 1024, 50257)
    assert windows.batch(0, 0, 4).max() < 50257
    with pytest.raises(ShardError, match="beyond the vocabulary of 1000"):
        Windows([file], 1024, 1000).batch(0, 0, 1)


@pytest.mark.skipif(not REAL.exists(), reason="no real llm.c shards beside this checkout")
def test_a_folder_of_other_softwares_shards_is_used_as_it_is(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / f"tiny_{split}.bin").symlink_to(REAL / f"tiny_shakespeare_{split}.bin")
    train, val = (open_windows(tmp_path, split, 1024, 50257) for split in ("train", "val"))
    assert len(train) > len(val) > 1
    assert train.sha256 is None


def test_too_little_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hold no window"):
        Windows(write_shards(tmp_path, [10]), 10, 1000)
    with pytest.raises(InputError, match="no shards"):
        Windows([], 10, 1000)


def test_prefetching_changes_nothing() -> None:
    assert list(prefetched(range(20))) == list(range(20))
    assert list(prefetched([])) == []

    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    items = prefetched(failing())
    assert next(items) == 1
    with pytest.raises(ValueError, match="broken"):
        next(items)


def test_rot_that_kept_its_time_stamp_is_found(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("a few words, again and again. " * 400, "utf-8")
    (tmp_path / "more.txt").write_text("other words. " * 900, "utf-8")
    order = Preparation(str(tmp_path / "*.txt"), "bytes", tmp_path / "data", 500)
    shard = prepare(order).manifest.of("train")[0]
    assert shard.blocks is not None
    windows = open_windows(tmp_path / "data", "train", 16, 257)
    windows.read([0])  # hashed in full, and remembered
    file = tmp_path / "data" / shard.file
    stamp, content = file.stat(), file.read_bytes()
    file.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(ShardError, match=r"it differs from byte 0 on; .* --verify"):
        open_windows(tmp_path / "data", "train", 16, 257)
    with pytest.raises(InputError, match="sha256 differs from byte 0 on"):
        verify_shards(tmp_path / "data")


@pytest.mark.parametrize("text", ["[1, 2]", "3", "{", '{"train_000000.bin": 5}'])
def test_a_memory_that_is_damaged_is_made_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text("a few words. " * 400, "utf-8")
    (tmp_path / "b.txt").write_text("other words. " * 400, "utf-8")
    prepare(Preparation(str(tmp_path / "*.txt"), "bytes", tmp_path / "data", 500))
    (tmp_path / "data" / "verified.json").write_text(text, "utf-8")
    open_windows(tmp_path / "data", "train", 16, 257).read([0])
    assert "sha256" not in text
    known = json.loads((tmp_path / "data" / "verified.json").read_text("utf-8"))
    assert known["train_000000.bin"][-1] == 257  # the vocabulary it was checked for


def test_an_older_manifest_without_blocks_still_works_and_a_path_is_no_shard(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("a few words. " * 400, "utf-8")
    (tmp_path / "b.txt").write_text("other words. " * 400, "utf-8")
    folder = tmp_path / "data"
    prepare(Preparation(str(tmp_path / "*.txt"), "bytes", folder, 500))
    file = folder / "manifest.json"
    facts = json.loads(file.read_text("utf-8"))
    facts.pop("sha256_of_the_rest")
    for shard in facts["shards"]:
        shard.pop("blocks")
    file.write_text(json.dumps(facts), "utf-8")
    assert len(open_windows(folder, "train", 16, 257).read([0, 1])) == 2
    assert verify_shards(folder) == 2
    facts["shards"][1]["file"] = "../b.txt"
    file.write_text(json.dumps(facts), "utf-8")
    with pytest.raises(InputError, match=r"is no name of a file; a path out of its folder"):
        open_windows(folder, "train", 16, 257)
