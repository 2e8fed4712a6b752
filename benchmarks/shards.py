"""Opening many shards: start-up time, memory and open files, up to 10,000 shards of 100 MB, 1 TB.

The files are sparse: a header and 50 million zeros each, so that they need next to no disk. They
count as checked before, as in every start of a run but its first.

python benchmarks/shards.py [--shards 10 100 1000 10000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from prism_transformer.core.table import table_of
from prism_transformer.data.shards import (
    HEADER_BYTES,
    HEADER_INTS,
    UINT16,
    Manifest,
    ShardEntry,
    Split,
    read_manifest,
    sums_of,
)

TOKENS = 50_000_000  # of a shard: 100 MB
SEQ_LEN, VOCAB = 1024, 50257
WINDOWS = 512  # that are read: nearly all of them from shards of their own


def write_sparse(folder: Path, n_shards: int) -> None:
    """A prepared folder of so many shards, of which the disk holds the headers."""
    header = np.zeros(HEADER_INTS, "<i4")
    header[:3] = UINT16.magic, UINT16.version, TOKENS
    entries: list[ShardEntry] = []
    kinds: list[Split] = ["val", *["train"] * n_shards]  # type: ignore[list-item]
    for number, split in enumerate(kinds):
        file = folder / f"{split}_{max(number - 1, 0):06d}.bin"
        file.write_bytes(header.tobytes())
        os.truncate(file, HEADER_BYTES + 2 * TOKENS)
        if not entries:
            sums = dict(zip(("sha256", "blocks"), sums_of(file), strict=True))
        facts = {"tokens": TOKENS, "documents": 50_000, "text_bytes": 4 * TOKENS, **sums}
        entries.append(ShardEntry(file=file.name, split=split, **facts))
    Manifest(
        corpus="sparse", corpus_fingerprint="", tokenizer="gpt2", tokenizer_fingerprint="",
        vocab_size=VOCAB, end_of_text=50256, shard_tokens=TOKENS, val_tokens=TOKENS - 1,
        train_tokens_wanted=None, complete=True, shards=entries,
    ).save(folder)  # fmt: skip
    stamps = {}
    for entry in entries:
        status = (folder / entry.file).stat()
        stamps[entry.file] = [entry.sha256, status.st_size, status.st_mtime_ns, VOCAB]
    (folder / "verified.json").write_text(json.dumps(stamps), "utf-8")


def memory() -> float:
    """Megabytes that this process alone has in use: mapped files are the system's."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def measure(folder: Path) -> None:
    """Open a folder in this process, read windows of it, and print what that took."""
    from prism_transformer.data.loader import open_windows

    before, started = memory(), time.perf_counter()
    manifest = read_manifest(folder)
    train = open_windows(folder, "train", SEQ_LEN, VOCAB, manifest)
    val = open_windows(folder, "val", SEQ_LEN, VOCAB, manifest)
    opened = time.perf_counter() - started
    train.batch(0, 0, 8)
    val.read([0])
    first = time.perf_counter() - started
    train.batch(0, 8, WINDOWS)
    mapped = Path("/proc/self/maps").read_text("utf-8").count(".bin\n")
    files = {"open files": len(os.listdir("/proc/self/fd")), "mapped shards": mapped}
    facts = {"open s": opened, "first batch s": first, "memory MB": memory() - before, **files}
    print(json.dumps(facts))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    with tempfile.TemporaryDirectory() as home:
        folders = {n: Path(home) / str(n) for n in options.shards}
        found: dict[int, list[dict[str, float]]] = {n: [] for n in folders}
        for n_shards, folder in folders.items():
            folder.mkdir()
            write_sparse(folder, n_shards)
        for _ in range(options.rounds):  # interleaved
            for n_shards, folder in folders.items():
                line = [sys.executable, __file__, "--measure", str(folder)]
                done = subprocess.run(line, check=True, capture_output=True, text=True)
                found[n_shards].append(json.loads(done.stdout))
        rows = [
            {"shards": n, "GB": n * 2 * TOKENS / 1e9}
            | {key: round(median(each[key] for each in made), 3) for key in made[0]}
            for n, made in found.items()
        ]
    print(table_of("shards", rows))


if __name__ == "__main__":
    main()
