"""What does not need vLLM; ``tests/vllm`` has the rest."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

from prism_transformer.hf.vllm_plugin import widths_without_kernel

ROOT = Path(__file__).parents[2]


def test_the_entry_point_names_a_function() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["entry-points"]["vllm.general_plugins"]["prism"].partition(":")
    assert callable(getattr(import_module(module), name))


def test_widths() -> None:
    assert widths_without_kernel((256, 128, 96, 64)) == []  # the paper's small model
    assert widths_without_kernel((64, 16, 16, 8)) == [8, 16]
