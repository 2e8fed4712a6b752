"""A recipe that trains on what was prepared: its tokenizer, vocabulary and validation slice.

Written once beside the shards, for ``prism train``; a file that is there is somebody's own by now.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from prism_transformer.core.disk import write_whole, writing
from prism_transformer.core.errors import InputError
from prism_transformer.data.shards import Manifest
from prism_transformer.recipes.files import load_recipe


def fitting(folder: Path, manifest: Manifest, like: str) -> dict[str, Any]:
    """The recipe as tables: what the model of ``like`` needs to be trained on these shards."""
    seq_len = load_recipe(like).model.seq_len
    return {
        "base": str(Path(like).resolve()) if Path(like).is_file() else like,
        "model": {"vocab_size": manifest.vocab_size},
        "data": {
            "corpus": manifest.corpus,
            "tokenizer": manifest.tokenizer,
            "folder": str(folder),
            # Of a slice that was cut for other contexts, as many whole windows as it has.
            "val_tokens": manifest.val_tokens // seq_len * seq_len,
        },
    }


def write_fitting(folder: Path, manifest: Manifest, like: str) -> Path | None:
    """Write it beside the shards unless it is there; None where there is nothing to validate on."""
    tables = fitting(folder, manifest, like)
    if not tables["data"]["val_tokens"]:
        return None
    seq_len = load_recipe(like).model.seq_len
    for split in ("val", "train"):
        if manifest.tokens(split) <= seq_len:
            raise InputError(
                f"{manifest.corpus}: leaves {manifest.tokens(split):,} tokens for {split}, less "
                f"than one window of {seq_len} + 1; give more text"
            )
    file = folder / f"{folder.absolute().name}.toml"
    if not file.exists():
        head = f"# trains on what `prism prepare` made of {manifest.corpus!r}: prism train {file}"
        with writing(file):
            write_whole(file, f"{head.splitlines()[0]}\n{tomli_w.dumps(tables)}")
    return file
