from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as tf
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from prism_transformer.core.errors import InputError
from prism_transformer.data.tokenizer import ByteTokenizer
from prism_transformer.hf import PrismConfig, PrismForCausalLM, PrismForMaskedLM, PrismModel
from prism_transformer.hf.export import Opened, export, to_hf, to_hf_tokenizer, write_hf
from prism_transformer.hf.generate import generate
from prism_transformer.hf.importing import to_native
from prism_transformer.hf.load import read_any
from prism_transformer.model import PrismLM
from tests.conftest import small_config

MASK = 257


def encoder(schedule: str = "2x1 3x1 6x1", **changes: object) -> PrismLM:
    """With weights large enough to attend to something."""
    shape = {"attention": "bidirectional", "vocab_size": MASK + 1, **changes}
    model = PrismLM(small_config(schedule, **shape)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.dim() > 1 else 1)
    return model


def some_tokens(length: int = 30, count: int = 2) -> Tensor:
    return torch.randint(MASK, (count, length), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = to_hf(encoder())
    words = to_hf_tokenizer(ByteTokenizer(), 64, MASK)
    write_hf(Opened(model, words), tmp_path / "encoder")
    return tmp_path / "encoder"


class LlamaEncoder(nn.Module):
    """transformers' own layers in a stack without a causal mask: nothing of ours."""

    def __init__(self, ours: PrismForMaskedLM) -> None:
        super().__init__()
        shape = ours.config
        config = tf.LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_attention_heads=shape.num_attention_heads,
            num_hidden_layers=shape.num_hidden_layers,
            rms_norm_eps=shape.rms_norm_eps,
            attn_implementation="eager",
        )
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        n_layers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, index) for index in n_layers)
        self.norm = tf.models.llama.modeling_llama.LlamaRMSNorm(shape.hidden_size, 1e-5)
        self.rotary = LlamaRotaryEmbedding(config)
        weights = {k: v for k, v in ours.model.state_dict().items() if "head_schedule" not in k}
        rest = self.load_state_dict(weights, strict=False)
        assert not rest.unexpected_keys
        assert all(name.startswith("rotary") for name in rest.missing_keys)

    def forward(self, tokens: Tensor) -> Tensor:
        x, places = self.embed_tokens(tokens), torch.arange(tokens.shape[1])[None]
        nothing_hidden = torch.zeros(1, 1, tokens.shape[1], tokens.shape[1])
        for layer in self.layers:
            x = layer(
                x,
                attention_mask=nothing_hidden,
                position_embeddings=self.rotary(x, places),
                position_ids=places,
            )
            x = x[0] if isinstance(x, tuple) else x
        return self.norm(x) @ self.embed_tokens.weight.T


@torch.no_grad()
def test_a_uniform_encoder_equals_llama_layers_without_their_mask() -> None:
    native = encoder("6x3", h_base=6)
    ours, tokens = to_hf(native), some_tokens()
    theirs = LlamaEncoder(ours).eval()(tokens)
    torch.testing.assert_close(ours(tokens).logits, theirs, rtol=0, atol=1e-5 * theirs.std().item())
    torch.testing.assert_close(native(tokens), theirs, rtol=0, atol=1e-5 * theirs.std().item())
    causal = PrismLM(native.config.model_copy(update={"attention": "causal"}))
    causal.load_state_dict(native.state_dict())
    assert (causal(tokens) - theirs).abs().max() > 0.1


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("queries_per_kv", [1, 2])
def test_the_export_is_the_native_model(implementation: str, queries_per_kv: int) -> None:
    native, tokens = encoder("2x1 6x1 12x1", queries_per_kv=queries_per_kv), some_tokens()
    wrapped = to_hf(native)
    wrapped.set_attn_implementation(implementation)
    found = wrapped(tokens, output_attentions=implementation == "eager")
    torch.testing.assert_close(found.logits, native(tokens), rtol=0, atol=2e-4)
    if implementation == "eager":
        assert all((each > 0).all() for each in found.attentions)  # also on what follows
    again = to_native(wrapped)
    assert again.config == native.config
    torch.testing.assert_close(again(tokens), native(tokens), rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(side: str) -> None:
    model, tokens = to_hf(encoder()), some_tokens(20, 1)
    filler = torch.full((1, 9), 7)
    parts = (filler, tokens) if side == "left" else (tokens, filler)
    padded = torch.cat(parts, 1)
    seen = torch.cat([torch.full_like(part, part is tokens) for part in parts], 1)
    here = slice(9, None) if side == "left" else slice(20)
    alone = model(tokens)
    among = model(padded, attention_mask=seen)
    torch.testing.assert_close(among.logits[:, here], alone.logits, rtol=0, atol=2e-4)
    base: PrismModel = model.model
    states = base(padded, attention_mask=seen).last_hidden_state[:, here]
    torch.testing.assert_close(states, base(tokens).last_hidden_state, rtol=0, atol=2e-4)


@torch.no_grad()
def test_the_loss_is_where_labels_are() -> None:
    model, tokens = to_hf(encoder()), some_tokens()
    labels = torch.full_like(tokens, -100)
    labels[:, 3], labels[0, 11] = tokens[:, 3], 5
    found = model(tokens, labels=labels)
    chances = found.logits.log_softmax(-1)
    plain = [-chances[b, t, labels[b, t]] for b, t in (labels >= 0).nonzero().tolist()]
    assert found.loss.item() == pytest.approx(torch.stack(plain).mean().item(), rel=1e-5)


def test_a_folder_fills_masks(folder: Path) -> None:
    assert isinstance(tf.AutoModelForMaskedLM.from_pretrained(folder), PrismForMaskedLM)
    assert isinstance(read_any(str(folder)), PrismForMaskedLM)
    fill = tf.pipeline("fill-mask", str(folder))
    model, words = fill.model, fill.tokenizer
    text = f"a {words.mask_token} c"
    ids = torch.tensor([words.encode(text)])
    assert ids[0].tolist() == [97, 32, MASK, 32, 99]
    with torch.no_grad():
        chances = model(ids).logits[0, 2].softmax(-1)
    best = fill(text, top_k=3)
    assert [each["token"] for each in best] == chances.topk(3).indices.tolist()
    assert [e["score"] for e in best] == pytest.approx(chances.topk(3).values.tolist(), rel=1e-4)
    assert "pipeline_tag: fill-mask" in (folder / "README.md").read_text("utf-8")


def test_an_encoder_does_not_generate(folder: Path) -> None:
    config = PrismConfig.from_native(encoder().config)
    with pytest.raises(ValueError, match="is a PrismForMaskedLM"):
        PrismForCausalLM(config)
    with pytest.raises(ValueError, match="this one is a PrismForCausalLM"):
        PrismForMaskedLM(PrismConfig())
    with pytest.raises(InputError, match="fills gaps, it does not generate"):
        generate(str(folder), "a")
    with pytest.raises(InputError, match=r"a Llama cannot have .*attention = 'bidirectional'"):
        export(folder, folder.with_name("llama"), form="llama")
