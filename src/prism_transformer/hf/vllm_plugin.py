"""Prism models in vLLM: its entry point ``vllm.general_plugins`` calls ``register``.

vLLM loads plugins in every process that it starts, engines included, so a Prism folder is served
wherever both packages are installed. Its transformers backend runs our module with its own linear
layers, norms and attention, and reads heads and widths layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterable

ARCHITECTURE = "PrismForCausalLM"
MODEL = "prism_transformer.hf.vllm_model:PrismForCausalLM"

# Head widths that vLLM 0.32 has kernels for on a CPU; GPU backends differ, and have these.
WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def register() -> None:
    """Make Prism known to this process of vLLM's."""
    import prism_transformer.hf  # noqa: F401  # for transformers
    import vllm

    vllm.ModelRegistry.register_model(ARCHITECTURE, MODEL)


def widths_without_kernel(head_dims: Iterable[int]) -> list[int]:
    """Head widths of a model that vLLM cannot run on a CPU."""
    return sorted(set(head_dims) - set(WIDTHS))
