"""``prism prepare`` as a command, its start included: rate and peak memory as the corpus grows.

The rate also as a multiple of tiktoken's on one thread, text in memory, measured before each.
`prism bench data` has the rates without the start.

python benchmarks/data.py [--megabytes 60 600 --rounds 3 --tokenizers gigatoken tiktoken]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

from prism_transformer.bench.workloads import packed, write_corpus
from prism_transformer.core.table import table_of
from prism_transformer.data.corpora import open_corpus
from prism_transformer.data.tokenizer import Gpt2Tokenizer, gpt2_ranks

SAMPLE = 5000  # documents


def one_thread(file: Path) -> float:
    """Megabytes a second of tiktoken and nothing else."""
    slow = Gpt2Tokenizer(gpt2_ranks(), accelerate=False)
    documents = open_corpus(str(file)).documents()
    texts = [next(documents).text for _ in range(SAMPLE)]
    started = time.perf_counter()
    for text in texts:
        slow.encode_slowly(text)
    return sum(map(len, texts)) / 1e6 / (time.perf_counter() - started)


def prepare(file: Path, tokenizer: str) -> tuple[float, float]:
    """Seconds of ``prism prepare``, and megabytes that its first process had at most."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "prism_transformer", "prepare", str(file), "--out", folder]
        line += [] if tokenizer == "gigatoken" else ["--no-gigatoken"]
        started = time.perf_counter()
        process, peak = subprocess.Popen(line, stdout=subprocess.DEVNULL), 0.0
        while process.poll() is None:
            # Not the system's maximum for a child: that begins with the memory of its parent.
            with suppress(OSError, StopIteration):
                lines = Path(f"/proc/{process.pid}/status").read_text("utf-8").splitlines()
                peak = next(int(each.split()[1]) for each in lines if each.startswith("VmHWM"))
            time.sleep(0.01)
        assert process.returncode == 0
        return time.perf_counter() - started, peak / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[60, 600])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokenizers", nargs="+", default=["gigatoken", "tiktoken"])
    options = parser.parse_args()
    rows = []
    for size in options.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "corpus.jsonl"
            write_corpus(file, size)
            files = packed(file)
            ways = [(tokenizer, kind) for tokenizer in options.tokenizers for kind in files]
            found: dict[tuple[str, str], list[tuple[float, ...]]] = {way: [] for way in ways}
            for _ in range(options.rounds):  # interleaved
                for tokenizer, kind in ways:
                    base = one_thread(file)
                    seconds, peak = prepare(files[kind], tokenizer)
                    found[tokenizer, kind].append((size / seconds, size / seconds / base, peak))
        for (tokenizer, kind), made in found.items():
            rate, times, peak = (median(column) for column in zip(*made, strict=True))
            what = {"tokenizer": tokenizer, "from": kind, "MB": size}
            facts = {"MB/s": rate, "to one thread": times, "peak MB": peak}
            rows.append(what | {key: round(value, 1) for key, value in facts.items()})
    print(table_of("data", rows))


if __name__ == "__main__":
    main()
