"""Our tokenizers as Hugging Face ones, token for token."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from prism_transformer.data.tokenizer import (
    GPT2_PATTERN,
    BpeTokenizer,
    Gpt2Tokenizer,
    Tokenizer,
    byte_characters,
)

END_OF_TEXT = "<|endoftext|>"


def to_hf_tokenizer(tokenizer: Tokenizer, seq_len: int) -> Any:
    """A fast tokenizer that gives the same tokens; only there does the end of text have a name."""
    vocabulary, merges = _vocabulary(tokenizer)
    for spare in range(len(vocabulary), tokenizer.end_of_text):  # ids that no text becomes
        vocabulary[f"<|unused{spare}|>"] = spare
    vocabulary[END_OF_TEXT] = tokenizer.end_of_text
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GPT2_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        model_max_length=seq_len,
        clean_up_tokenization_spaces=False,
    )


def _vocabulary(tokenizer: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Tokens by their spelling, and the pairs that merge, first things first."""
    if isinstance(tokenizer, BpeTokenizer):
        model = json.loads(tokenizer.bpe.to_str())["model"]
        return dict(model["vocab"]), [(left, right) for left, right in model["merges"]]
    if isinstance(tokenizer, Gpt2Tokenizer):
        ranks = tokenizer.encoding._mergeable_ranks
        pairs = [_merge(token, ranks) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
        vocabulary = {_spelled(token): rank for token, rank in ranks.items()}
        return vocabulary, [(_spelled(left), _spelled(right)) for left, right in pairs]
    return {character: byte for byte, character in enumerate(byte_characters())}, []


def _spelled(token: bytes) -> str:
    characters = byte_characters()
    return "".join(characters[byte] for byte in token)


def _merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens that become this one: what is left of it when only earlier merges are done."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        rank, place = min(
            (ranks.get(parts[i] + parts[i + 1], ranks[token]), i) for i in range(len(parts) - 1)
        )
        assert rank < ranks[token]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts[0], parts[1]
