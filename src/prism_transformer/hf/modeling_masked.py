"""PrismForMaskedLM: a bidirectional Prism model that finds the tokens behind a mask.

Shapes as in ``modeling_prism.py``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import can_return_tuple

from prism_transformer.hf.configuration_prism import PrismConfig
from prism_transformer.hf.modeling_prism import PrismForCausalLM, PrismLanguageModel


class PrismForMaskedLM(PrismLanguageModel):
    """The Prism Transformer as a masked language model."""

    attention = "bidirectional"

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Logits (B, T, V) of each token itself, and with ``labels`` the loss where they are."""
        outputs = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, **kwargs
        )
        logits = self.lm_head(outputs.last_hidden_state)
        size = self.config.vocab_size
        return MaskedLMOutput(
            loss=None if labels is None else self.loss_function(logits, labels, size, **kwargs),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def model_class(config: PrismConfig) -> Any:
    """The class of the language model that a configuration describes."""
    return PrismForCausalLM if config.attention == "causal" else PrismForMaskedLM
