"""Prism models as Hugging Face models. Importing this registers them with the Auto classes."""

try:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError:
    from prism_transformer.errors import InputError

    raise InputError(
        "Hugging Face models need transformers: pip install 'prism-transformer[hf]'"
    ) from None

from prism_transformer.hf.configuration_prism import PrismConfig
from prism_transformer.hf.modeling_prism import PrismForCausalLM, PrismModel

__all__ = ["PrismConfig", "PrismForCausalLM", "PrismModel"]

# Trainer looks here, by name, for models whose labels it must shift itself (label smoothing).
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[PrismConfig.model_type] = PrismForCausalLM.__name__

AutoConfig.register(PrismConfig.model_type, PrismConfig, exist_ok=True)
AutoModel.register(PrismConfig, PrismModel, exist_ok=True)
AutoModelForCausalLM.register(PrismConfig, PrismForCausalLM, exist_ok=True)
