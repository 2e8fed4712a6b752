"""A preparation shared out over tasks, on datatrove's executors: processes here, or Slurm's.

The corpus is cut into pieces, a function of its files alone; each piece is one of datatrove's
ranks. Tasks encode pieces, then cut what they made into shards (``assembly.py``). So what comes
out does not depend on how many tasks there are, who finished first, or who died on the way: a piece
is whole or not there, and a task that comes again does only what is missing.

tasks/ (in the folder of the shards, until they are complete)
  order.json    what is prepared, and how: all that a task needs to know
  dedup-0/      signatures of documents, and those that are double
  pieces/       encoded pieces
  shards.json   where shards begin and end; shards/ what was written of them
  logs/         datatrove's own: completions, statistics, a log of each rank
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

from datatrove.data import Document as Passed
from datatrove.pipeline import filters as filtering
from datatrove.pipeline.base import PipelineStep
from pydantic import BaseModel, ConfigDict

from prism_transformer.core.disk import write_whole, writing
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Advance, Tell, silent
from prism_transformer.core.sealed import read_sealed, typed, write_sealed
from prism_transformer.data import tokenizer as tokenizers
from prism_transformer.data.assembly import Cut, Pieces, Plan, enough, plan_shards, write_cut
from prism_transformer.data.corpora import Corpus, Document, Piece, open_corpus
from prism_transformer.data.dedup import Dedup, LeaveOut, Sign, read_dedups
from prism_transformer.data.executors import Executor, Stage, finished
from prism_transformer.data.pieces import (
    DOUBLE,
    LEFT_OUT,
    PieceFiles,
    PieceWriter,
    Skipped,
    facts_of,
    write_problem,
)
from prism_transformer.data.shards import Manifest, ShardEntry

WORK = "tasks"
BYTES_PER_TOKEN = 6  # at most, in a corpus of which only some is wanted


class TaskOrder(BaseModel):
    """What every task has to know."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: str | list[str]
    text_key: str
    skip_bad: bool
    where: list[str]
    commit: str | None
    fingerprint: str
    """of the corpus: a task that finds another one stops"""
    tokenizer: str
    ranks: Path | None
    gigatoken: bool
    filters: list[str]
    dedup: list[str]
    piece_bytes: int
    folder: Path
    """of the shards"""
    vocab_size: int
    home: str
    """where relative names begin"""

    def open_corpus(self) -> Corpus:
        os.chdir(self.home)
        how: dict[str, Any] = {"skip_bad": self.skip_bad, "where": self.where}
        corpus = open_corpus(self.corpus, self.text_key, commit=self.commit, **how)
        if corpus.fingerprint() != self.fingerprint:
            raise InputError(f"{corpus.name}: has changed since its preparation began")
        return corpus


@cache
def _opened(work: Path) -> tuple[TaskOrder, Corpus, tuple[Piece, ...]]:
    """The order and the corpus, once in a process."""
    order = TaskOrder.model_validate_json((work / "order.json").read_bytes())
    corpus = order.open_corpus()
    return order, corpus, tuple(corpus.pieces(order.piece_bytes))


@cache
def _tokenizer(work: Path) -> tokenizers.Tokenizer:
    order, _, _ = _opened(work)
    how: dict[str, Any] = {"accelerate": order.gigatoken, "workers": 0}  # a task is one process
    return tokenizers.open_tokenizer(order.tokenizer, order.folder, order.ranks, **how)


class ReadPiece(PipelineStep):
    """Documents of a piece, as datatrove passes them on."""

    name = "pieces of a corpus"
    type = "READER"

    def __init__(self, work: Path, first: int) -> None:
        super().__init__()
        self.work, self.first = work, first
        self.skipped: list[Skipped] = []
        self.count = 0

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Passed]:
        _, corpus, pieces = _opened(self.work)
        self.skipped, self.count = [], 0  # on Slurm one step runs several ranks
        for document in corpus.read(pieces[self.first + rank]):
            if document.problem is not None:
                self.skipped.append(Skipped(self.count, document.problem.cause))
                continue
            self.count += 1
            where = {"position": document.position, "number": self.count}
            yield Passed(document.text, str(document.position), metadata=where)


class Filter(PipelineStep):
    """One of datatrove's filters, made anew for each piece.

    What it has drawn or counted must not depend on which pieces a task had before.
    """

    name = "filters"
    type = "FILTER"

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Passed]:
        step = read_filter(self.text)
        self.stats = step.stats
        yield from step.run(data, rank, world_size)


