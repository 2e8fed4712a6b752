"""Prism Transformer: progressive head schedules, from the idea to the report.

The names below load when first used, so that importing the package does not import torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism_transformer.analysis.profile import attention_profile as attention_profile
    from prism_transformer.errors import InputError as InputError
    from prism_transformer.model import PrismLM as PrismLM
    from prism_transformer.recipe import ModelConfig as ModelConfig
    from prism_transformer.recipe_file import load_recipe as load_recipe
    from prism_transformer.sampling import generate as generate
    from prism_transformer.schedule import HeadSchedule as HeadSchedule

__version__ = version("prism-transformer")

_HOME = {
    "attention_profile": "analysis.profile",
    "HeadSchedule": "schedule",
    "InputError": "errors",
    "ModelConfig": "recipe",
    "PrismLM": "model",
    "generate": "sampling",
    "load_recipe": "recipe_file",
}
__all__ = [
    "HeadSchedule",
    "InputError",
    "ModelConfig",
    "PrismLM",
    "attention_profile",
    "generate",
    "load_recipe",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
