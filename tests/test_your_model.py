"""The patches of docs/your-model.md: each runs, and does what it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from prism_transformer import HeadSchedule
from prism_transformer.hf.importing import from_llama

Product = Callable[[Tensor], Tensor]

DOCUMENT = Path(__file__).parents[1] / "docs" / "your-model.md"


@cache
def patches() -> list[dict[str, Any]]:
    """What each Python block of the document defines, once it has run."""
    found = []
    for body in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL):
        torch.manual_seed(0)
        names: dict[str, Any] = {"__name__": "patch"}
        exec(compile(body, str(DOCUMENT), "exec", dont_inherit=True), names)
        found.append(names)
    return found


def patch(with_name: str) -> dict[str, Any]:
    (found,) = [names for names in patches() if with_name in names]
    return found


def by_hand(x: Tensor, qkv: Product, out: Product, n_heads: int) -> Tensor:
    """Causal attention head by head, in plain products."""
    q, k, v = qkv(x).chunk(3, -1)
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    heads = []
    for one in zip(*(each.chunk(n_heads, -1) for each in (q, k, v)), strict=True):
        scores = one[0] @ one[1].mT / one[0].shape[-1] ** 0.5
        heads.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ one[2])
    return out(torch.cat(heads, -1))


@torch.no_grad()
def test_plain_torch() -> None:
    names = patch("layers")
    for layer, n_heads in zip(names["layers"], (2, 2, 4, 4, 8, 8, 8, 8), strict=True):
        x = torch.randn(2, 16, 128)
        weights = layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias
        qkv = partial(F.linear, weight=weights[0], bias=weights[1])
        y = x + by_hand(layer.norm1(x), qkv, layer.self_attn.out_proj, n_heads)
        y = y + layer.linear2(F.relu(layer.linear1(layer.norm2(y))))
        layer.eval()
        found = layer(x, src_mask=names["mask"], is_causal=True)
        torch.testing.assert_close(found, y, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_nanogpt() -> None:
    """Blocks of the document's own words, each against attention head by head."""
    names = patch("Config")
    for block, n_heads in zip(names["blocks"], (2, 2, 4, 4, 8, 8, 8, 8), strict=True):
        x = torch.randn(2, 16, 128)
        y = x + by_hand(block.before(x), block.qkv, block.out, n_heads)
        torch.testing.assert_close(block(x), y + block.mlp(block.between(y)), rtol=1e-4, atol=1e-4)
    one = [weight.shape for weight in names["Block"](names["config"]).parameters()]
    assert [weight.shape for weight in names["blocks"].parameters()] == 8 * one


@pytest.mark.parametrize("schedule", ["2x2 4x1 8x1", "8x4"])
@torch.no_grad()
def test_a_llama_is_the_one_that_import_makes(schedule: str) -> None:
    """Against our own model with the same weights, which the import converts."""
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, vocab_size=256, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, initializer_range=0.3,
    )  # fmt: skip
    llama = LlamaForCausalLM(config).eval()
    before = llama(torch.arange(24)[None]).logits
    imported = from_llama(llama, HeadSchedule.parse(schedule)).eval()
    patch("with_schedule")["with_schedule"](llama, HeadSchedule.parse(schedule))
    tokens = torch.arange(24)[None]
    found = llama(tokens).logits
    torch.testing.assert_close(found, imported(tokens).logits, rtol=1e-3, atol=1e-3)
    assert torch.allclose(found, before, rtol=1e-3, atol=1e-3) == (schedule == "8x4")
    cached = llama.generate(tokens, max_new_tokens=5, do_sample=False, pad_token_id=0)
    plain = llama.generate(
        tokens, max_new_tokens=5, do_sample=False, pad_token_id=0, use_cache=False
    )
    assert torch.equal(cached, plain)


def test_our_attention_in_a_block() -> None:
    """It learns, and says its heads."""
    (names,) = [each for each in patches() if "Attention" in each and "Block" in each]
    blocks = names["blocks"]
    for shown in ("2 heads of 64", "4 heads of 32", "8 heads of 16"):
        assert shown in repr(blocks)
    x = torch.randn(4, 16, 128, generator=torch.Generator().manual_seed(0))
    wanted = torch.roll(x, 1, dims=1)  # the position before: attention alone can bring it here
    optimizer = torch.optim.AdamW(blocks.parameters(), 3e-3)
    losses = []
    for _ in range(20):
        loss = (blocks(x) - wanted)[:, 1:].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_every_block_of_the_document_ran() -> None:
    assert len(patches()) == 5
    (diff,) = re.findall(r"```diff\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert "Block(replace(config, n_head=n)) for n in schedule" in diff  # as the block that runs
