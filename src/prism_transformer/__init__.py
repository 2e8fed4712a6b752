"""Prism Transformer: progressive head schedules, from the idea to the report.

Build        HeadSchedule, ModelConfig, Attention, PrismLM; load_recipe reads a whole run from TOML
One run      prepare, train, resume, generate, evaluate, pretrained to begin from
Attention    attention_profile measures every head, attention_view shows them over a text
Many runs    load_study, run_study, submit_study, compare_runs, report

Names load when first used, so that importing the package does not import torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism_transformer.analysis.profile import attention_profile as attention_profile
    from prism_transformer.analysis.viewer import attention_view as attention_view
    from prism_transformer.core.errors import InputError as InputError
    from prism_transformer.data.prepare import Preparation as Preparation
    from prism_transformer.data.prepare import prepare as prepare
    from prism_transformer.eval.harness import evaluate as evaluate
    from prism_transformer.hf.generate import generate as generate
    from prism_transformer.hf.pretrained import pretrained as pretrained
    from prism_transformer.model import Attention as Attention
    from prism_transformer.model import PrismLM as PrismLM
    from prism_transformer.recipe import ModelConfig as ModelConfig
    from prism_transformer.recipes.files import load_recipe as load_recipe
    from prism_transformer.reporting.write import report as report
    from prism_transformer.schedule import HeadSchedule as HeadSchedule
    from prism_transformer.study.api import compare_runs as compare_runs
    from prism_transformer.study.api import run_study as run_study
    from prism_transformer.study.folder import load_study as load_study
    from prism_transformer.study.slurm import submit_study as submit_study
    from prism_transformer.training.api import resume as resume
    from prism_transformer.training.api import train as train
    from prism_transformer.training.run import Run as Run

__version__ = version("prism-transformer")

# Where each name is. None is also the name of a module here: Python binds a module to its package
# when it is first imported, and would hide the verb from then on.
_HOME = {
    "Attention": "model",
    "HeadSchedule": "schedule",
    "InputError": "core.errors",
    "ModelConfig": "recipe",
    "Preparation": "data.prepare",
    "PrismLM": "model",
    "Run": "training.run",
    "attention_profile": "analysis.profile",
    "attention_view": "analysis.viewer",
    "compare_runs": "study.api",
    "evaluate": "eval.harness",
    "generate": "hf.generate",
    "load_recipe": "recipes.files",
    "load_study": "study.folder",
    "prepare": "data.prepare",
    "pretrained": "hf.pretrained",
    "report": "reporting.write",
    "resume": "training.api",
    "run_study": "study.api",
    "submit_study": "study.slurm",
    "train": "training.api",
}
__all__ = [
    "Attention",
    "HeadSchedule",
    "InputError",
    "ModelConfig",
    "Preparation",
    "PrismLM",
    "Run",
    "attention_profile",
    "attention_view",
    "compare_runs",
    "evaluate",
    "generate",
    "load_recipe",
    "load_study",
    "prepare",
    "pretrained",
    "report",
    "resume",
    "run_study",
    "submit_study",
    "train",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
