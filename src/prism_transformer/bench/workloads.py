"""What is measured: a training step, a prompt, decoding, attention alone, tokenizing."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor, nn

from prism_transformer.data.corpora import open_corpus
from prism_transformer.data.shards import Manifest
from prism_transformer.data.stream import write_shards
from prism_transformer.data.tokenizer import Gpt2Tokenizer, gpt2_ranks
from prism_transformer.model import (
    ATTENTION,
    Layer,
    PrismLM,
    rotary_frequencies,
    rotary_table,
)
from prism_transformer.models.reslice import take_schedule
from prism_transformer.models.sampling import sample
from prism_transformer.recipe import ModelConfig
from prism_transformer.schedule import HeadSchedule
from prism_transformer.training.device import Settings

MATMUL_SIZE = 2048

Work = Callable[[], object]
"""something to be timed"""


def some_tokens(config: ModelConfig, batch: int, length: int, device: torch.device) -> Tensor:
    """Random tokens (B, T), the same every time."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(config.vocab_size, (batch, length), generator=draw).to(device)


def with_schedule(model: PrismLM, schedule: HeadSchedule, work: Work) -> Work:
    """The same work, with the model under another schedule."""

    def run() -> None:
        take_schedule(model, schedule)
        work()

    return run


def training_step(model: PrismLM, tokens: Tensor, settings: Settings) -> Work:
    """Forward, loss, backward, clip, update, as ``prism train`` does it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with settings.autocast():
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        wait_for(settings.device)

    return step


def prefill(model: PrismLM, tokens: Tensor, settings: Settings) -> Work:
    """A forward pass over a prompt, to the scores of the next token."""

    @torch.inference_mode()
    def run() -> None:
        with settings.autocast():
            x = model.hidden(model.embedding(tokens))
            model.logits(x[:, -1])
        wait_for(settings.device)

    return run


def decode(model: PrismLM, prompt: Tensor, n_new: int, settings: Settings) -> Work:
    """Greedy decoding after a prompt."""

    def run() -> None:
        with settings.autocast():
            sample(model, prompt, n_new, temperature=0.0)
        wait_for(settings.device)

    return run


def attention(
    n_heads: int,
    width: int,
    batch: int,
    length: int,
    settings: Settings,
    queries_per_kv: int = 1,
    kind: str = "causal",
) -> Work:
    """Attention of one layer, forward and backward."""
    n_kv, attend = n_heads // queries_per_kv, ATTENTION[kind]
    q, k, v = (
        torch.randn(
            (batch, n, length, width), device=settings.device, dtype=settings.product_dtype,
            requires_grad=True,
        )
        for n in (n_heads, n_kv, n_kv)
    )  # fmt: skip

    def run() -> None:
        torch.autograd.grad(attend(q, k, v).sum(), (q, k, v))
        wait_for(settings.device)

    return run


def layer(config: ModelConfig, n_heads: int, batch: int, length: int, settings: Settings) -> Work:
    """A whole layer with that many heads, forward and backward."""
    device = settings.device
    part = Layer(config, n_heads).to(device, settings.dtype)
    for weight in part.parameters():
        torch.nn.init.normal_(weight, std=config.init_std)
    x = torch.randn(batch, length, config.d_model, device=device, dtype=settings.dtype)
    frequencies = rotary_frequencies(config, n_heads, device)
    table = rotary_table(torch.arange(length, device=device), frequencies)

    def run() -> None:
        with settings.autocast():
            y = part(x, table, ATTENTION[config.attention])
        torch.autograd.grad(y.sum(), list(part.parameters()))
        wait_for(device)

    return run


def matmul(settings: Settings, size: int = MATMUL_SIZE) -> Work:
    """A square matrix product, for the rate that everything else is measured against."""
    device, dtype = settings.device, settings.product_dtype
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def run() -> None:
        torch.mm(a, b)
        wait_for(device)

    return run


def wait_for(device: torch.device) -> None:
    """Until the device has done what it was given; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def train_command(n_processes: int, arguments: Iterable[str]) -> list[str]:
    """The command line of ``prism train``, with as many processes on this machine."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_processes}"]
    launcher = [sys.executable, *(torchrun if n_processes > 1 else [])]
    return [*launcher, "-m", "prism_transformer", "train", *arguments]


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


def packed(file: Path) -> dict[str, Path]:
    """A file of JSONL, and the same documents beside it as zstd and as Parquet, by their names."""
    import pyarrow
    import zstandard
    from pyarrow import parquet

    zstd, table = (file.with_name(f"{file.stem}{ending}") for ending in (".jsonl.zst", ".parquet"))
    with file.open("rb") as stream, zstd.open("wb") as out:
        zstandard.ZstdCompressor().copy_stream(stream, out)
    texts = [document.text for document in open_corpus(str(file)).documents()]
    columns = pyarrow.table({"text": texts})
    parquet.write_table(columns, table, row_group_size=10_000, compression="zstd")
    return {"JSONL": file, "zstd": zstd, "Parquet": table}


def tokenizing(file: Path) -> dict[str, Work]:
    """What can tokenize a file of JSONL, tiktoken and nothing else first."""
    ranks, cores = gpt2_ranks(), os.cpu_count() or 1
    slow, fast = Gpt2Tokenizer(ranks, accelerate=False, n_processes=cores), Gpt2Tokenizer(ranks)
    texts = [document.text for document in open_corpus(str(file)).documents()]

    def one_thread(part: list[str]) -> None:
        for text in part:
            slow.encode_slowly(text)

    def all_cores() -> None:
        """In a process per core: what the machine gives, no pipeline."""
        fork = get_context("fork").Process
        workers = [fork(target=one_thread, args=(texts[core::cores],)) for core in range(cores)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    works: dict[str, Work] = {
        "tiktoken, one thread, text in memory": lambda: one_thread(texts),
        "tiktoken, all cores, text in memory": all_cores,
    }
    ways = {"tiktoken, all cores": slow} | ({"gigatoken": fast} if fast.fast is not None else {})
    for way, tokenizer in ways.items():
        for kind, source in packed(file).items():
            works[f"{way}, {kind} to shards"] = partial(shards, source, tokenizer)
    return works


def shards(file: Path, tokenizer: Gpt2Tokenizer) -> None:
    """A file to shards, end to end."""
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
    with tempfile.TemporaryDirectory() as folder:
        write_shards(corpus, tokenizer, manifest, Path(folder))
