from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
from torch import Tensor

from prism_transformer.hf.export import to_hf
from prism_transformer.model import PrismLM
from prism_transformer.models.packing import document_positions, isolated_attention, visible
from prism_transformer.recipe import AttentionKind
from prism_transformer.training.device import compile_layers
from tests.conftest import small_config

END = 0
LENGTHS = (5, 1, 9, 3, 6)  # of the documents of one window; the first has no token before it


def packed() -> Tensor:
    """Two windows of documents, which lie otherwise in the second."""
    draw = torch.Generator().manual_seed(0)
    rows = []
    for lengths in (LENGTHS, LENGTHS[::-1]):
        tokens = torch.randint(1, 50, (sum(lengths),), generator=draw)
        starts = torch.tensor(lengths).cumsum(0)[:-1]
        tokens[starts] = END
        rows.append(tokens)
    return torch.stack(rows)


def documents() -> Iterator[tuple[int, slice]]:
    for row, lengths in enumerate((LENGTHS, LENGTHS[::-1])):
        start = 0
        for length in lengths:
            yield row, slice(start, start + length)
            start += length


def model(attention: AttentionKind, queries_per_kv: int = 1) -> PrismLM:
    shape = {"seq_len": 32, "vocab_size": 64, "queries_per_kv": queries_per_kv}
    return PrismLM(small_config("2x1 6x1 12x1", attention=attention, **shape))


def test_positions_and_masks_against_a_loop() -> None:
    tokens = packed()
    positions = document_positions(tokens, END)
    both, back = (visible(positions, kind) for kind in ("bidirectional", "causal"))
    own = {row: [0] * tokens.shape[1] for row in range(2)}
    for number, (row, place) in enumerate(documents()):
        length = place.stop - place.start
        assert positions[row, place].tolist() == list(range(length))
        own[row][place] = [number] * length
    for row, numbers in own.items():
        for t, query in enumerate(numbers):
            for s, key in enumerate(numbers):
                assert both[row, 0, t, s] == (query == key)
                assert back[row, 0, t, s] == (query == key and s <= t)


@pytest.mark.parametrize("queries_per_kv", [1, 2])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_documents_are_read_as_if_alone(attention: AttentionKind, queries_per_kv: int) -> None:
    """Logits, and the gradient of a loss over all of them."""
    lm, tokens = model(attention, queries_per_kv).double(), packed()
    targets = tokens.roll(1, 1)
    positions = document_positions(tokens, END)
    attend = isolated_attention(positions, attention)
    logits = lm(tokens, positions=positions, attend=attend)
    lm(tokens, targets, positions=positions, attend=attend).backward()
    together = {name: weight.grad.clone() for name, weight in lm.named_parameters()}  # type: ignore[union-attr]
    lm.zero_grad()
    for row, place in documents():
        alone = lm(tokens[row : row + 1, place])
        torch.testing.assert_close(logits[row, place], alone[0], rtol=0, atol=1e-12)
        share = alone.shape[1] / tokens.numel()
        (lm(tokens[row : row + 1, place], targets[row : row + 1, place]) * share).backward()
    for name, weight in lm.named_parameters():
        torch.testing.assert_close(weight.grad, together[name], rtol=0, atol=1e-12)


def test_without_isolation_they_see_each_other() -> None:
    lm, tokens = model("causal").double(), packed()
    alone = lm(tokens[:1, 5:6])
    assert (lm(tokens)[0, 5] - alone[0, 0]).abs().max() > 1e-3


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_an_exported_model_isolates_by_positions(
    attention: AttentionKind, implementation: str
) -> None:
    lm, tokens = model(attention), packed()
    positions = document_positions(tokens, END)
    wrapped = to_hf(lm)
    wrapped.set_attn_implementation(implementation)
    with torch.no_grad():
        together = wrapped(tokens, position_ids=positions, use_cache=False).logits
        for row, place in documents():
            alone = wrapped(tokens[row : row + 1, place]).logits
            torch.testing.assert_close(together[row, place], alone[0], rtol=0, atol=1e-5)
        # One row of positions for all windows: those of the first, which holds for it alone.
        shared = wrapped(tokens, position_ids=positions[:1], use_cache=False).logits
        torch.testing.assert_close(shared[0], together[0], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_compiled_layers_read_documents_as_if_alone(attention: AttentionKind) -> None:
    """In training, where gradients are kept, and in evaluation."""
    torch._dynamo.reset()
    lm, plain, tokens = model(attention), model(attention), packed()
    compile_layers(lm)
    positions = document_positions(tokens, END)
    attend = isolated_attention(positions, attention)
    trained = lm.train()(tokens, positions=positions, attend=attend)
    assert trained.requires_grad
    with torch.no_grad():
        evaluated = lm.eval()(tokens, positions=positions, attend=attend)
        for row, place in documents():
            alone = plain(tokens[row : row + 1, place])[0]
            torch.testing.assert_close(trained[row, place], alone, rtol=0, atol=1e-5)
            torch.testing.assert_close(evaluated[row, place], alone, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_compiled_layers_isolate_too_and_compile_once() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    lm, plain = model("causal"), model("causal")
    compile_layers(lm)
    n_graphs = []
    for roll in (0, 7, 12):  # other boundaries are another mask, not another program
        tokens = packed().roll(roll, 1)
        positions = document_positions(tokens, END)
        attend = isolated_attention(positions, "causal")
        found = lm(tokens, tokens, positions=positions, attend=attend)
        found.backward()
        exact = plain(tokens, tokens, positions=positions, attend=attend)
        exact.backward()
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-5)
        n_graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert len(set(n_graphs)) == 1
    for one, two in zip(lm.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-5)
