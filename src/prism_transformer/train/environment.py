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


def environment(recipe: Recipe, model: PrismLM, train: Windows, settings: Settings) -> Row:
    """Everything that is worth knowing of a run and not in its recipe."""
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
        "precision": settings.precision,
        "compiled": settings.compiled,
        "compile_reason": settings.compile_reason,
        "attention_backends": list(
            layer_backends(config.schedule, config.d_model, device, str(dtype)[6:], config.seq_len)
        ),
        "hashes": {
            "initial_weights": fingerprint(model),
            "data_order": data_order(train, recipe.train.seed),
            "shards": shard_sums(train),
        },
        "sessions": [],
    }


def session(step: int, world_size: int, settings: Settings) -> Row:
    """One stretch of training, from a step on."""
    return {
        "step": step,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "processes": world_size,
        "device": str(settings.device),
        "threads": torch.get_num_threads(),
        "torch": version("torch"),
    }


def data_order(windows: Windows, seed: int) -> str:
    """A hash of the order of windows: of all that it is a function of, and of its beginning."""
    size = len(windows)
    digest = hashlib.sha256(f"{seed} {size} {windows.seq_len}\n".encode())
    for index in range(min(ORDER_SAMPLE, size)):
        digest.update(f"{permuted(index, size, seed, 0)} ".encode())
    return digest.hexdigest()


def shard_sums(windows: Windows) -> dict[str, str | None]:
    """sha256 of each shard, as its manifest has it."""
    sums: Sequence[str | None] = windows.sha256 or [None] * len(windows.files)
    return {file.name: digest for file, digest in zip(windows.files, sums, strict=True)}


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
