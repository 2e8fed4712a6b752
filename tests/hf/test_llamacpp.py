"""GGUF files in a stock build of llama.cpp, against our own model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from prism_transformer.core.errors import InputError
from prism_transformer.hf.export import open_export
from prism_transformer.hf.generate import generate
from prism_transformer.hf.llamacpp import (
    GgufType,
    export_gguf,
    pad_heads,
    padding_cost,
    rotary_slots,
    write_gguf,
)
from tests.hf.models import GROUPED, RAGGED, byte_level_tokenizer, prism

TEXT = "a head is a narrow view of the stream, and a stream is a wide view of the heads. " * 40
YARN = {
    "rope_theta": 10_000.0, "rope_type": "yarn", "factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


def server(file: Path) -> Any:
    xllamacpp = pytest.importorskip("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 128, 1, False, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    # Its flash attention rounds to half precision on a CPU; so does its cache unless told not to.
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(params)


def answer(llama: Any, prompt: Any, n_tokens: int, words: Any) -> Any:
    """Its completion, of whole characters: it reports nothing of bytes that are none yet."""
    asked = {"prompt": prompt, "n_predict": n_tokens, "temperature": 0, "n_probs": len(words)}
    bias = [[token, False] for token in range(len(words)) if token not in allowed(words)]
    return llama.handle_completions(asked | {"logit_bias": bias, "ignore_eos": True})


def allowed(words: Any) -> list[int]:
    texts = [(token, words.decode([token])) for token in range(len(words))]
    special = set(words.all_special_ids)
    return [token for token, text in texts if text.isascii() and token not in special]


def log_probs(model: Any, tokens: list[int], n: int) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, :, :n].log_softmax(-1)


@pytest.fixture(scope="module")
def words() -> Any:
    return byte_level_tokenizer(TEXT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        RAGGED,
        GROUPED,
        {"head_schedule": "12x3"},
        {"head_schedule": "2x1 12x2", "rope_frequencies": "tiled"},
        {"head_schedule": "2x1 12x2", "attention_scale": "base", "tie_word_embeddings": False},
        {"head_schedule": "2x1 12x2", "rope_parameters": YARN},
    ],
    ids=["ragged", "gqa", "uniform", "tiled", "scale-untied", "yarn"],
)
def test_log_probabilities_and_greedy_tokens_are_ours(
    fields: dict[str, Any], words: Any, tmp_path: Path
) -> None:
    n = len(words)
    model = prism(**fields, vocab_size=384, num_tokens=n)
    write_gguf(model, words, tmp_path / "model.gguf", "f32")
    llama = server(tmp_path / "model.gguf")
    text = "a head is a view of the heads, isn't it? 12 of 345\n\n  yes"
    prompt = words(text)["input_ids"]
    for asked in (prompt, text):  # the second through its own tokenizer
        found = answer(llama, asked, 12, words)
        assert found["usage"]["prompt_tokens"] == len(prompt)
        rows = found["choices"][0]["logprobs"]["content"]
        tokens = [row["id"] for row in rows]
        ours = log_probs(model, prompt + tokens, n)[len(prompt) - 1 : -1]
        best = ours[:, allowed(words)].argmax(-1).tolist()
        assert tokens == [allowed(words)[each] for each in best]
        for row, own in zip(rows, ours, strict=True):
            theirs = torch.empty(n)
            for each in row["top_logprobs"]:
                theirs[each["id"]] = each["logprob"]
            torch.testing.assert_close(theirs, own, rtol=0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tolerance"), [("f16", 1e-3), ("q8_0", 1e-2)])
def test_perplexity_of_smaller_types(
    kind: GgufType, tolerance: float, words: Any, tmp_path: Path
) -> None:
    n = len(words)
    model = prism(**RAGGED, vocab_size=384, num_tokens=n)
    write_gguf(model, words, tmp_path / "model.gguf", kind)
    llama = server(tmp_path / "model.gguf")
    tokens = torch.randint(1, n, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    own = log_probs(model, tokens, n)
    theirs = []
    for end in range(1, len(tokens)):
        rows = answer(llama, tokens[:end], 1, words)["choices"][0]["logprobs"]["content"]
        theirs.append(
            next(each["logprob"] for each in rows[0]["top_logprobs"] if each["id"] == tokens[end])
        )
    ours = own[:-1].gather(1, torch.tensor(tokens[1:])[:, None]).mean()
    # A difference of the mean is a ratio of perplexities.
    assert torch.tensor(theirs).mean().item() == pytest.approx(ours.item(), abs=tolerance)


@pytest.mark.slow
def test_a_run_answers_as_prism_generate(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.gguf"
    export_gguf(trained, file)
    prompt = "a head"
    expected = generate(trained, prompt, tokens=20, temperature=0.0).text
    asked = {"prompt": prompt, "n_predict": 20, "temperature": 0, "ignore_eos": True}
    found = server(file).handle_completions(asked)["choices"][0]["text"]
    assert prompt + found == expected
    assert len(found) > 5


@pytest.mark.slow
def test_a_model_that_ships_answers_as_prism_generate(tmp_path: Path) -> None:
    export_gguf("nano", tmp_path / "nano.gguf")
    llama = server(tmp_path / "nano.gguf")
    for prompt in ("My fellow citizens", "The war", "In the last year"):
        expected = generate("nano", prompt, tokens=48, temperature=0.0).text
        asked = {"prompt": prompt, "n_predict": 48, "temperature": 0}
        found = llama.handle_completions(asked)["choices"][0]["text"]
        assert prompt + found == expected


def test_one_width_holds_every_frequency_once() -> None:
    model = prism(head_schedule="2x1 3x1 12x1")  # widths 48, 32, 8
    factors, pairs = rotary_slots(model)
    # i/24, i/16 and i/4 as fractions: 24 + 16 less the 8 that both have; the last are among them.
    assert len(factors) == 32
    for width, (slots, scale) in pairs.items():
        own = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        torch.testing.assert_close(1 / factors[slots], own, rtol=1e-6, atol=0)
        assert (len(set(slots)), scale) == (width // 2, 1.0)


def test_padding_keeps_every_score() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3 * 8, 5, generator=draw, dtype=torch.float64)
    slots = [6, 0, 3, 2]
    padded = [pad_heads(each, slots, 7).unflatten(0, (3, 7, 2)) for each in (q, k)]
    plain = [each.unflatten(0, (3, 2, 4)) for each in (q, k)]
    scores = torch.einsum("hpcd,hpce->hde", *padded)
    torch.testing.assert_close(scores, torch.einsum("hcpd,hcpe->hde", *plain))
    assert (padded[0][:, [1, 4, 5]] == 0).all()
    assert torch.equal(padded[0][:, 3], plain[0][:, :, 2])  # the third pair, side by side


def test_the_papers_small_model_costs_what_was_estimated() -> None:
    model = open_export("prism-small").model
    padding = padding_cost(model, 2 * len(rotary_slots(model)[0]))
    assert padding.width == 320
    assert padding.parameters == pytest.approx(1.61, abs=0.01)
    assert padding.cache == pytest.approx(3.68, abs=0.01)


def test_a_uniform_model_is_not_padded(words: Any, tmp_path: Path) -> None:
    model = prism(head_schedule="12x3", vocab_size=384, num_tokens=len(words))
    padding = write_gguf(model, words, tmp_path / "model.gguf", "q8_0")
    assert (padding.width, padding.parameters, padding.cache) == (8, 1.0, 1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"norm": "layernorm"}, "norm = 'layernorm'"),
        ({"rope_frequencies": "split"}, "rope_frequencies = 'split'"),
    ],
    ids=["layernorm", "split"],
)
def test_what_llamacpp_has_not_is_refused_by_name(
    fields: dict[str, Any], problem: str, words: Any, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=problem):
        write_gguf(prism(head_schedule="12x3", **fields), words, tmp_path / "model.gguf", "f32")
    assert not any(tmp_path.iterdir())


def test_a_tokenizer_is_needed_and_must_be_of_a_kind(words: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give one with --tokenizer"):
        write_gguf(prism(**RAGGED), None, tmp_path / "model.gguf", "f32")
    words.save_pretrained(tmp_path / "words")
    other = AutoTokenizer.from_pretrained(tmp_path / "words")
    from tokenizers import pre_tokenizers

    other.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    with pytest.raises(InputError, match="a tokenizer other than GPT-2's kind"):
        write_gguf(prism(**RAGGED), other, tmp_path / "model.gguf", "f32")
