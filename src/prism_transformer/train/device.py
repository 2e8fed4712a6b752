"""Where to train, in what precision, and whether to compile: each choice with its reason."""

from __future__ import annotations

import ctypes
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from prism_transformer.cost import utilisation_flops
from prism_transformer.errors import InputError
from prism_transformer.model import PrismLM
from prism_transformer.recipe import Precision, Recipe

# Compiling the layers of a Prism model takes about half a minute and saves a fifth of each step.
# Runs of less work than this, all processes together, are over before that pays.
MIN_COMPILED_FLOPS = {"cpu": 3e13, "cuda": 1e17}
# Options of glibc's mallopt, from malloc.h.
TRIM_THRESHOLD, MMAP_MAX = -1, -4

# Four head widths, with and without gradients, reach torch's own limit of 8.
MAX_VARIANTS = 64

DTYPES = {"bf16": torch.float32, "fp32": torch.float32, "fp64": torch.float64}

# Dense peak FLOP/s of matrix products in bfloat16, from the makers' data sheets.
PEAK_FLOPS = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100": 989.4e12,
    "H200": 989.4e12,
    "B200": 2250e12,
}


@dataclass(frozen=True)
class Settings:
    """What a run settled on where its recipe says auto."""

    device: torch.device
    precision: Precision
    compiled: bool
    compile_reason: str

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, gradients and optimizer state."""
        return DTYPES[self.precision]

    def autocast(self) -> AbstractContextManager[object]:
        """Matrix products in bfloat16 where that is the precision."""
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def peak_flops(self) -> float | None:
        """The device's peak in this precision, where it is known."""
        if self.device.type != "cuda" or self.precision != "bf16":
            return None
        name = torch.cuda.get_device_name(self.device)
        return next((peak for key, peak in PEAK_FLOPS.items() if key in name), None)


def settle(recipe: Recipe, device: str) -> Settings:
    """Decide what the recipe leaves to the machine."""
    where = _device(device)
    precision = recipe.train.precision
    if precision == "auto":
        # Without bfloat16 units a CPU takes a hundred times longer for it; and on every CPU alike,
        # so that a recipe means one computation there.
        precision = "bf16" if where.type == "cuda" else "fp32"
    compiled, reason = _compiled(recipe, where)
    return Settings(where, precision, compiled, reason)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise InputError(
            f"device {name!r}: training runs on cuda and on cpu"
            + ("; mps is untested and its loss kernel is missing" if name == "mps" else "")
        )
    if name == "cpu":
        keep_memory()
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("device 'cuda': this torch finds no CUDA device; see `nvidia-smi`")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32
    return device


def keep_memory() -> None:
    """Have the C library keep freed memory for the next step instead of returning it.

    Every step takes the same gigabytes again, and new pages cost 5 % of its time at the small
    shape. Systems without glibc have no such option and go on as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)


def _compiled(recipe: Recipe, device: torch.device) -> tuple[bool, str]:
    wish = recipe.train.compile
    if wish == "off":
        return False, "the recipe says so"
    flops = recipe.train.tokens * utilisation_flops(recipe.model, recipe.model.seq_len)
    if wish == "auto" and flops < MIN_COMPILED_FLOPS[device.type]:
        return False, f"a run of {flops:.0e} FLOPs is over before compiling pays"
    problem = _compiler_problem(device)
    if problem is None:
        return True, "the recipe says so" if wish == "on" else "a long run"
    if wish == "on":
        raise InputError(f'train.compile = "on", but the compiler does not work: {problem}')
    return False, f"the compiler does not work: {problem}"


def _compiler_problem(device: torch.device) -> str | None:
    """Why torch.compile does not work here, by trying it."""
    try:
        torch.compile(torch.sin, fullgraph=True)(torch.ones(8, device=device))
    except Exception as error:  # a compiler that is missing, too old, or broken in its own way
        return str(error).strip().partition("\n")[0]
    return None


def compile_layers(model: PrismLM) -> None:
    """Compile each layer; one that cannot be compiled is an error, never a silent detour.

    The loss stays as it is: its chunks fall out of the compiler.
    """
    torch._dynamo.config.recompile_limit = MAX_VARIANTS
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for layer in model.layers:
        # Its forward, not the layer: hooks of fully_shard then stay outside.
        layer.forward = torch.compile(layer.forward, fullgraph=True, dynamic=False)


def peak_memory(device: torch.device) -> int:
    """Bytes this process has needed at most."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
