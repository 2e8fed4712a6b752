"""Measurements of speed: works in interleaved rounds; a model or schedules in, a table out.

Every row says how many times as fast it is as the first of its kind, round by round, and half the
range of that over the rounds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from prism_transformer.bench import workloads
from prism_transformer.bench.workloads import Work
from prism_transformer.core.errors import InputError, at_least_one
from prism_transformer.core.progress import Begun, Tell, counted, silent
from prism_transformer.core.table import Column, Table, words
from prism_transformer.model import PrismLM
from prism_transformer.models.cost import utilisation_flops
from prism_transformer.recipe import ModelConfig
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.rules import spans
from prism_transformer.training.device import (
    Settings,
    attention_backends,
    compile_layers,
    compile_loss,
    peak_memory,
)

MATMUL = "matmul"
N_DECODED = 32  # tokens in each measurement of decoding

COLUMNS = {
    column.key: column
    for column in (
        *words("what", "way", "schedule", "layers", "backend"),
        *map(Column, ("heads", "width", "length", "ms", "MB/s")),
        *(Column(rate, places=0) for rate in ("tokens/s", "GFLOP/s")),
        *(Column(share, places=3) for share in ("ratio", "+-", "share of matmul rate")),
        Column("peak GiB", places=2),
    )
}


@dataclass(frozen=True)
class Timing:
    """What one work took in each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)


def interleave(works: Mapping[str, Work], rounds: int, tell: Tell = silent) -> dict[str, Timing]:
    """Run each work once to warm up, then all in turn, so many times.

    Whatever else the machine does slows all that is measured alike.
    """
    tell(Begun("measuring"))
    for work in works.values():
        work()
    # Every other round backwards, so that none always follows the same one.
    at_least_one(rounds=rounds)
    turns = [name for turn in range(rounds) for name in list(works)[:: -1 if turn % 2 else 1]]
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for name in counted(tell, "measuring", turns, len(turns)):
        started = perf_counter()
        works[name]()
        seconds[name].append(perf_counter() - started)
    return {name: Timing(tuple(each)) for name, each in seconds.items()}


def ratio(timing: Timing, other: Timing) -> tuple[float, float]:
    """How many times as fast as the other, and half the range of that over rounds.

    Round by round, so that what slowed both in one round does not count.
    """
    pairs = [theirs / ours for ours, theirs in zip(timing.seconds, other.seconds, strict=True)]
    return median(pairs), (max(pairs) - min(pairs)) / 2


@dataclass(frozen=True)
class Conditions:
    """The device, the rounds and the size of the batch that a table is measured with."""

    settings: Settings
    rounds: int = 5
    batch: int = 1
    """sequences"""
    length: int = 0
    """tokens of each"""
    tell: Tell = silent

    @property
    def n_tokens(self) -> int:
        return self.batch * self.length

    def times(self, works: Mapping[str, Work]) -> dict[str, Timing]:
        return interleave(works, self.rounds, self.tell)

    def kernels(self, counts: Sequence[int], config: ModelConfig) -> dict[int, str]:
        """Which attention kernel runs for each head count."""
        measured = {"schedule": HeadSchedule(tuple(counts)), "seq_len": self.length}
        names = attention_backends(config.model_copy(update=measured), self.settings)
        return dict(zip(counts, names, strict=True))


