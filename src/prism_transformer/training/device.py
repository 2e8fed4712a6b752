"""Where to train, in what precision, and whether to compile: each choice with its reason.

``settle`` decides and changes nothing, so that plans can ask it; ``begin`` acts, once, where a run
or a measurement begins.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from prism_transformer.core.errors import InputError, first_line
from prism_transformer.model import PrismLM
from prism_transformer.models.cost import utilisation_flops
from prism_transformer.recipe import ModelConfig, Precision, Recipe
from prism_transformer.schedules.hardware import PEAK_FLOPS, layer_backends
from prism_transformer.training import neighbours

# Compiling the layers of a Prism model takes about half a minute and saves a fifth of each step.
# Runs of less work than this, all processes together, are over before that pays.
MIN_COMPILED_FLOPS = {"cpu": 3e13, "cuda": 1e17}
# Of that, what a run waits for whose code another one has compiled: 0.22 with a tiny model.
AGAIN = 0.25
# Options of glibc's mallopt, from malloc.h.
TRIM_THRESHOLD, MMAP_MAX = -1, -4

# Four head widths, with and without gradients, reach torch's own limit of 8.
MAX_VARIANTS = 64

# Of a GPU's memory, the most that logits and their gradient may take for the loss to be computed
# from all of them at once: on 80 GB a pass of 100,000 tokens of the paper's models.
LOGITS_SHARE = 0.25

# bf16 is mixed: weights, gradients and AdamW's moments stay in float32, products are autocast.
DTYPES = {"bf16": torch.float32, "fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True)
class Settings:
    """What a run settled on where its recipe says auto."""

    device: torch.device
    precision: Precision
    compiled: bool
    compile_reason: str
    insisted: bool = False
    """the recipe asks for compiled layers: a compiler that does not work is then an error"""
    precision_reason: str = ""
    """why this precision, where that may surprise"""

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, gradients and optimizer state."""
        return DTYPES[self.precision]

    @property
    def product_dtype(self) -> torch.dtype:
        """Of matrix products and of attention."""
        return torch.bfloat16 if self.precision == "bf16" else self.dtype

    def autocast(self) -> AbstractContextManager[object]:
        """Matrix products in bfloat16 where that is the precision."""
        mixed = self.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if mixed else nullcontext()

    def peak_flops(self) -> float | None:
        """The device's peak in this precision, where it is known."""
        if self.device.type != "cuda" or self.precision != "bf16":
            return None
        name = torch.cuda.get_device_name(self.device)
        return next((peak for key, peak in PEAK_FLOPS.items() if key in name), None)


def settle(recipe: Recipe, device: str) -> Settings:
    """Decide what the recipe leaves to the machine; nothing is changed or tried yet."""
    where = find_device(device)
    precision, why = _precision(recipe, where)
    compiled, reason = _compiled(recipe, where)
    return Settings(where, precision, compiled, reason, recipe.train.compile == "on", why)


def _precision(recipe: Recipe, device: torch.device) -> tuple[Precision, str]:
    """That of the recipe, or bfloat16 where the device has units for it; and what to say of it."""
    wanted = recipe.train.precision
    if device.type == "mps" and wanted not in ("auto", "fp32"):
        raise InputError(f'train.precision = "{wanted}": on mps only fp32 can be had')
    if wanted != "auto":
        return wanted, ""
    if device.type != "cuda":
        # Without bfloat16 units a CPU takes a hundred times longer for it; and on every CPU alike,
        # so that a recipe means one computation there.
        return "fp32", ""
    if torch.cuda.is_bf16_supported(including_emulation=False):  # from compute capability 8 on
        return "bf16", ""
    name = torch.cuda.get_device_name(device)
    return "fp32", f"{name} has no units for bfloat16: trains in float32, several times slower"


def find_device(name: str) -> torch.device:
    """The device of a name, ``auto`` for the first there is."""
    if name == "auto":  # not mps: nobody has tried it, so it must be asked for
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda", "mps"):
        raise InputError(f"device {name!r}: this runs on cuda and on cpu, untested on mps")
    if name == "cpu":
        return torch.device("cpu")
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise InputError("device 'mps': this torch finds no Apple GPU")
        return torch.device("mps")
    if not torch.cuda.is_available():
        raise InputError("device 'cuda': this torch finds no CUDA device; see `nvidia-smi`")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))  # set by torchrun


