"""Is this machine right for training? Each check says what it found and what to do about it."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from prism_transformer.bench import ways
from prism_transformer.bench.rounds import interleave, ratio, timings
from prism_transformer.bench.tables import our_step
from prism_transformer.data.loader import Windows
from prism_transformer.data.shards import ShardWriter, variant_for
from prism_transformer.data.tokenizer import Gpt2Tokenizer, gpt2_ranks
from prism_transformer.kernels import layer_backends
from prism_transformer.model import PrismLM, causal_attention
from prism_transformer.recipe_file import load_recipe
from prism_transformer.schedule import HeadSchedule
from prism_transformer.train.device import Settings, compile_layers, settle
from prism_transformer.train.run import read_metrics

SCALES = ("small", "medium", "large")
FORCED = (
    SDPBackend.MATH,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Diagnosis:
    """What one check found."""

    check: str
    ok: bool
    found: str
    remedy: str = ""


def checks(settings: Settings) -> dict[str, Callable[[], Diagnosis]]:
    """All checks by name, to run one after the other."""
    return {
        "software": software,
        "device": lambda: device(settings),
        "attention": lambda: attention(settings),
        "backends": lambda: backends(settings),
        "compiler": lambda: compiler(settings),
        "bfloat16": lambda: bfloat16(settings),
        "processes": lambda: processes(settings),
        "schedule": lambda: schedule(settings),
        "loader": loader,
        "tokenizer": tokenizer,
    }


def diagnose(name: str, check: Callable[[], Diagnosis]) -> Diagnosis:
    """Run one check; one that breaks is itself a finding."""
    try:
        return check()
    except Exception as error:  # whatever is wrong with this machine
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return Diagnosis(name, False, reason, "this part of the machine or of torch is broken")


def software() -> Diagnosis:
    """Versions."""
    found = f"Python {platform.python_version()}, torch {torch.__version__}"
    ok = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= (2, 13)
    return Diagnosis("software", ok, found, "" if ok else "install torch 2.13 or newer")


def device(settings: Settings) -> Diagnosis:
    """What there is to train on."""
    if settings.device.type == "cuda":
        names = {torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())}
        found = f"{torch.cuda.device_count()} x {', '.join(sorted(names))}"
        alike = len(names) == 1
        return Diagnosis("device", alike, found, "" if alike else "use GPUs of one kind")
    built = torch.version.cuda is not None
    return Diagnosis(
        "device",
        not built,
        f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "this torch was built for CUDA but finds no GPU: look at nvidia-smi" if built else "",
    )


def attention(settings: Settings) -> Diagnosis:
    """The kernel torch picks for each head width of the paper's models."""
    found: dict[int, str] = {}
    for scale in SCALES:
        config = load_recipe(f"prism-{scale}").model
        names = layer_backends(config.schedule, config.d_model, settings.device.type)
        found |= dict(zip(config.head_dims, names, strict=True))
    slow = [width for width, name in found.items() if name == "math"]
    text = ", ".join(f"{width}: {name}" for width, name in sorted(found.items()))
    remedy = f"widths {slow} fall off the fused kernels: update torch or the driver" if slow else ""
    return Diagnosis("attention", not slow, text, remedy)


