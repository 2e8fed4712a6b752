"""PrismForMaskedLM: a bidirectional Prism model that finds the tokens behind a mask.

Shapes as in ``modeling_prism.py``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import can_return_tuple

from prism_transformer.hf.configuration_prism import PrismConfig
from prism_transformer.hf.modeling_prism import PrismForCausalLM, PrismModel, PrismPreTrainedModel


class PrismForMaskedLM(PrismPreTrainedModel):
    """The Prism Transformer as a masked language model."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: PrismConfig) -> None:
        if config.attention != "bidirectional":
            raise ValueError(
                f"attention = {config.attention!r}: a masked language model is bidirectional; "
                "this one is a PrismForCausalLM"
            )
        super().__init__(config)
        self.model = PrismModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

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
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
        return MaskedLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def kind_of(config: PrismConfig) -> Any:
    """The class of language models that a configuration is of."""
    return PrismForCausalLM if config.attention == "causal" else PrismForMaskedLM
