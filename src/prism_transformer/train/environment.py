"""What a run was trained on and from: enough to doubt it later, and to prove two runs alike."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import torch

from prism_transformer import __version__
from prism_transformer.data.loader import Windows, permuted
from prism_transformer.kernels import layer_backends
from prism_transformer.model import PrismLM, fingerprint
from prism_transformer.recipe import Recipe
from prism_transformer.train.device import Settings
from prism_transformer.train.run import Row

ORDER_SAMPLE = 4096  # windows whose places in the first epoch are hashed

PACKAGES = ("torch", "numpy", "safetensors", "pydantic")


def environment(
    recipe: Recipe, model: PrismLM, train: Windows, val: Windows, settings: Settings
) -> Row:
    """Everything that is worth knowing of a run, and the recipe it began with."""
    config = recipe.model
    dtype = torch.bfloat16 if settings.precision == "bf16" else settings.dtype
    device = settings.device.type
    return {
        "software": {
            "prism-transformer": __version__,
            **_commit(),
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
        "hardware": _hardware(settings.device),
        "attention_backends": list(
            layer_backends(config.schedule, config.d_model, device, str(dtype)[6:], config.seq_len)
        ),
        "hashes": {
            "initial_weights": fingerprint(model),
            **data_hashes(train, val, recipe.train.seed),
        },
        "recipe": recipe.model_dump(),
        "identity": uuid4().hex,
        "sessions": [],
    }


def session(step: int, world_size: int, settings: Settings) -> Row:
    """One stretch of training, from a step on."""
    return {
        "step": step,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "processes": world_size,
        "device": settings.device.type,
        "precision": settings.precision,
        "compiled": settings.compiled,
        "compile_reason": settings.compile_reason,
        "threads": torch.get_num_threads(),
        "torch": version("torch"),
    }


def changes(before: Row, now: Row) -> list[str]:
    """What a new session has otherwise than the last, and which may show in the last bits."""
    keys = ("processes", "device", "precision", "compiled", "threads", "torch")
    return [
        f"{key}: {before[key]} before, {now[key]} now" for key in keys if before[key] != now[key]
    ]


def data_hashes(train: Windows, val: Windows, seed: int) -> Row:
    """What a run reads, and in what order."""
    return {
        "data_order": data_order(train, seed),
        "shards": {**_shard_sums(train), **_shard_sums(val)},
    }


def data_order(windows: Windows, seed: int) -> str:
    """A hash of the order of windows: of all that it is a function of, and of its beginning."""
    size = len(windows)
    digest = hashlib.sha256(f"{seed} {size} {windows.seq_len}\n".encode())
    for index in range(min(ORDER_SAMPLE, size)):
        digest.update(f"{permuted(index, size, seed, 0)} ".encode())
    return digest.hexdigest()


def _shard_sums(windows: Windows) -> Row:
    """Tokens of each shard, and its sha256 as the manifest has it."""
    sums: Sequence[str | None] = windows.sha256 or [None] * len(windows.files)
    return {
        file.name: {"tokens": len(tokens), "sha256": digest}
        for file, tokens, digest in zip(windows.files, windows.shards, sums, strict=True)
    }


def _commit() -> Row:
    """The commit of this code and whether files differ from it, where it is a clone."""
    try:
        _git("ls-files", "--error-unmatch", __file__)  # not a clone of something around it
        return {"commit": _git("rev-parse", "HEAD"), "dirty": bool(_git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def machine(settings: Settings) -> Row:
    """What a measurement of speed depends on."""
    return {
        **_hardware(settings.device),
        "threads": torch.get_num_threads(),
        "precision": settings.precision,
        "torch": version("torch"),
        "prism-transformer": __version__,
    }


def _hardware(device: torch.device) -> Row:
    facts: Row = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["gpus"] = torch.cuda.device_count()
        facts["cuda"] = torch.version.cuda
    return facts


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
