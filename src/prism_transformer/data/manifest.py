"""The manifest of a prepared corpus, which is also the journal of its preparation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from prism_transformer.errors import InputError
from prism_transformer.folders import write_whole

MANIFEST_FILE = "manifest.json"

Split = Literal["val", "train"]


class ShardEntry(BaseModel):
    """One shard, as it was written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    split: Split
    tokens: int
    documents: int  # that begin in it
    text_bytes: int  # UTF-8 bytes of those documents
    sha256: str


class Manifest(BaseModel):
    """What was prepared, from what, and how far it got."""

    model_config = ConfigDict(extra="forbid")

    corpus: str
    corpus_fingerprint: str
    tokenizer: str
    tokenizer_fingerprint: str
    vocab_size: int
    end_of_text: int
    shard_tokens: int
    val_tokens: int  # scored; the validation shard has at least one more
    train_tokens_wanted: int | None
    complete: bool = False
    # Where to go on: the document that the next token comes from, and how many of its tokens are
    # written already.
    next_document: tuple[int, int] = (0, 0)
    next_token: int = 0
    shards: list[ShardEntry] = []

    def of(self, split: Split) -> list[ShardEntry]:
        """The shards of one split, in order."""
        return [shard for shard in self.shards if shard.split == split]

    def tokens(self, split: Split) -> int:
        """How many tokens a split has."""
        return sum(shard.tokens for shard in self.of(split))

    def save(self, folder: Path) -> None:
        """Write it whole or not at all."""
        write_whole(folder / MANIFEST_FILE, self.model_dump_json(indent=2) + "\n")


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder, if it has one."""
    file = folder / MANIFEST_FILE
    if not file.exists():
        return None
    try:
        return Manifest.model_validate(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise InputError(f"{file}: is damaged: {str(error).splitlines()[0]}") from None