def backends(settings: Settings) -> Diagnosis:
    """Every kernel that runs a width gives what plain arithmetic gives."""
    dtype = torch.bfloat16 if settings.device.type == "cuda" else torch.float32
    worst, runs = 0.0, set()
    for width in (64, 96, 128, 256):
        q = torch.randn(1, 768 // width, 256, width, device=settings.device, dtype=dtype)
        with sdpa_kernel(SDPBackend.MATH):
            exact = causal_attention(q.float(), q.float(), q.float())
        for backend in FORCED:
            try:
                with sdpa_kernel(backend):
                    y = causal_attention(q, q, q)
            except RuntimeError:  # this one does not run here
                continue
            runs.add(backend.name.lower())
            worst = max(worst, (y.float() - exact).abs().max().item())
    ok = worst < TOLERANCE[dtype]
    text = f"{', '.join(sorted(runs))}: within {worst:.1e} of plain arithmetic"
    return Diagnosis("backends", ok, text, "" if ok else "an attention kernel computes wrongly")


def compiler(settings: Settings) -> Diagnosis:
    """Compiled layers, in training and validation, without falling back."""
    config = load_recipe("prism-nano", "model.schedule=1x2 2x2 4x2 8x2").model
    plain, compiled = (PrismLM(config).to(settings.device) for _ in range(2))
    tokens = ways.some_tokens(config, 2, 65, settings.device)
    started = perf_counter()
    torch._dynamo.reset()
    compile_layers(compiled)
    torch._dynamo.utils.counters.clear()
    compiled(tokens[:, :-1], tokens[:, 1:]).backward()
    with torch.no_grad():
        off = abs(
            compiled(tokens[:, :-1], tokens[:, 1:]).item()
            - plain(tokens[:, :-1], tokens[:, 1:]).item()
        )
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    text = (
        f"{perf_counter() - started:.0f} s, loss within {off:.1e} of eager, {breaks} graph breaks"
    )
    ok = off < 1e-4 and not breaks
    return Diagnosis("compiler", ok, text, "" if ok else 'train with train.compile = "off"')


def bfloat16(settings: Settings) -> Diagnosis:
    """Mixed precision: how far off, and how fast."""
    config = load_recipe("prism-nano").model
    model = PrismLM(config).to(settings.device)
    tokens = ways.some_tokens(config, 2, 129, settings.device)
    with torch.no_grad():
        full = model(tokens[:, :-1], tokens[:, 1:]).item()
        with torch.autocast(settings.device.type, torch.bfloat16):
            mixed = model(tokens[:, :-1], tokens[:, 1:]).item()
    a = torch.randn(512, 512, device=settings.device)
    each = {"fp32": lambda: torch.mm(a, a), "bf16": lambda: torch.mm(a.bfloat16(), a.bfloat16())}
    found = timings(interleave(each, 5))
    times, _ = ratio(found["bf16"], found["fp32"])
    text = f"loss off by {abs(full - mixed):.1e}, products {times:.2g} times as fast as float32"
    right = abs(full - mixed) < 0.02
    remedy = "" if times > 1 or settings.device.type == "cpu" else "bfloat16 does not pay here"
    if settings.device.type == "cpu" and times < 1:
        text += "; a CPU trains in float32 unless told otherwise"
    return Diagnosis("bfloat16", right and not remedy, text, remedy)


def processes(settings: Settings) -> Diagnosis:
    """Training over all devices, or two processes, gives the loss of one."""
    n = torch.cuda.device_count() if settings.device.type == "cuda" else 2
    if n < 2:
        return Diagnosis("processes", True, "one device: nothing to distribute")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        one, many = (_losses(folder, launch, n) for launch in (1, n))
    off = max(abs(a - b) for a, b in zip(one, many, strict=True))
    ok = off < 1e-2
    text = f"{n} processes: losses within {off:.1e} of one"
    return Diagnosis("processes", ok, text, "" if ok else "gradients are not exchanged rightly")


def _losses(folder: Path, n_processes: int, most: int) -> list[float]:
    """Train a few steps by command."""
    recipe = [
        "prism-nano", "data.tokenizer=bytes", "data.folder=data", "data.val_tokens=4096",
        f"train.tokens={most * 4096}", f"train.batch_tokens={most * 1024}", "train.micro_batch=4",
    ]  # fmt: skip
    name = f"run-{n_processes}"
    launcher = [sys.executable]
    if n_processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        launcher += [str(n_processes)]
    command = [*launcher, "-m", "prism_transformer", "train", *recipe, "--out", name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"training with {n_processes} processes failed: {done.stderr[-300:]}")
    return [row["loss"] for row in read_metrics(folder / name) if "loss" in row]


def schedule(settings: Settings) -> Diagnosis:
    """A step of Prism against its uniform twin: the paper's claim of equal throughput."""
    on_gpu = settings.device.type == "cuda"
    config = load_recipe("prism-small" if on_gpu else "prism-nano").model
    model = PrismLM(config).to(settings.device)
    tokens = ways.some_tokens(config, 16 if on_gpu else 4, config.seq_len + 1, settings.device)
    step = our_step(model, tokens, settings)
    uniform = HeadSchedule((config.h_base,) * config.n_layers)
    each = {
        "prism": ways.with_schedule(model, config.schedule, step),
        "uniform": ways.with_schedule(model, uniform, step),
    }
    found = timings(interleave(each, 7))
    times, spread = ratio(found["prism"], found["uniform"])
    ok = times > 0.97
    text = f"Prism trains {times:.3f} +- {spread:.3f} times as fast as its uniform twin"
    return Diagnosis(
        "schedule", ok, text, "" if ok else "see `prism bench attention`, width by width"
    )


def loader() -> Diagnosis:
    """Windows per second, against what eight H100s would want."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "train_000000.bin"
        writer = ShardWriter(file, variant_for(50257))
        writer.append(np.arange(2_000_000, dtype=np.uint32).astype(np.uint16) % 50000)
        writer.finish()
        windows = Windows([file], 1024, 50257)
        windows.batch(0, 0, 1)
        seconds = []
        for turn in range(5):
            started = perf_counter()
            windows.batch(0, 64 * turn, 64)
            seconds.append(perf_counter() - started)
    rate = 64 * 1024 / median(seconds)
    ok = rate > 3e6
    text = f"{rate / 1e6:.0f}M tokens/s in one process"
    return Diagnosis("loader", ok, text, "" if ok else "put the shards on a faster disk")


def tokenizer() -> Diagnosis:
    """Text to tokens."""
    words = Gpt2Tokenizer(gpt2_ranks())
    text = "The quick brown fox jumps over the lazy dog, 1999 times. " * 20_000
    started = perf_counter()
    words.encode_batch([text[start : start + 4000] for start in range(0, len(text), 4000)])
    rate = len(text) / (perf_counter() - started) / 1e6
    kind = "gigatoken" if words.fast is not None else "tiktoken, one thread"
    fast = words.fast is not None
    remedy = "" if fast else "pip install gigatoken, where it is to be had"
    return Diagnosis("tokenizer", math.isfinite(rate), f"{kind}: {rate:.0f} MB/s", remedy)


def doctor_settings(device: str) -> Settings:
    """As a run would settle them."""
    return settle(load_recipe("prism-nano", "train.compile=off"), device)
