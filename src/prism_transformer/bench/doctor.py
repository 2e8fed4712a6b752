"""Is this machine right for training? Each check says what it found and what to do about it."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from prism_transformer.bench import workloads
from prism_transformer.bench.measure import interleave, ratio
from prism_transformer.core.errors import first_line
from prism_transformer.data.loader import Windows
from prism_transformer.data.shards import ShardWriter, variant_for
from prism_transformer.data.tokenizer import Gpt2Tokenizer, gpt2_ranks
from prism_transformer.model import PrismLM, causal_attention
from prism_transformer.recipe import Precision
from prism_transformer.recipes.files import load_recipe
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.hardware import layer_backends
from prism_transformer.training.device import (
    Settings,
    begin,
    compile_layers,
    plain_loss,
    settle,
)
from prism_transformer.training.run import read_metrics

FORCED = (
    SDPBackend.MATH,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)
D_MODEL = 768  # of the attention that is timed
WIDTHS = (64, 96, 128, 192, 256, 384)  # of heads, in the recipes and studies that ship
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp32")
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Diagnosis:
    """What one check found."""

    check: str
    ok: bool
    found: str
    remedy: str = ""


def judged(check: str, ok: bool, found: str, remedy: str) -> Diagnosis:
    """A finding whose remedy is told only where it is needed."""
    return Diagnosis(check, ok, found, "" if ok else remedy)


def diagnose(check: Callable[[Settings], Diagnosis], settings: Settings) -> Diagnosis:
    """Run one check; one that breaks is itself a finding."""
    try:
        return check(settings)
    except Exception as error:  # whatever is wrong with this machine
        remedy = "this part of the machine or of torch is broken"
        return Diagnosis(check.__name__, False, first_line(error), remedy)


def doctor_settings(device: str) -> Settings:
    """As a run would settle them."""
    return begin(settle(load_recipe("prism-micro", "train.compile=off"), device))


def software(_settings: Settings) -> Diagnosis:
    found = f"Python {platform.python_version()}, torch {torch.__version__}"
    ok = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= (2, 13)
    return judged("software", ok, found, "install torch 2.13 or newer")


def device(settings: Settings) -> Diagnosis:
    """What there is to train on."""
    if settings.device.type == "cuda":
        names = {torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())}
        found = f"{torch.cuda.device_count()} x {', '.join(sorted(names))}, {settings.precision}"
        if settings.precision_reason:
            return Diagnosis("device", False, found, settings.precision_reason)
        return judged("device", len(names) == 1, found, "use GPUs of one kind")
    found = f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    remedy = "this torch was built for CUDA but finds no GPU: look at nvidia-smi"
    return judged("device", torch.version.cuda is None, found, remedy)


def attention(settings: Settings) -> Diagnosis:
    """Attention of every width of the recipes, forward and backward, and torch's kernel for it."""
    on_gpu = settings.device.type == "cuda"
    batch, length = (16, 1024) if on_gpu else (1, 128)
    heads = {width: D_MODEL // width for width in WIDTHS}
    names = layer_backends(
        HeadSchedule(tuple(heads.values())), D_MODEL, settings.device.type,
        str(settings.product_dtype).removeprefix("torch."), length,
    )  # fmt: skip
    kernels = dict(zip(WIDTHS, names, strict=True))
    works = {
        str(width): workloads.attention(n_heads, width, batch, length, settings)
        for width, n_heads in heads.items()
    }
    found = interleave(works, 5)
    base = found[str(WIDTHS[0])].median
    text = ", ".join(
        f"{width}: {kernels[width]} {base / found[str(width)].median:.2g}" for width in WIDTHS
    )
    slow = [width for width, name in kernels.items() if name == "math"]
    remedy = f"widths {slow} fall off the fused kernels: update torch or the driver"
    text = f"width: kernel, speed to width {WIDTHS[0]}: {text}"
    return judged("attention", not slow, text, remedy)


def backends(settings: Settings) -> Diagnosis:
    """Every kernel that runs a width gives what plain arithmetic gives."""
    dtype = torch.bfloat16 if settings.device.type == "cuda" else torch.float32
    worst, runs = 0.0, set()
    for width in WIDTHS:
        q = torch.randn(1, D_MODEL // width, 256, width, device=settings.device, dtype=dtype)
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
    return judged("backends", ok, text, "an attention kernel computes wrongly")


def compiler(settings: Settings) -> Diagnosis:
    """Compiled layers and loss, in training and validation, without falling back."""
    config = load_recipe("prism-micro", "model.schedule=1x2 2x2 4x2 8x2").model
    plain, compiled = (PrismLM(config).to(settings.device) for _ in range(2))
    tokens = workloads.some_tokens(config, 2, 65, settings.device)
    started = perf_counter()
    torch._dynamo.reset()
    compile_layers(compiled)
    torch._dynamo.utils.counters.clear()
    compiled(tokens[:, :-1], tokens[:, 1:]).backward()
    with torch.no_grad():
        ours, exact = (model(tokens[:, :-1], tokens[:, 1:]).item() for model in (compiled, plain))
    off = abs(ours - exact)
    compiled.training_loss = torch.compile(plain_loss, fullgraph=True, dynamic=False)
    off = max(off, abs(compiled(tokens[:, :-1], tokens[:, 1:]).item() - exact))
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    took = perf_counter() - started
    text = f"{took:.0f} s, loss within {off:.1e} of eager, {breaks} graph breaks"
    ok = off < 1e-4 and not breaks
    return judged("compiler", ok, text, 'train with train.compile = "off"')


def bfloat16(settings: Settings) -> Diagnosis:
    """Mixed precision: how far off, and how fast."""
    config = load_recipe("prism-micro").model
    model = PrismLM(config).to(settings.device)
    tokens = workloads.some_tokens(config, 2, 129, settings.device)
    with torch.no_grad():
        full = model(tokens[:, :-1], tokens[:, 1:]).item()
        with torch.autocast(settings.device.type, torch.bfloat16):
            mixed = model(tokens[:, :-1], tokens[:, 1:]).item()
    # Products large enough to fill a GPU, in types that are there before the clock runs; each
    # waits for the device.
    size = 8192 if settings.device.type == "cuda" else 512
    each: dict[str, workloads.Work] = {
        name: workloads.matmul(replace(settings, precision=name), size) for name in PRECISIONS
    }
    found = interleave(each, 5)
    times, _ = ratio(found["bf16"], found["fp32"])
    rate = 2 * size**3 / found["bf16"].median / 1e12
    text = f"loss off by {abs(full - mixed):.1e}, products {times:.2g} times as fast as float32"
    text += f", {rate:.3g} TFLOP/s"
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
    with tempfile.TemporaryDirectory() as folder:
        one, many = (_losses(Path(folder), launch, n, settings) for launch in (1, n))
    off = max(abs(a - b) for a, b in zip(one, many, strict=True))
    text = f"{n} processes: losses within {off:.1e} of one"
    return judged("processes", off < 1e-2, text, "gradients are not exchanged rightly")


def _losses(folder: Path, n_processes: int, most: int, settings: Settings) -> list[float]:
    # Compiled as a long run would be; on a CPU that would take minutes for each process.
    compiled = "on" if settings.device.type == "cuda" else "off"
    recipe = [
        "prism-micro", "data.tokenizer=bytes", "data.folder=data", "data.val_tokens=4096",
        f"train.tokens={most * 4096}", f"train.batch_tokens={most * 1024}", "train.micro_batch=4",
        f"train.compile={compiled}", "--device", settings.device.type,
    ]  # fmt: skip
    name = f"run-{n_processes}"
    command = workloads.train_command(n_processes, [*recipe, "--out", name])
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"training with {n_processes} processes failed: {done.stderr[-300:]}")
    return [row["loss"] for row in read_metrics(folder / name) if "loss" in row]


def schedule(settings: Settings) -> Diagnosis:
    """A step of Prism against its uniform twin: the paper's claim of equal throughput."""
    on_gpu = settings.device.type == "cuda"
    config = load_recipe("prism-small" if on_gpu else "prism-micro").model
    model = PrismLM(config).to(settings.device)
    tokens = workloads.some_tokens(config, 16 if on_gpu else 4, config.seq_len + 1, settings.device)
    step = workloads.training_step(model, tokens, settings)
    uniform = HeadSchedule((config.h_base,) * config.n_layers)
    each = {
        "prism": workloads.with_schedule(model, config.schedule, step),
        "uniform": workloads.with_schedule(model, uniform, step),
    }
    found = interleave(each, 7)
    times, spread = ratio(found["prism"], found["uniform"])
    text = f"Prism trains {times:.3f} +- {spread:.3f} times as fast as its uniform twin"
    return judged("schedule", times > 0.97, text, "see `prism bench attention`, width by width")


def loader(_settings: Settings) -> Diagnosis:
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
    text = f"{rate / 1e6:.0f}M tokens/s in one process"
    return judged("loader", rate > 3e6, text, "put the shards on a faster disk")


def tokenizer(_settings: Settings) -> Diagnosis:
    words = Gpt2Tokenizer(gpt2_ranks())
    text = "The quick brown fox jumps over the lazy dog, 1999 times. " * 20_000
    started = perf_counter()
    words.encode_batch([text[start : start + 4000] for start in range(0, len(text), 4000)])
    rate = len(text) / (perf_counter() - started) / 1e6
    if words.fast is not None:
        return Diagnosis("tokenizer", True, f"gigatoken: {rate:.0f} MB/s")
    remedy = "pip install gigatoken, where it is to be had"
    return Diagnosis("tokenizer", True, f"tiktoken, one thread: {rate:.0f} MB/s", remedy)


CHECKS = (
    software, device, attention, backends, compiler, bfloat16, processes, schedule, loader,
    tokenizer,
)  # fmt: skip
