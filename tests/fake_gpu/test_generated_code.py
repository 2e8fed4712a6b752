"""What the compiler makes of a layer and of the loss for a pretended H100, held against the docs.

Code is generated, not run: beside its own kernels it would call products and attention of a card
that is not there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from prism_transformer.model import PrismLM
from prism_transformer.recipes.files import load_recipe
from prism_transformer.training.device import plain_loss

pytestmark = pytest.mark.skipif(
    "H100" not in os.environ.get("PRETENDED_NAME", ""), reason="make test-fake-gpu runs this"
)
DOCS = Path(__file__).parents[2] / "docs" / "performance.md"
ROWS, LENGTH = 32, 1024  # a pass of the small model
PATTERNS = {
    "launches": r"\.run\(",
    "products": r"extern_kernels\.\w*mm\(",
    "attention": r"= torch\.ops\.aten\._scaled_dot_product",
}


class Generated:
    """A backend of torch.compile that keeps what inductor writes and runs the graph instead."""

    def __init__(self) -> None:
        self.code: list[str] = []
        self.n_bytes = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(graph, inputs, inner_compile=self._inner)

    def _inner(self, graph: Any, inputs: Any, **options: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx_inner

        compile_fx_inner(graph, inputs, **options)

        def run(arguments: list[Any]) -> Any:
            found = graph.forward(*arguments)
            arguments.clear()
            return found

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def row(self) -> list[int]:
        """Launches, products, calls of attention, and MB read and written, both ways."""
        bodies = [code[code.index("def call(") :] for code in self.code]
        counts = [sum(len(re.findall(each, body)) for body in bodies) for each in PATTERNS.values()]
        return [*counts, round(self.n_bytes / 1e6)]


@contextmanager
def generating(patch: pytest.MonkeyPatch) -> Iterator[Generated]:
    import torch._functorch.config as functorch
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.graph import GraphLowering

    kept, write = Generated(), GraphLowering.codegen

    def codegen(graph: Any) -> Any:
        written = write(graph)
        kept.n_bytes += graph.count_bytes()[0]
        return written

    patch.setattr(GraphLowering, "codegen", codegen)
    patch.setattr(GraphLowering, "save_output_code", staticmethod(kept.code.append))
    patch.setattr(AsyncCompile, "triton", lambda *_, **__: None)  # nobody launches it
    torch._dynamo.reset()
    with (
        config.patch(compile_threads=1, fx_graph_cache=False, joint_graph_constant_folding=False),
        functorch.patch(enable_autograd_cache=False),
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.autocast("cuda", torch.bfloat16),
    ):
        yield kept


def documented() -> dict[str, list[int]]:
    """The rows of the table, by their first cell."""
    lines = re.findall(
        r"^\| (a layer .+?|the loss) \|(.+)\|$", DOCS.read_text("utf-8"), re.MULTILINE
    )
    return {
        name: [int(cell.replace(",", "")) for cell in cells.split("|")] for name, cells in lines
    }


def of_a_layer(heads: int) -> Callable[[Generated], Tensor]:
    def step(kept: Generated) -> Tensor:
        with torch.device("cuda"):
            model = PrismLM(load_recipe("base/small", [f"model.schedule={heads}x12"]).model)
        layer = model.layers[0]
        layer.forward = torch.compile(layer.forward, fullgraph=True, dynamic=False, backend=kept)
        return model(torch.empty(ROWS, LENGTH, dtype=torch.long, device="cuda")).sum()

    return step


def of_the_loss(kept: Generated) -> Tensor:
    with torch.device("cuda"):
        model = PrismLM(load_recipe("base/small").model)
    model.training_loss = torch.compile(plain_loss, fullgraph=True, dynamic=False, backend=kept)
    tokens = torch.empty(ROWS, LENGTH + 1, dtype=torch.long, device="cuda")
    return model(tokens[:, :-1], tokens[:, 1:])


@pytest.mark.parametrize(
    ("name", "step"),
    [
        (f"a layer with {heads} heads of {768 // heads}", of_a_layer(heads))
        for heads in (3, 6, 8, 12)
    ]
    + [("the loss", of_the_loss)],
)
def test_no_more_is_generated_than_documented(
    name: str, step: Callable[[Generated], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with generating(monkeypatch) as kept:
        step(kept).backward()
    found = kept.row()
    print(f"| {name} | {' | '.join(f'{number:,}' for number in found)} |")
    assert len(kept.code) == 2  # forward and backward, each in one piece
    known = documented()[name]
    assert all(now <= before for now, before in zip(found, known, strict=True))
