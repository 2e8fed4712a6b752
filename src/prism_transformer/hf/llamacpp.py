"""Export to llama.cpp: a GGUF file that a stock build runs.

llama.cpp has an architecture, ``deci``, that is Llama with a head count for every layer, but with
one head width. So every head is padded with zeros to one width: a channel pair for each rotary
frequency that any width has, which the file lists in ``rope_freqs``. A pair of zeros adds nothing
to a score, whatever it is turned by, and nothing to a value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import torch
from torch import Tensor

from prism_transformer.core.disk import check_new, writing
from prism_transformer.core.errors import InputError
from prism_transformer.data.tokenizer import GPT2_PATTERN
from prism_transformer.hf.as_llama import refuse
from prism_transformer.hf.export import open_export
from prism_transformer.hf.load import Source
from prism_transformer.hf.modeling_prism import PrismForCausalLM

GgufType = Literal["f32", "f16", "q8_0"]

SAME_FREQUENCY = 1e-6  # relative; float32 gives one frequency in several roundings
ROPE_BASE = 1.0  # angles are then position / factor, without llama.cpp's rounded powers

NEVER = "<|never|>"

LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class Padding:
    """What one head width for all layers costs."""

    width: int
    """of every head in the file"""
    parameters: float
    """in the file, as a multiple of the model's own"""
    cache: float
    """bytes of the KV cache, likewise"""
    tiled_width: int
    """what ``width`` would be with tiled frequencies, which widths have in common"""


class Pairs(NamedTuple):
    """Where the channel pairs of one head width go."""

    slots: list[int]
    """of each pair in a padded head"""
    scale: float
    """of the rotary table"""


def export_gguf(
    source: Source,
    out: Path | str,
    *,
    kind: GgufType = "f32",
    tokenizer: str | None = None,
    seed: int | None = None,
) -> Padding:
    """Write a model as a new GGUF file, its matrices as ``kind``; ``source`` is ``export``'s."""
    out = Path(out)
    check_new(out)
    opened = open_export(source, tokenizer, seed)
    return write_gguf(opened.model, opened.tokenizer, out, kind)


