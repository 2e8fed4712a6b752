"""The few files of code that a folder needs to stand where our package is not installed.

They are our own sources, cut and with relative imports, as transformers loads them beside weights.
"""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
FILES = (
    "core/errors.py", "core/loss.py", "schedule.py", "model.py", "hf/names.py",
    "hf/extending.py", "hf/layers.py", "hf/configuration_prism.py", "hf/modeling_prism.py",
    "hf/modeling_masked.py",
)  # fmt: skip

# Not the classification heads: transformers makes their model without asking for its code.
AUTO_MAP = {
    "AutoConfig": "configuration_prism.PrismConfig",
    "AutoModel": "modeling_prism.PrismModel",
    "AutoModelForCausalLM": "modeling_prism.PrismForCausalLM",
    "AutoModelForMaskedLM": "modeling_masked.PrismForMaskedLM",
}

# ``recipe.py`` has one class of use here, whose fields pydantic checks. Nothing else does: a
# folder's config was checked when it was written.
RECIPE = '''"""The architecture of a native model, as ``recipe.py`` of prism-transformer has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .schedule import HeadSchedule, ScheduleError, head_counts


{values}


{model}
'''


def code_files() -> dict[str, str]:
    """The files by name."""
    sources = {Path(name).name: (PACKAGE / name).read_text("utf-8") for name in FILES}
    files = {name: _relative(text) for name, text in sources.items()}
    return files | {"recipe.py": _recipe()}


def _relative(text: str) -> str:
    return re.sub(r"from prism_transformer\.(?:\w+\.)*(\w+) import", r"from .\1 import", text)


def _recipe() -> str:
    """The one class, as a plain dataclass."""
    text = (PACKAGE / "recipe.py").read_text("utf-8")
    names = (
        "VOCAB_MULTIPLE", "ROPE_BASE", "RopeFrequencies", "AttentionScale", "AttentionKind", "Norm",
    )  # fmt: skip
    values = [re.search(rf"^{name} = .*$", text, re.MULTILINE) for name in names]
    model = re.search(
        r"^class ModelConfig\(Section\):.*?(?=^class )", text, re.DOTALL | re.MULTILINE
    )
    assert model is not None
    body = re.sub(r" = Field\(.*\)", "", model[0].rstrip())  # a folder's config has what it derives
    for pydantics, plain in {
        "class ModelConfig(Section)": "@dataclass(frozen=True)\nclass ModelConfig",
        '@model_validator(mode="after")\n    def _layers_fit(self)': "def __post_init__(self)",
    }.items():
        assert pydantics in body, "recipe.py was rewritten, and this has to follow"
        body = body.replace(pydantics, plain)
    return RECIPE.format(values="\n".join(value[0] for value in values if value), model=body)