class WritePiece(PipelineStep):
    """Encodes what is left of a piece when every filter has seen it."""

    name = "encoded pieces"
    type = "WRITER"

    def __init__(self, work: Path, reader: ReadPiece, leave_out: list[LeaveOut]) -> None:
        super().__init__()
        self.work, self.reader, self.leave_out = work, reader, leave_out

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Passed]:
        files = PieceFiles(self.work / "pieces", self.reader.first + rank)
        skipped: list[Skipped] = []
        try:
            if files.facts() is None:
                PieceWriter(files, _tokenizer(self.work)).write(self._kept(data, skipped), skipped)
        except InputError as error:
            write_problem(files, error)
            raise
        yield from ()

    def _kept(self, data: Iterator[Passed], skipped: list[Skipped]) -> Iterator[Document]:
        """Documents as they were read, and when all are through, records that are none."""
        numbers: list[int] = []  # of those kept, among all that were read
        for passed in data:
            numbers.append(passed.metadata["number"])
            yield Document(tuple(passed.metadata["position"]), passed.text)
        left_out = sorted(set(range(1, self.reader.count + 1)) - set(numbers))
        double = set().union(*(step.found for step in self.leave_out))
        skipped += [
            Skipped(bisect_right(numbers, each), DOUBLE if each in double else LEFT_OUT)
            for each in left_out
        ]
        skipped += [
            Skipped(bisect_right(numbers, each.behind), each.cause) for each in self.reader.skipped
        ]


class WriteShard(PipelineStep):
    """Cuts a shard out of the encoded pieces."""

    name = "shards"
    type = "WRITER"

    def __init__(self, work: Path) -> None:
        super().__init__()
        self.work = work

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Passed]:
        plan = json.loads((self.work / "shards.json").read_text("utf-8"))
        order = TaskOrder.model_validate_json((self.work / "order.json").read_bytes())
        pieces = Pieces(self.work / "pieces", facts_of(self.work / "pieces", plan["pieces"]))
        entry = write_cut(pieces, Cut(*plan["cuts"][rank]), order.folder, order.vocab_size)
        write_sealed(self.work / "shards" / f"{rank:06d}.json", entry.model_dump(mode="json"))
        yield from ()


def pipeline(work: Path, stage: str, first: int) -> list[PipelineStep]:
    """The steps of a stage."""
    if stage == "shards":
        return [WriteShard(work)]
    order = TaskOrder.model_validate_json((work / "order.json").read_bytes())
    reader = ReadPiece(work, first)
    steps: list[PipelineStep] = [reader, *map(Filter, order.filters)]
    leave_out: list[LeaveOut] = []
    for dedup in read_dedups(order.dedup, work):
        if stage == f"{dedup.name}-sign":
            return [*steps, *leave_out, Sign(dedup.signing(), work)]
        for finding in dedup.finding():
            if stage == f"{dedup.name}-{finding.name}":
                return [finding.make()]
        leave_out.append(LeaveOut(dedup.leaving_out(), first))
    return [*steps, *leave_out, WritePiece(work, reader, leave_out)]


def read_filter(text: str) -> PipelineStep:
    """One of datatrove's filters as it is written: ``GopherQualityFilter:min_doc_words=20``."""
    name, _, options = text.partition(":")
    known = [each for each in dir(filtering) if each.endswith("Filter") and each[0] != "B"]
    if name not in known:
        raise InputError(f"--filter {name!r}: is none of datatrove's: {', '.join(known)}")
    try:
        pairs = [each.split("=", 1) for each in options.split(",") if each]
        kind = getattr(filtering, name)
        if "seed" in signature(kind).parameters and "seed" not in dict(pairs):
            raise ValueError("without a seed it may keep others every time; add seed=0")
        return kind(**{key: _value(value) for key, value in pairs})
    except (TypeError, ValueError, ImportError) as error:
        raise InputError(f"--filter {text}: cannot be used: {error}") from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def write_by_tasks(
    order: TaskOrder, manifest: Manifest, executor: Executor, tell: Tell = silent
) -> None:
    """Write every shard, and note all in the manifest; what earlier tasks left is used."""
    if manifest.complete:
        return
    work = order.folder.resolve() / WORK
    for each in order.filters:
        read_filter(each)  # before anything is done
    dedups = read_dedups(order.dedup, work)
    _opened.cache_clear()  # another order may have had this folder
    _tokenizer.cache_clear()
    _take_up(work, order)
    manifest.save(order.folder)
    corpus = order.open_corpus()
    for dedup in dedups:
        _find_double(work, dedup, len(corpus.pieces(order.piece_bytes)), executor, tell)
    pieces = _encode(work, corpus, order, manifest, executor, tell)
    plan = plan_shards(pieces, manifest, corpus.n_bytes)
    _cut(work, plan, len(pieces.facts), manifest, executor, tell)
    piece, source, record = plan.last
    found = corpus.pieces(order.piece_bytes)[piece]
    source, record = corpus.position(found, (source, record))
    manifest.next_document = source, record + 1
    manifest.val_cut, manifest.skipped, manifest.complete = plan.val_cut, plan.skipped, True
    manifest.save(order.folder)
    shutil.rmtree(work, ignore_errors=True)


