"""``prism prepare``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prism_transformer.cli.output import Json, Whole, print_json
from prism_transformer.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from prism_transformer.data.corpora import Corpus
    from prism_transformer.data.manifest import Manifest, Split
    from prism_transformer.data.tokenizer import Tokenizer
    from prism_transformer.recipe import Recipe

EMBEDDED = "sotu"
DEFAULT_VAL_TOKENS = 131_072
SHARD_TOKENS = 100_000_000


def prepare(
    corpus: str | None = None,
    /,
    *,
    recipe: str | None = None,
    out: Path | None = None,
    tokenizer: str | None = None,
    text_key: str = "text",
    val_tokens: Whole | None = None,
    train_tokens: Whole | None = None,
    shard_tokens: Whole = SHARD_TOKENS,
    ranks: Path | None = None,
    gigatoken: bool = True,
    verify: bool = False,
    as_json: Json = False,
) -> None:
    """Turn any text into token shards; run it again to go on after an interruption.

    Parameters
    ----------
    corpus
        sotu (embedded; the default), a path or glob of .txt, .jsonl, .jsonl.gz, .jsonl.zst or
        .parquet files, or hf:owner/dataset:config, streamed.
    recipe
        Take corpus, tokenizer, folder and amounts from this recipe instead.
    out
        Folder of the shards; data/ and the corpus' name when left out.
    tokenizer
        gpt2, bytes, or bpe:N, a BPE of N tokens trained on the corpus.
    text_key
        Field or column of the text.
    val_tokens
        Tokens to validate on, from whole documents at the start; FineWeb: 10485760.
    train_tokens
        Stop after the document that completes this many.
    shard_tokens
        Tokens a shard.
    ranks
        GPT-2's merges: a folder with vocab.bpe and encoder.json, or a .tiktoken file.
    gigatoken
        Use gigatoken where it is installed.
    verify
        Only check every shard in full.
    """
    from prism_transformer.terminal import make_console

    if recipe is None:
        name = corpus or EMBEDDED
        own = Path("data") / Path(name.replace(":", "-")).name.partition(".")[0].strip("*")
        held_out = DEFAULT_VAL_TOKENS if val_tokens is None else val_tokens
        words = tokenizer or "gpt2"
        order = _Order(name, words, out or own, held_out, train_tokens, train_tokens)
    elif any(given is not None for given in (corpus, tokenizer, val_tokens, train_tokens)):
        raise InputError(f"--recipe {recipe} says what to prepare; drop the rest, or the recipe")
    else:
        from prism_transformer.recipe_file import load_recipe

        order = _order(load_recipe(recipe), out)
    if verify:
        _verify(order.folder)
        return
    done = _prepare(make_console(), order, text_key, shard_tokens, ranks, gigatoken)
    if as_json:
        print_json(done.model_dump())
        return
    splits: tuple[Split, Split] = ("val", "train")
    for split in splits:
        shards, tokens = done.of(split), done.tokens(split)
        documents = sum(shard.documents for shard in shards)
        print(f"{split:<5}  {tokens:,} tokens, {documents:,} documents, {len(shards)} shards")
    if order.budget is not None and done.tokens("train") < order.budget:
        epochs = order.budget / done.tokens("train")
        print(f"{order.budget:,} training tokens are {epochs:.2f} epochs of this corpus")
    print(f"wrote {order.folder}")


@dataclass(frozen=True)
class _Order:
    """What to prepare, from the command line or from a recipe."""

    corpus: str
    tokenizer: str
    folder: Path
    val_tokens: int
    train_tokens: int | None
    """where to stop"""
    budget: int | None = None
    """what training will want"""


def _order(recipe: Recipe, out: Path | None = None) -> _Order:
    data = recipe.data
    # The hub has more than anybody wants; of what is here already, all is prepared.
    limit = recipe.train.tokens if data.corpus.startswith("hf:") else None
    return _Order(
        data.corpus,
        data.tokenizer,
        out or Path(data.folder),
        data.val_tokens,
        train_tokens=limit,
        budget=recipe.train.tokens,
    )


def prepare_embedded(console: Console, recipe: Recipe) -> None:
    """Prepare what a recipe trains on, if that is the embedded corpus and not done yet."""
    if recipe.data.corpus == EMBEDDED:
        prepare_recipe(console, recipe)


def prepare_recipe(console: Console, recipe: Recipe) -> None:
    """Prepare what a recipe trains on, if that is not done yet.

    A folder with shards of other software has no manifest, and is complete as it is.
    """
    from prism_transformer.data.manifest import read_manifest

    order = _order(recipe)
    manifest = read_manifest(order.folder) if order.folder.is_dir() else None
    foreign = manifest is None and any(order.folder.glob("*.bin"))
    if not foreign and (manifest is None or not manifest.complete):
        _prepare(console, order)


def _prepare(
    console: Console,
    order: _Order,
    text_key: str = "text",
    shard_tokens: int = SHARD_TOKENS,
    ranks: Path | None = None,
    gigatoken: bool = True,
) -> Manifest:
    from prism_transformer.data.corpora import open_corpus
    from prism_transformer.folders import locked

    source = open_corpus(order.corpus, text_key)
    with locked(order.folder):
        words = _tokenizer(order.tokenizer, source, order.folder, ranks, gigatoken)
        manifest = _manifest(order, source, words, shard_tokens)
        return _run(console, source, words, manifest, order.folder)


def _tokenizer(
    name: str, source: Corpus, folder: Path, ranks: Path | None, gigatoken: bool
) -> Tokenizer:
    from prism_transformer.data import tokenizer as tokenizers
    from prism_transformer.data.manifest import read_manifest

    file = folder / tokenizers.BPE_FILE
    begun = file.exists() and read_manifest(folder) is not None  # else it may be another's
    if name not in ("gpt2", "bytes") and not begun:
        size = tokenizers.bpe_size(name)
        tokenizers.train_bpe((document.text for document in source.documents()), size, file)
    workers = os.cpu_count() or 1
    return tokenizers.open_tokenizer(name, folder, ranks, accelerate=gigatoken, workers=workers)


def _manifest(order: _Order, source: Corpus, words: Tokenizer, shard_tokens: int) -> Manifest:
    """A new manifest, or the one of an interrupted preparation of the very same."""
    from prism_transformer.data.manifest import Manifest, read_manifest

    new = Manifest(
        corpus=source.name,
        corpus_fingerprint=source.fingerprint(),
        tokenizer=words.name,
        tokenizer_fingerprint=words.fingerprint,
        vocab_size=words.vocab_size,
        end_of_text=words.end_of_text,
        shard_tokens=shard_tokens,
        val_tokens=order.val_tokens,
        train_tokens_wanted=order.train_tokens,
    )
    folder = order.folder
    old = read_manifest(folder)
    if old is None:
        return new
    progress = {"complete", "next_document", "next_token", "shards"}
    wanted, had = (each.model_dump(exclude=progress) for each in (new, old))
    for key, value in wanted.items():
        if had[key] != value:
            raise InputError(
                f"{folder}: was begun with {key} = {had[key]!r}, now it is {value!r}; "
                "give another --out, or what it was begun with"
            )
    return old


def _run(
    console: Console, source: Corpus, words: Tokenizer, manifest: Manifest, folder: Path
) -> Manifest:
    from prism_transformer.data.prepare import prepare as write_shards
    from prism_transformer.terminal import byte_progress

    for leftover in folder.glob("*.partial"):
        leftover.unlink()
    done_before = sum(shard.text_bytes for shard in manifest.shards)
    if manifest.complete:
        print(f"{folder}: is complete")
    elif done_before:
        print(f"{folder}: goes on after {done_before / 1e6:.1f} MB of text")
    with byte_progress(console, "preparing", source.n_bytes, done_before) as report:
        return write_shards(source, words, manifest, folder, report)


def _verify(folder: Path) -> None:
    from prism_transformer.data.manifest import read_manifest
    from prism_transformer.data.prepare import verify
    from prism_transformer.terminal import count_up, make_console

    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(f"{folder}: has no manifest, so there is nothing to hold shards against")
    names = count_up(make_console(), "verifying", verify(manifest, folder), len(manifest.shards))
    print(f"{folder}: {len(list(names))} shards are sound")
