"""Prism as a model of vLLM's: its transformers backend, with what that cannot know of ours."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.transformers import TransformersForCausalLM
from vllm.platforms import current_platform

from prism_transformer.hf.vllm_plugin import WIDTHS, widths_without_kernel


class PrismForCausalLM(TransformersForCausalLM):
    """Never generates a row that only pads the vocabulary, and refuses widths without a kernel."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        missing = widths_without_kernel(config.native.head_dims)
        if missing and current_platform.is_cpu():
            raise ValueError(
                f"head_schedule {config.head_schedule} has heads {', '.join(map(str, missing))} "
                f"wide; vLLM has CPU kernels for {', '.join(map(str, WIDTHS))} only"
            )
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.logits_processor.org_vocab_size = config.num_tokens or config.vocab_size
