"""Measurements: ways in, rows out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from prism_transformer.bench import ways
from prism_transformer.bench.data import data_ways, write_corpus
from prism_transformer.bench.rounds import Timing, Way, interleave, ratio, timings
from prism_transformer.cost import utilisation_flops
from prism_transformer.kernels import layer_backends
from prism_transformer.model import PrismLM
from prism_transformer.recipe import ModelConfig
from prism_transformer.schedule import HeadSchedule
from prism_transformer.train.device import Settings, compile_layers

Row = dict[str, Any]
Runs = Iterator[tuple[str, float]]
Watch = Callable[[Runs, int], Runs]

MATMUL = "matmul"


def measure(ways_: dict[str, Way], rounds: int, watch: Watch) -> dict[str, Timing]:
    """Interleaved rounds under a progress bar."""
    return timings(watch(interleave(ways_, rounds), rounds * len(ways_)))


def train_rows(
    config: ModelConfig, batch: int, length: int, rounds: int, settings: Settings, watch: Watch
) -> list[Row]:
    """A training step, eager and compiled, beside the rate of a plain matrix product."""
    tokens = ways.some_tokens(config, batch, length + 1, settings.device)
    steps: dict[str, Way] = {MATMUL: ways.matmul_rate(settings)}
    for name in ("eager", "compiled"):
        model = PrismLM(config).to(settings.device, settings.dtype)
        if name == "compiled":
            compile_layers(model)
        steps[name] = our_step(model, tokens, settings)
    found = measure(steps, rounds, watch)
    peak = ways.matmul_flops() / found.pop(MATMUL).median
    flops = batch * length * utilisation_flops(config, length)
    return [
        speed_row(name, timing, found["eager"], batch * length)
        | {"share of matmul rate": flops / timing.median / peak}
        for name, timing in found.items()
    ]


def our_step(model: PrismLM, tokens: torch.Tensor, settings: Settings) -> Way:
    """A training step of ours, as ``prism train`` takes it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loss = lambda: model(tokens[:, :-1], tokens[:, 1:])  # noqa: E731
    return ways.training_step(model, optimizer, loss, settings)


def speed_row(name: str, timing: Timing, base: Timing, n_tokens: int) -> Row:
    """One way against another."""
    times, spread = ratio(timing, base)
    return {
        "way": name,
        "ms": timing.median * 1e3,
        "tokens/s": n_tokens / timing.median,
        "ratio": times,
        "+-": spread,
    }


def schedule_rows(
    config: ModelConfig,
    schedules: Sequence[HeadSchedule],
    batch: int,
    length: int,
    rounds: int,
    settings: Settings,
    watch: Watch,
) -> list[Row]:
    """Training, prefill and decoding of schedules on one set of weights, to the first of them."""
    model = PrismLM(config).to(settings.device, settings.dtype)
    tokens = ways.some_tokens(config, batch, length + 1, settings.device)
    prompt = tokens[:1, : min(length, 64)]
    kinds: dict[str, tuple[Way, int]] = {
        "training": (our_step(model, tokens, settings), batch * length),
        "prefill": (ways.prefill(model, tokens[:, :-1], settings), batch * length),
        "decoding": (ways.decode(model, prompt, 32, settings), 32),
    }
    rows = []
    for kind, (way, n_tokens) in kinds.items():
        each = {str(s): ways.with_schedule(model, s, way) for s in schedules}
        found = measure(each, rounds, watch)
        base = found[str(schedules[0])]
        rows += [
            {"what": kind, **_renamed(speed_row(name, timing, base, n_tokens))}
            for name, timing in found.items()
        ]
    return rows


def layer_rows(
    config: ModelConfig,
    schedules: Sequence[HeadSchedule],
    batch: int,
    length: int,
    rounds: int,
    settings: Settings,
    watch: Watch,
) -> list[Row]:
    """Each phase of each schedule: one of its layers against a layer of the first schedule."""
    counts = list(dict.fromkeys(n for schedule in schedules for n in schedule.heads))
    each = {str(n): ways.layer(config, n, batch, length, settings) for n in counts}
    found = measure(each, rounds, watch)
    base = found[str(counts[0])]
    kernels = _backends(counts, config.d_model, length, settings)
    rows = []
    for schedule in schedules:
        for phase in schedule.phases:
            last = phase.first_layer + phase.n_layers - 1
            one = phase.n_layers == 1
            timing = found[str(phase.n_heads)]
            times, spread = ratio(timing, base)
            rows.append(
                {
                    "schedule": str(schedule),
                    "layers": f"{last}" if one else f"{phase.first_layer}-{last}",
                    "heads": phase.n_heads,
                    "width": config.d_model // phase.n_heads,
                    "backend": kernels[phase.n_heads],
                    "tokens/s": batch * length / timing.median,
                    "ratio": times,
                    "+-": spread,
                }
            )
    return rows


def _backends(
    counts: Sequence[int], d_model: int, length: int, settings: Settings
) -> dict[int, str]:
    """Which attention kernel runs for each head count."""
    precision = "bfloat16" if settings.precision == "bf16" else str(settings.dtype)[6:]
    device = settings.device.type
    kernels = layer_backends(HeadSchedule(tuple(counts)), d_model, device, precision, length)
    return dict(zip(counts, kernels, strict=True))


def _renamed(row: Row) -> Row:
    return {"schedule": row.pop("way"), **row}


def attention_rows(
    d_model: int,
    schedules: Iterable[HeadSchedule],
    batch: int,
    length: int,
    rounds: int,
    settings: Settings,
    watch: Watch,
) -> list[Row]:
    """Attention alone, forward and backward, for each distinct head count."""
    counts = sorted({n for schedule in schedules for n in schedule.heads}, reverse=True)
    each = {
        str(n): ways.attention(n, d_model // n, batch, length, settings, backward=True)
        for n in counts
    }
    found = measure(each, rounds, watch)
    backends = _backends(counts, d_model, length, settings)
    base = found[str(counts[0])]
    # Scores and weighted values, forward and twice that backward, of the lower triangle.
    flops = 6 * batch * d_model * length * (length + 1)
    return [
        {
            "heads": n,
            "width": d_model // n,
            "backend": backends[n],
            "ms": found[str(n)].median * 1e3,
            "GFLOP/s": flops / found[str(n)].median / 1e9,
            "ratio": ratio(found[str(n)], base)[0],
            "+-": ratio(found[str(n)], base)[1],
        }
        for n in counts
    ]


def data_rows(megabytes: int, rounds: int, watch: Watch) -> list[Row]:
    """Tokenizing the embedded corpus, repeated to a size, from JSONL to shards."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "corpus.jsonl"
        n_bytes = write_corpus(file, megabytes)
        found = measure(data_ways(file), rounds, watch)
    base = next(iter(found.values()))
    rows = []
    for name, timing in found.items():
        times, spread = ratio(timing, base)
        rate = n_bytes / timing.median / 1e6
        rows.append({"way": name, "MB/s": rate, "ratio": times, "+-": spread})
    return rows


def decode_rows(
    config: ModelConfig, lengths: Sequence[int], rounds: int, settings: Settings, watch: Watch
) -> list[Row]:
    """Decoding one sequence after prompts of several lengths."""
    model = PrismLM(config).to(settings.device, settings.dtype)
    n_new = 32
    each = {
        f"prompt of {length}": ways.decode(
            model, ways.some_tokens(config, 1, length, settings.device), n_new, settings
        )
        for length in lengths
    }
    found = measure(each, rounds, watch)
    base = next(iter(found.values()))
    return [speed_row(name, timing, base, n_new) for name, timing in found.items()]