def write_gguf(model: PrismForCausalLM, tokenizer: Any, file: Path, kind: GgufType) -> Padding:
    """Write weights and tokenizer as one new file."""
    _check_form(model, tokenizer)
    gguf = _library()
    factors, pairs = rotary_slots(model)
    padding = padding_cost(model, 2 * len(factors))
    partial = file.with_name(f".{file.name}.partial-{uuid4().hex[:8]}")
    try:
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            writer = gguf.GGUFWriter(partial, "deci")
            _write_config(writer, model, padding.width, kind)
            _write_tokenizer(writer, tokenizer, model.config)
            for name, weight in _tensors(model, factors, pairs):
                _add(writer, name, weight, kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return padding


def padding_cost(model: PrismForCausalLM, width: int) -> Padding:
    """What it costs to pad every head to a width."""
    native = model.config.native
    heads, own = native.schedule.heads, model.num_parameters()
    # Queries and output for each head, keys and values for each that they share.
    matrices = [2 * n + 2 * (n // native.queries_per_kv) for n in heads]
    now = native.n_layers * native.d_model * (2 * native.d_model + 2 * native.d_kv)
    padded = sum(matrices) * native.d_model * width
    cache = sum(n // native.queries_per_kv for n in heads) * width / (native.n_layers * native.d_kv)
    # Each frequency of the base width as often as the widest head repeats it.
    tiled = -(-max(native.head_dims) // native.base_width) * native.base_width
    return Padding(width, (own - now + padded) / own, cache, tiled)


def rotary_slots(model: PrismForCausalLM) -> tuple[Tensor, dict[int, Pairs]]:
    """llama.cpp's divisors of a position, one for each pair of a padded head; and who has which.

    A frequency that some head has twice (``tiled`` ones are) has two pairs.
    """
    union: list[float] = []
    pairs = {}
    for width, (frequencies, scale) in model.model.rotary_frequencies(None).items():
        slots: list[int] = []
        for frequency in frequencies.tolist():
            same = (
                slot
                for slot, each in enumerate(union)
                if slot not in slots and abs(each - frequency) <= SAME_FREQUENCY * frequency
            )
            slot = next(same, len(union))
            if slot == len(union):
                union.append(frequency)
            slots.append(slot)
        pairs[width] = Pairs(slots, float(scale))
    return 1.0 / torch.tensor(union, dtype=torch.float64), pairs


def pad_heads(weight: Tensor, slots: list[int], n_slots: int) -> Tensor:
    """Rows (H x K, D) of rotated heads as (H x 2 n_slots, D): pairs side by side, in their slots.

    Ours are (i, i + K/2), llama.cpp's (2i, 2i + 1).
    """
    halves = weight.unflatten(0, (-1, 2, len(slots)))  # (H, 2, K/2, D)
    padded = weight.new_zeros(len(halves), n_slots, 2, weight.shape[1])
    padded[:, slots] = halves.transpose(1, 2)
    return padded.flatten(0, 2)


def _tensors(
    model: PrismForCausalLM, factors: Tensor, pairs: dict[int, Pairs]
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor under llama.cpp's name."""
    weights, config = model.state_dict(), model.config
    yield "rope_freqs.weight", factors.float()
    yield "token_embd.weight", weights["model.embed_tokens.weight"][: config.num_tokens]
    yield "output_norm.weight", weights["model.norm.weight"]
    if not config.tie_word_embeddings:
        yield "output.weight", weights["lm_head.weight"][: config.num_tokens]
    for layer, width in enumerate(config.native.head_dims):
        prefix = f"model.layers.{layer}."
        for theirs, ours in LAYER_TENSORS.items():
            yield f"blk.{layer}.{theirs}.weight", weights[f"{prefix}{ours}.weight"]
        slots, scale = pairs[width]
        own = {each: weights[f"{prefix}self_attn.{each}_proj.weight"].float() for each in "qkvo"}
        # The padded width would be what llama.cpp scales scores by, and it scales no rotary table.
        n_slots, base = len(factors), config.native.base_width
        own["q"] = own["q"] * (2 * n_slots / width) ** 0.5 * scale**2
        if config.attention_scale == "base":
            own["q"] = own["q"] * (base / width) ** 0.5
        missing = 2 * n_slots - width
        values = own["v"].unflatten(0, (-1, width))
        out = own["o"].unflatten(1, (-1, width))
        yield f"blk.{layer}.attn_q.weight", pad_heads(own["q"], slots, n_slots)
        yield f"blk.{layer}.attn_k.weight", pad_heads(own["k"], slots, n_slots)
        # Values are not turned: their padding is at the end, and the output takes none of it.
        pad = torch.nn.functional.pad
        yield f"blk.{layer}.attn_v.weight", pad(values, (0, 0, 0, missing)).flatten(0, 1)
        yield f"blk.{layer}.attn_output.weight", pad(out, (0, missing)).flatten(1)


def _add(writer: Any, name: str, weight: Tensor, kind: GgufType) -> None:
    """Hand one tensor over, in the type of the file where it is a matrix that can have it."""
    import gguf

    data = weight.detach().float().contiguous().numpy()
    types = gguf.GGMLQuantizationType
    wanted = {"f32": types.F32, "f16": types.F16, "q8_0": types.Q8_0}[kind]
    if data.ndim == 1:  # norms and frequencies: small, and llama.cpp wants them so
        wanted = types.F32
    elif wanted == types.Q8_0 and data.shape[1] % gguf.GGML_QUANT_SIZES[types.Q8_0][0]:
        wanted = types.F16
    writer.add_tensor(name, gguf.quants.quantize(data, wanted), raw_dtype=wanted)


def _write_config(writer: Any, model: PrismForCausalLM, width: int, kind: GgufType) -> None:
    import gguf

    config = model.config
    layers = config.layer_fields()
    types = gguf.LlamaFileType
    writer.add_file_type(
        {"f32": types.ALL_F32, "f16": types.MOSTLY_F16, "q8_0": types.MOSTLY_Q8_0}[kind]
    )
    writer.add_name(f"Prism {config.head_schedule}")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(len(layers))
    writer.add_feed_forward_length([config.intermediate_size] * len(layers))
    writer.add_head_count([layer["num_attention_heads"] for layer in layers])
    writer.add_head_count_kv([layer["num_key_value_heads"] for layer in layers])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.num_tokens or config.vocab_size)


def _write_tokenizer(writer: Any, tokenizer: Any, config: Any) -> None:
    """Byte-level BPE as llama.cpp has it, of GPT-2's kind."""
    import gguf

    vocabulary = {index: token for token, index in tokenizer.get_vocab().items()}
    special = set(tokenizer.all_special_ids)
    tokens, types = [], []
    for index in range(config.num_tokens or config.vocab_size):
        tokens.append(vocabulary.get(index, f"<|unused{index}|>"))
        unused = tokens[-1] == f"<|unused{index}|>"
        kind = gguf.TokenType.UNUSED if unused else gguf.TokenType.NORMAL
        types.append(gguf.TokenType.CONTROL if index in special else kind)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    # llama.cpp wants at least one merge, which bytes have not: this one no text comes to.
    pairs = [each if isinstance(each, str) else " ".join(each) for each in merges]
    writer.add_token_merges(pairs or [f"{NEVER} {NEVER}"])
    for add, index in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_eos_token_id, tokenizer.eos_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if index is not None:
            add(index)
    writer.add_add_bos_token(False)


def _check_form(model: PrismForCausalLM, tokenizer: Any) -> None:
    """Refuse, by name, what a GGUF file of this architecture cannot hold."""
    config = model.config
    if tokenizer is None:
        raise InputError("a GGUF file holds its tokenizer: give one with --tokenizer")
    problems = {
        f"attention = {config.attention!r}": config.attention != "causal",
        f"norm = {config.norm!r}": config.norm != "rmsnorm",
        "rope_frequencies = 'split', which differ from head to head": (
            config.rope_frequencies == "split"
        ),
        "a tokenizer other than GPT-2's kind of byte-level BPE": not _is_gpt2s_kind(tokenizer),
    }
    refuse(problems, "llama.cpp cannot have {}")


def _is_gpt2s_kind(tokenizer: Any) -> bool:
    """Whether text is cut by GPT-2's pattern and merged from bytes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    described = json.loads(backend.to_str())
    before = described["pre_tokenizer"] or {}
    steps = before.get("pretokenizers", [before])
    cut = [each for each in steps if each.get("type") == "Split"]
    levels = [each for each in steps if each.get("type") == "ByteLevel"]
    return (
        described["model"]["type"] == "BPE"
        and described["normalizer"] is None
        and len(levels) == 1
        and len(cut) + len(levels) == len(steps)
        and not levels[0]["add_prefix_space"]
        and levels[0]["use_regex"] != bool(cut)
        and all(each["pattern"].get("Regex") == GPT2_PATTERN for each in cut)
    )


def _library() -> Any:
    try:
        import gguf
    except ImportError:
        raise InputError("GGUF files need gguf: pip install 'prism-transformer[gguf]'") from None
    return gguf
