"""What a run was trained on and from: enough to doubt it later, and to prove two runs alike."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch

from prism_transformer import __version__
from prism_transformer.data.loader import Windows
from prism_transformer.data.mixture import Mixture
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import fingerprint
from prism_transformer.recipe import Recipe
from prism_transformer.training import neighbours
from prism_transformer.training.device import Settings, attention_backends
from prism_transformer.training.objective import objective_of
from prism_transformer.training.run import Row
from prism_transformer.training.start import Start

ORDER_SAMPLE = 4096  # windows whose places in the first epoch are hashed
MASKS_SAMPLE = 64  # windows whose masks are, of a masked language model

PACKAGES = ("torch", "numpy", "safetensors", "pydantic")


def environment(
    recipe: Recipe,
    model: PrismLM,
    train: Windows | Mixture,
    val: Windows,
    settings: Settings,
    start: Start | None = None,
) -> Row:
    """Everything that is worth knowing of a run, and the recipe it was last trained with."""
    hashes = data_hashes(train, val, recipe)
    return {
        "software": {
            "prism-transformer": __version__,
            **_commit(),
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
        "hardware": _hardware(settings.device),
        "attention_backends": attention_backends(recipe.model, settings),
        "hashes": {"initial_weights": fingerprint(model), **hashes},
        "start": None if start is None else start.facts,
        "recipe": recipe.model_dump(),
        "identity": uuid4().hex,
        "sessions": [],
    }


def session(step: int, world_size: int, settings: Settings, changed: Sequence[str] = ()) -> Row:
    """One stretch of training, from a step on; ``changed`` is what it has of a new budget."""
    return {
        "step": step,
        "recipe_changes": list(changed),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "processes": world_size,
        "workers": neighbours.workers(),
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


def data_hashes(train: Windows | Mixture, val: Windows, recipe: Recipe) -> Row:
    """What a run reads: its order of windows as a hash, and each shard as its manifest has it."""
    size, seed = len(train), recipe.train.seed
    # All that the order is a function of, and its beginning.
    order = hashlib.sha256(f"{seed} {size} {train.seq_len}\n".encode())
    for place in train.order(seed, min(ORDER_SAMPLE, size)):
        order.update(f"{place} ".encode())
    if (masking := objective_of(recipe).masking) is not None:
        sample = np.zeros((MASKS_SAMPLE, train.seq_len), np.int64)
        for part in masking.masked(sample, range(MASKS_SAMPLE), seed):
            order.update(part.astype("<i8").tobytes())
    shards = {}
    both: tuple[Windows | Mixture, ...] = (train, val)
    for windows in both:
        for index, (name, tokens) in enumerate(zip(windows.names, windows.lengths, strict=True)):
            digest = windows.sha256[index] if windows.sha256 else None
            shards[name] = {"tokens": tokens, "sha256": digest}
    return {"data_order": order.hexdigest(), "shards": shards}


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
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
