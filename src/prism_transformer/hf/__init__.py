"""Prism models as Hugging Face models. Importing this registers them with the Auto classes.

In come runs, native models, or models of others by name; out come folders that stand alone.
``modeling_prism.py`` first; ``load.py`` decides which model a user named and reads it,
``export.py`` carries weights out and ``importing.py`` in.
"""

try:
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError:
    from prism_transformer.core.errors import InputError

    raise InputError(
        "Hugging Face models need transformers: pip install 'prism-transformer[hf]'"
    ) from None

from prism_transformer.hf.configuration_prism import PrismConfig
from prism_transformer.hf.modeling_masked import PrismForMaskedLM
from prism_transformer.hf.modeling_prism import (
    PrismForCausalLM,
    PrismForQuestionAnswering,
    PrismForSequenceClassification,
    PrismForTokenClassification,
    PrismModel,
)

__all__ = [
    "PrismConfig",
    "PrismForCausalLM",
    "PrismForMaskedLM",
    "PrismForQuestionAnswering",
    "PrismForSequenceClassification",
    "PrismForTokenClassification",
    "PrismModel",
]

# Trainer looks here, by name, for models whose labels it must shift itself (label smoothing).
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[PrismConfig.model_type] = PrismForCausalLM.__name__

AutoConfig.register(PrismConfig.model_type, PrismConfig, exist_ok=True)
for auto, model in (
    (AutoModel, PrismModel),
    (AutoModelForCausalLM, PrismForCausalLM),
    (AutoModelForMaskedLM, PrismForMaskedLM),
    (AutoModelForSequenceClassification, PrismForSequenceClassification),
    (AutoModelForTokenClassification, PrismForTokenClassification),
    (AutoModelForQuestionAnswering, PrismForQuestionAnswering),
):
    auto.register(PrismConfig, model, exist_ok=True)
