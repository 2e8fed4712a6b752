"""Prism models in vLLM: its entry point ``vllm.general_plugins`` calls ``register``.

vLLM loads plugins in every process that it starts, engines included, so a Prism folder is served
wherever both packages are installed. Its transformers backend runs our module with its own linear
layers, norms and attention, and reads heads and widths layer by layer.
"""

from __future__ import annotations

from collections.abc import Sequence

ARCHITECTURE = "PrismForCausalLM"
MODEL = "prism_transformer.hf.vllm_model:PrismForCausalLM"

# Head widths that vLLM 0.32 has kernels for on a CPU; GPU backends differ, and have these.
WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def register() -> None:
    """Make Prism known to this process of vLLM's."""
    import prism_transformer.hf  # noqa: F401  # for transformers
    import vllm

    vllm.ModelRegistry.register_model(ARCHITECTURE, MODEL)


def kernel_width(width: int) -> int | None:
    """The width a head is padded to on a CPU: the next that has a kernel; None above all."""
    return next((each for each in WIDTHS if each >= width), None)


def cpu_note(head_dims: Sequence[int]) -> str:
    """What a user of vLLM on a CPU should know of these widths; nothing if all have kernels."""
    padded = {width: kernel_width(width) for width in sorted(set(head_dims))}
    if missing := [str(width) for width, kernel in padded.items() if kernel is None]:
        return f"vLLM has no CPU kernel for heads {', '.join(missing)} wide; {WIDTHS[-1]} is most"
    others = [f"{width} wide to {kernel}" for width, kernel in padded.items() if width != kernel]
    if not others:
        return ""
    # Heads times width is the same in every layer, so a layer's cache grows as its width does.
    cache = sum((padded[width] or width) / width for width in head_dims) / len(head_dims)
    return f"on a CPU vLLM pads heads {', '.join(others)}: {cache:.2f} times the KV cache"