def _take_up(work: Path, order: TaskOrder) -> None:
    """Make the folder of the work, or go on in it; what was begun otherwise is of no use."""
    text = order.model_dump_json(indent=2)
    with writing(work):
        file = work / "order.json"
        if work.exists() and not (file.is_file() and file.read_bytes() == text.encode()):
            shutil.rmtree(work)
        # Tasks write by names that anybody knows: a link that was prepared would be followed.
        for path in work.rglob("*"):
            if path.is_symlink():
                raise InputError(
                    f"{path}: is a symbolic link, which is not followed to write; remove it"
                )
        for each in ("pieces", "shards"):
            (work / each).mkdir(parents=True, exist_ok=True)
        write_whole(file, text)
        for problem in (work / "pieces").glob("*.problem"):  # it may have been mended
            problem.unlink()


def _find_double(work: Path, dedup: Dedup, n_pieces: int, executor: Executor, tell: Tell) -> None:
    """Sign every piece, also those that nobody may want, and find what is double among all."""
    parts = [("sign", n_pieces), *((each.name, each.ranks) for each in dedup.finding())]
    for name, ranks in parts:
        stage = Stage(f"{dedup.name}-{name}", 0, ranks)

        def watch(stage: Stage = stage, name: str = name) -> int:
            done = len(finished(work, stage))
            tell(Advance(f"{dedup.kind}: {name}", done, stage.ranks, "parts"))
            return done

        executor.run(work, stage, lambda s: pipeline(work, s.name, s.first), watch)
        if missing := sorted(set(range(ranks)) - finished(work, stage)):
            raise InputError(_problem(work / "pieces", missing[0], executor))


def _encode(
    work: Path, corpus: Corpus, order: TaskOrder, manifest: Manifest, executor: Executor, tell: Tell
) -> Pieces:
    """Encode pieces until there are enough: all, where nobody wants less."""
    n_pieces, first = len(corpus.pieces(order.piece_bytes)), 0
    place = work / "pieces"
    wanted = manifest.train_tokens_wanted
    size = n_pieces
    if wanted is not None:
        tokens = wanted + manifest.val_tokens
        size = max(executor.n_tasks, tokens * BYTES_PER_TOKEN // order.piece_bytes + 1)
    while True:
        count = min(size, n_pieces - first)
        stage: Stage = Stage("pieces", first, count)

        def watch(stage: Stage = stage) -> int:
            done = sum(
                PieceFiles(place, stage.first + n).facts_file.exists() for n in range(stage.ranks)
            )
            tell(Advance("encoding", stage.first + done, n_pieces, "pieces"))
            return done

        if count:
            executor.run(work, stage, lambda s: pipeline(work, s.name, s.first), watch)
        pieces = Pieces(place, facts_of(place, first + count))
        first += count
        if enough(pieces, manifest) or (len(pieces.facts) == first == n_pieces):
            return pieces
        if len(pieces.facts) < first:
            raise InputError(_problem(place, len(pieces.facts), executor))
        size = executor.n_tasks


def _problem(place: Path, number: int, executor: Executor) -> str:
    """Why the first piece that is not there is not there."""
    found = PieceFiles(place, number).problem()
    return found or f"{place}: piece {number} was not made; {executor.where_to_look}"


def _cut(
    work: Path, plan: Plan, n_pieces: int, manifest: Manifest, executor: Executor, tell: Tell
) -> None:
    done = work / "shards"
    text = json.dumps({"pieces": n_pieces, "cuts": plan.cuts}, indent=1)
    write_whole(work / "shards.json", text)
    stage = Stage("shards", 0, len(plan.cuts))
    names = [done / f"{number:06d}.json" for number in range(stage.ranks)]

    def watch() -> int:
        count = sum(name.exists() for name in names)
        tell(Advance("writing", count, stage.ranks, "shards"))
        return count

    executor.run(work, stage, lambda s: pipeline(work, s.name, s.first), watch)
    for name in names:
        if not name.exists():
            raise InputError(f"{name}: was not made; {executor.where_to_look}")
    manifest.shards = [typed(name, read_sealed(name), ShardEntry) for name in names]


def main(arguments: list[str]) -> int:
    """One share of a stage, as the local executor starts it."""
    from prism_transformer.data.executors import Share

    work, stage, first, count, begin, end = (
        Path(arguments[0]),
        arguments[1],
        *map(int, arguments[2:]),
    )
    share = Share(pipeline(work, stage, first), work, Stage(stage, first, count), begin, end)
    try:
        share.run()
    except InputError:
        return 2  # word of it was left; to come again would not help
    return 0


if __name__ == "__main__":
    # By its own name, so that steps are the same classes wherever they are named.
    from prism_transformer.data import tasks

    sys.exit(tasks.main(sys.argv[1:]))