def table(key: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows under the columns that they have."""
    return Table(key, tuple(COLUMNS[name] for name in rows[0]), tuple(rows))


def compared(timing: Timing, base: Timing) -> dict[str, float]:
    """The cells that say how many times as fast as ``base``, and how sure that is."""
    return dict(zip(("ratio", "+-"), ratio(timing, base), strict=True))


def speeds(found: Mapping[str, Timing], n_tokens: int, label: str = "way") -> list[dict[str, Any]]:
    """A row for each work, against the first."""
    base = next(iter(found.values()))
    return [
        {
            label: name,
            "ms": timing.median * 1e3,
            "tokens/s": n_tokens / timing.median,
            **compared(timing, base),
        }
        for name, timing in found.items()
    ]


def train_table(config: ModelConfig, conditions: Conditions) -> Table:
    """A training step, eager and compiled, beside the rate of a plain matrix product."""
    settings, length = conditions.settings, conditions.length
    tokens = workloads.some_tokens(config, conditions.batch, length + 1, settings.device)
    steps = {MATMUL: workloads.matmul(settings)}
    for name in ("eager", "compiled"):
        model = PrismLM(config).to(settings.device, settings.dtype)
        if name == "compiled":
            compile_layers(model)
            compile_loss(model, conditions.n_tokens, settings.device)
        steps[name] = workloads.training_step(model, tokens, settings)
    found = conditions.times(steps)
    # Of this machine as it is now: a data sheet's peak says nothing about a CPU that others share.
    peak = 2 * workloads.MATMUL_SIZE**3 / found.pop(MATMUL).median
    flops = utilisation_flops(config, length)
    rows = speeds(found, conditions.n_tokens)
    return table(
        "train", [row | {"share of matmul rate": flops * row["tokens/s"] / peak} for row in rows]
    )


def schedule_table(
    config: ModelConfig, schedules: Sequence[HeadSchedule], conditions: Conditions
) -> Table:
    """Training, prefill and decoding of schedules on one set of weights, to the first of them.

    An encoder does not decode.
    """
    settings, length = conditions.settings, conditions.length
    model = PrismLM(config).to(settings.device, settings.dtype)
    tokens = workloads.some_tokens(config, conditions.batch, length + 1, settings.device)
    prompt = tokens[:1, : min(length, 64)]
    kinds: dict[str, tuple[Work, int]] = {
        "training": (workloads.training_step(model, tokens, settings), conditions.n_tokens),
        "prefill": (workloads.prefill(model, tokens[:, :-1], settings), conditions.n_tokens),
    }
    if config.attention == "causal":
        kinds["decoding"] = (workloads.decode(model, prompt, N_DECODED, settings), N_DECODED)
    rows = []
    for kind, (work, n_tokens) in kinds.items():
        each = {str(s): workloads.with_schedule(model, s, work) for s in schedules}
        found = speeds(conditions.times(each), n_tokens, "schedule")
        rows += [{"what": kind, **row} for row in found]
    return table("schedules", rows)


def layer_table(
    config: ModelConfig, schedules: Sequence[HeadSchedule], conditions: Conditions
) -> Table:
    """Each phase of each schedule: one of its layers against a layer of the first schedule."""
    size = (conditions.batch, conditions.length, conditions.settings)
    counts = list(dict.fromkeys(n for schedule in schedules for n in schedule.heads))
    found = conditions.times({str(n): workloads.layer(config, n, *size) for n in counts})
    kernels = conditions.kernels(counts, config)
    rows = [
        {
            "schedule": str(schedule),
            "layers": spans(phase.layers),
            "heads": phase.n_heads,
            "width": config.d_model // phase.n_heads,
            "backend": kernels[phase.n_heads],
            "tokens/s": conditions.n_tokens / found[str(phase.n_heads)].median,
            **compared(found[str(phase.n_heads)], found[str(counts[0])]),
        }
        for schedule in schedules
        for phase in schedule.phases
    ]
    return table("layers", rows)


def attention_table(
    config: ModelConfig, schedules: Iterable[HeadSchedule], conditions: Conditions
) -> Table:
    """Attention alone, forward and backward, for each distinct head count.

    Of the model's kind, with as many queries to a key as it has.
    """
    d_model, settings = config.d_model, conditions.settings
    batch, length = conditions.batch, conditions.length
    counts = sorted({n for schedule in schedules for n in schedule.heads}, reverse=True)
    for n in counts:
        if n % config.queries_per_kv:
            raise InputError(
                f"{n} heads are no multiple of queries_per_kv = {config.queries_per_kv}"
            )
    found = conditions.times(
        {
            str(n): workloads.attention(
                n, d_model // n, batch, length, settings, config.queries_per_kv, config.attention
            )
            for n in counts
        }
    )
    kernels = conditions.kernels(counts, config)
    # Scores and weighted values, forward and twice that backward; of the lower triangle if causal.
    seen = length * (length + 1) if config.attention == "causal" else 2 * length * length
    flops = 6 * batch * d_model * seen
    rows = [
        {
            "heads": n,
            "width": d_model // n,
            "backend": kernels[n],
            "ms": found[str(n)].median * 1e3,
            "GFLOP/s": flops / found[str(n)].median / 1e9,
            **compared(found[str(n)], found[str(counts[0])]),
        }
        for n in counts
    ]
    return table("attention", rows)


def decode_table(config: ModelConfig, lengths: Sequence[int], conditions: Conditions) -> Table:
    """Decoding one sequence after prompts of several lengths."""
    if config.attention != "causal":
        raise InputError("an encoder does not decode; measure its training, or its schedules")
    settings = conditions.settings
    model = PrismLM(config).to(settings.device, settings.dtype)
    prompts = {n: workloads.some_tokens(config, 1, n, settings.device) for n in lengths}
    each = {
        f"prompt of {n}": workloads.decode(model, prompt, N_DECODED, settings)
        for n, prompt in prompts.items()
    }
    return table("decode", speeds(conditions.times(each), N_DECODED))


def context_table(config: ModelConfig, lengths: Sequence[int], conditions: Conditions) -> Table:
    """Training and reading of ever longer sequences: tokens per second to the first's, memory.

    The peak is what the process or GPU had taken after one such step; lengths grow, so that on a
    CPU, whose peak never falls, it is that of the last.
    """
    settings, batch = conditions.settings, conditions.batch
    config = config.model_copy(update={"seq_len": max(lengths)})
    model = PrismLM(config).to(settings.device, settings.dtype)
    tokens = workloads.some_tokens(config, batch, max(lengths) + 1, settings.device)
    rows: list[dict[str, Any]] = []
    for kind in ("prefill", "training"):  # in the order of their memory
        works: dict[str, Work] = {}
        for n in lengths:
            if kind == "training":
                works[str(n)] = workloads.training_step(model, tokens[:, : n + 1], settings)
            else:
                works[str(n)] = workloads.prefill(model, tokens[:, :n], settings)
        peaks = [_peak(work, settings.device) for work in works.values()]
        found = conditions.times(works)
        first = found[str(lengths[0])]
        for n, peak in zip(lengths, peaks, strict=True):
            timing, each = found[str(n)], compared(found[str(n)], first)
            rates = {name: value * n / lengths[0] for name, value in each.items()}
            row = {"what": kind, "length": n, "ms": timing.median * 1e3}
            row |= {"tokens/s": batch * n / timing.median, **rates, "peak GiB": peak / 2**30}
            rows.append(row)
    return table("context", rows)


def _peak(work: Work, device: torch.device) -> int:
    """Bytes that were taken at most when a work was done."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    work()
    return peak_memory(device)


def data_table(megabytes: int, conditions: Conditions) -> Table:
    """Tokenizing the embedded corpus, repeated to a size, from files to shards."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "corpus.jsonl"
        n_bytes = workloads.write_corpus(file, megabytes)
        found = conditions.times(workloads.tokenizing(file))
    base = next(iter(found.values()))
    rows = [
        {"way": name, "MB/s": n_bytes / timing.median / 1e6, **compared(timing, base)}
        for name, timing in found.items()
    ]
    return table("data", rows)


def against(
    config: ModelConfig,
    baseline: ModelConfig,
    prompt: int,
    n_new: int,
    rounds: int,
    settings: Settings,
) -> dict[str, Any]:
    """Seconds of a model in use and of its baseline, interleaved, one sequence at a time.

    Weights are drawn anew: no speed depends on what was learnt. The prompt that is read is a whole
    context, the one that is decoded from has ``prompt`` tokens.
    """

    def works(model: PrismLM, schedule: HeadSchedule) -> dict[str, Work]:
        tokens = workloads.some_tokens(model.config, 1, model.config.seq_len, settings.device)
        each = {
            "prefill": workloads.prefill(model, tokens, settings),
            "decoding": workloads.decode(model, tokens[:, :prompt], n_new, settings),
        }
        return {kind: workloads.with_schedule(model, schedule, each[kind]) for kind in each}

    def in_use(config: ModelConfig) -> PrismLM:
        return PrismLM(config).to(settings.device, settings.dtype).eval()

    model = in_use(config)
    # On one set of weights if they may be: where in memory a second one lies costs some percent.
    twins = config.model_copy(update={"schedule": baseline.schedule}) == baseline
    ours = works(model, config.schedule)
    theirs = works(model if twins else in_use(baseline), baseline.schedule)
    found = {}
    for kind, n_tokens in (("prefill", config.seq_len), ("decoding", n_new)):
        taken = interleave({"arm": ours[kind], "baseline": theirs[kind]}, rounds)
        found[kind] = {
            "tokens": n_tokens,
            "seconds": taken["arm"].seconds,
            "baseline_seconds": taken["baseline"].seconds,
        }
    return {"prompt": prompt, "rounds": rounds, "kinds": found}
