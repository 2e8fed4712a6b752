"""What is measured is what it says."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from prism_transformer.bench import workloads
from prism_transformer.model import PrismLM
from prism_transformer.training.device import Settings
from tests.conftest import small_config

SETTINGS = Settings(torch.device("cpu"), "fp32", False, "")


def test_a_measured_step_trains() -> None:
    model = PrismLM(small_config())
    tokens = workloads.some_tokens(model.config, 2, 65, torch.device("cpu"))
    with torch.no_grad():
        before = model(tokens[:, :-1], tokens[:, 1:]).item()
    step = workloads.training_step(model, tokens, SETTINGS)
    for _ in range(20):
        step()
    with torch.no_grad():
        assert model(tokens[:, :-1], tokens[:, 1:]).item() < before - 0.05
    assert all(weight.grad is None for weight in model.parameters())


def test_works_run() -> None:
    model = PrismLM(small_config()).eval()
    tokens = workloads.some_tokens(model.config, 1, 16, torch.device("cpu"))
    workloads.prefill(model, tokens, SETTINGS)()
    workloads.decode(model, tokens, 4, SETTINGS)()
    workloads.attention(4, 8, 2, 16, SETTINGS)()
    workloads.layer(model.config, 4, 2, 16, SETTINGS)()
    workloads.matmul(SETTINGS, 64)()


def test_the_corpus_has_its_size_and_no_document_twice(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    n_bytes = workloads.write_corpus(file, 15)  # more than the embedded text has
    texts = [json.loads(line)["text"] for line in file.read_text("utf-8").splitlines()]
    assert sum(len(text.encode()) for text in texts) == n_bytes
    assert 15_000_000 <= n_bytes < 15_020_000
    assert len(set(texts)) == len(texts)


def test_everything_that_tokenizes_runs(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    workloads.write_corpus(file, 1)
    works = workloads.tokenizing(file)
    assert next(iter(works)) == "tiktoken, one thread, text in memory"
    for work in works.values():
        work()