def _compiled(recipe: Recipe, device: torch.device) -> tuple[bool, str]:
    if recipe.train.compile != "auto":
        return recipe.train.compile == "on", "the recipe says so"
    if device.type == "mps":
        return False, "nobody has tried the compiler on mps"
    if (told := neighbours.compiled()) is not None:
        return told
    flops = recipe.train.tokens * utilisation_flops(recipe.model, recipe.model.seq_len)
    if not compiling_pays(flops, device.type):
        return False, f"a run of {flops:.0e} FLOPs is over before compiling pays"
    return True, "a long run"


def compiling_pays(flops: float, device: str, runs: int = 1) -> bool:
    """Whether runs of so much work each, which share compiled code, save more than it takes.

    The first one waits for the compiler, those after it for little more than torch's own look at
    the model.
    """
    first = MIN_COMPILED_FLOPS[device]
    return runs * flops >= first + (runs - 1) * AGAIN * first


def begin(settings: Settings) -> Settings:
    """Make this process ready to compute under these settings; what could be had of them.

    Everything here changes the process or takes seconds, so plans and forecasts do without it.
    """
    if settings.device.type == "cuda":
        torch.cuda.set_device(settings.device)
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32
    else:
        keep_memory()
    problem = _compiler_problem(settings.device) if settings.compiled else None
    if problem is None:
        return settings
    if settings.insisted:
        raise InputError(f'train.compile = "on", but the compiler does not work: {problem}')
    reason = f"the compiler does not work: {problem}"
    return replace(settings, compiled=False, compile_reason=reason)


def keep_memory() -> None:
    """Have the C library keep freed memory for the next step instead of returning it.

    Every step takes the same gigabytes again, and new pages cost 5 % of its time at the small
    shape. Systems without glibc have no such option and go on as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)


def _compiler_problem(device: torch.device) -> str | None:
    """Why torch.compile does not work here, by trying it."""
    try:
        torch.compile(torch.sin, fullgraph=True)(torch.ones(8, device=device))
    except Exception as error:  # a compiler that is missing, too old, or broken in its own way
        return first_line(error)
    return None


def compile_layers(model: PrismLM) -> None:
    """Compile each layer; one that cannot be compiled is an error, never a silent detour."""
    torch._dynamo.config.recompile_limit = MAX_VARIANTS
    # Beyond the limit torch would go on uncompiled without a word.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    # For DDP torch would cut each layer into two to four graphs, so that gradients go out before
    # the layer is done. Between layers they do that already.
    torch._dynamo.config.optimize_ddp = False
    for layer in model.layers:
        # Its forward, not the layer: hooks of fully_shard then stay outside.
        # Static shapes: batches are all alike, and one variant for any shape is slower.
        layer.forward = torch.compile(layer.forward, fullgraph=True, dynamic=False)


def plain_loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of targets (N,) under hidden states x (N, D), from all logits at once.

    For the compiler, which makes six kernels and three products of it; as it stands it would hold
    the logits (N, V) three times in float32. The weight's gradient is one product, accumulated in
    float32 by the hardware and rounded once.
    """
    logits = F.linear(x, weight)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets)


def compile_loss(model: PrismLM, n_tokens: int, device: torch.device) -> None:
    """Train with the compiled loss over all logits of a pass, on a GPU that has room for them.

    Counted for 32 x 1024 tokens: 6 kernels and 3 products that move 10 GB, where chunks take
    4,400 operations and 100 GB. A CPU gains nothing by it, and chunks fall out of the compiler.
    """
    if device.type != "cuda":
        return
    room = LOGITS_SHARE * torch.cuda.get_device_properties(device).total_memory
    if logits_bytes(n_tokens, model.config.vocab_rows) <= room:
        model.training_loss = torch.compile(plain_loss, fullgraph=True, dynamic=False)


def logits_bytes(n_tokens: int, vocab_rows: int) -> int:
    """Logits of a pass and their gradient, both in bfloat16: what the compiler keeps of them."""
    return 2 * 2 * n_tokens * vocab_rows


def peak_memory(device: torch.device) -> int:
    """Bytes this process has needed at most."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    import resource  # not on every system

    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def sum_type(device: torch.device) -> torch.dtype:
    """In what numbers are summed: the most precise that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def attention_backends(config: ModelConfig, settings: Settings) -> list[str]:
    """The attention kernel that torch chooses for each layer of a model."""
    device, dtype = settings.device.type, str(settings.product_dtype).removeprefix("torch.")
    return list(
        layer_backends(
            config.schedule, config.d_model, device, dtype, config.seq_len,
            queries_per_kv=config.queries_per_kv, causal=config.attention == "causal",
        )
    )  # fmt: skip
