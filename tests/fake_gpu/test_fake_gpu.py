"""On a pretended card: shapes and types of a step, and attention's backends.

Nothing computes here, so no number is checked, only what would run.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from prism_transformer.model import PrismLM
from prism_transformer.recipes.files import load_recipe, packaged_recipes
from prism_transformer.training.device import settle

CARD = os.environ.get("PRETENDED_NAME", "")
pytestmark = pytest.mark.skipif(not CARD, reason="make test-fake-gpu runs this")
HOPPER = "H100" in CARD
WIDTHS = (64, 96, 128, 192, 256, 384)
PAPER = [f"{arm}-{size}" for arm in ("prism", "baseline") for size in ("small", "medium", "large")]


class Operations(TorchDispatchMode):
    """Counts what torch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Counter[str]()

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen[function._schema.name.removeprefix("aten::")] += 1
        return function(*args, **(kwargs or {}))

    def backends(self) -> Counter[str]:
        pattern = r"_scaled_dot_product_(\w+?)_attention$"
        found = ((re.fullmatch(pattern, name), n) for name, n in self.seen.items())
        return Counter({match[1]: n for match, n in found if match})


def expected(width: int) -> str:
    """The table of docs/performance.md."""
    if width > 256:
        return "efficient"
    return "cudnn" if HOPPER and width != 192 else "flash"


@pytest.mark.parametrize("groups", [1, 2], ids=["own-keys", "grouped"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_backend_of_each_width_is_as_documented(width: int, groups: int) -> None:
    with FakeTensorMode(), Operations() as done:
        q, k = (
            torch.empty(
                2, 1024, n, width, device="cuda", dtype=torch.bfloat16, requires_grad=True
            ).transpose(1, 2)
            for n in (4, 4 // groups)
        )
        y = scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=groups > 1)
        y.sum().backward()
    assert done.backends() == {expected(width): 1}
    assert y.shape == q.shape


@pytest.mark.parametrize("name", [*PAPER, "prism-nano", "prism-micro", "grouped"])
def test_a_step_of_every_recipe(name: str) -> None:
    assert name in packaged_recipes() or name == "grouped"
    grouped = ("base/small", ["model.schedule=4x6 12x6", "model.queries_per_kv=2"])
    recipe = load_recipe(*grouped) if name == "grouped" else load_recipe(name)
    assert settle(recipe, "cuda").precision == "bf16"
    length = recipe.model.seq_len
    with FakeTensorMode(), Operations() as done:
        with torch.device("cuda"):
            model = PrismLM(recipe.model)
        tokens = torch.empty(2, length + 1, dtype=torch.long, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
    assert loss.dtype == torch.float32
    for weight in model.parameters():
        assert weight.grad is not None
        assert (weight.grad.dtype, weight.grad.device.type) == (torch.float32, "cuda")
    if length == 1024:
        widths = recipe.model.schedule.head_dims(recipe.model.d_model)
        assert done.backends() == Counter(map(expected, widths))
