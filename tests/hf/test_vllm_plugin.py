"""What does not need vLLM; ``tests/vllm`` has the rest."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

from prism_transformer.hf.vllm_plugin import WIDTHS, cpu_note, kernel_width

ROOT = Path(__file__).parents[2]


def test_the_entry_point_names_a_function() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["entry-points"]["vllm.general_plugins"]["prism"].partition(":")
    assert callable(getattr(import_module(module), name))


def test_a_head_runs_at_the_next_width_that_has_a_kernel() -> None:
    assert [kernel_width(each) for each in (8, 16, 32, 48, 64, 300)] == [32, 32, 32, 64, 64, 512]
    assert kernel_width(768) is None
    assert [kernel_width(each) for each in WIDTHS] == list(WIDTHS)


def test_what_is_said_of_widths() -> None:
    assert cpu_note((256, 256, 128, 96, 64)) == ""  # the paper's small model
    nano = (64, 64, 32, 32, 16, 16, 16, 16)
    assert cpu_note(nano) == "on a CPU vLLM pads heads 16 wide to 32: 1.50 times the KV cache"
    assert "no CPU kernel for heads 768 wide; 512 is most" in cpu_note((768, 16))
