"""Prism as a model of vLLM's: its transformers backend, with what that cannot know of ours."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.transformers import TransformersForCausalLM
from vllm.platforms import current_platform

from prism_transformer.hf.vllm_plugin import cpu_note, kernel_width


class PaddedAttention(Attention):
    """vLLM's attention at the next width that has a kernel.

    Zeros after a head's own channels add nothing to any product, and what comes out there is zero
    and cut off. The scale is handed in, by the head's own width: the function is the same.
    """

    def __init__(self, *, head_size: int, **options: Any) -> None:
        super().__init__(head_size=kernel_width(head_size), **options)
        self.own_width = head_size

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **more: Any) -> Tensor:
        """Each (tokens, heads x width), as what comes back."""
        if self.own_width == self.head_size:
            return super().forward(query, key, value, *rest, **more)
        q, k, v = (self._padded(each) for each in (query, key, value))
        y = super().forward(q, k, v, *rest, **more).unflatten(-1, (-1, self.head_size))
        return y[..., : self.own_width].flatten(-2)

    def _padded(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, self.own_width))
        return F.pad(heads, (0, self.head_size - self.own_width)).flatten(-2)


class PrismForCausalLM(TransformersForCausalLM):
    """Never generates a row that only pads the vocabulary; on a CPU has a kernel for each layer."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        widths = config.native.head_dims
        if current_platform.is_cpu() and kernel_width(max(widths)) is None:
            raise ValueError(f"head_schedule {config.head_schedule}: {cpu_note(widths)}")
        config.check_parallel(vllm_config.parallel_config.tensor_parallel_size)
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.logits_processor.org_vocab_size = config.num_tokens or config.vocab_size

    def _get_attn_cls(self) -> Any:
        found = super()._get_attn_cls()
        return PaddedAttention if found is Attention and current_platform.is_cpu() else found
