"""Documents that are there twice: datatrove's exact and MinHash deduplication, as stages of tasks.

``exact`` leaves one of all documents with the same text, ``minhash`` one of those that share most
of their runs of words. Each signs every piece, finds what is double over all of them, and leaves
it out when pieces are encoded. Which one stays follows from the pieces, and so from the files, and
not from tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datatrove.data import Document as Passed
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import (
    ExactDedupConfig,
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.utils.hashing import HashConfig
from datatrove.utils.word_tokenizers import WordTokenizer, load_word_tokenizer

from prism_transformer.core.errors import InputError
from prism_transformer.data.pieces import PieceFiles, write_problem

HASH = HashConfig(hash_fc="sha1")  # its xxhash hands text to a library that wants bytes by now
OF_MINHASH = ("n_grams", "num_buckets", "hashes_per_bucket", "seed")


class Words(WordTokenizer):
    """Words as spaces part them: signatures are of text without punctuation."""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()

    def sent_tokenize(self, text: str) -> list[str]:
        raise NotImplementedError

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        raise NotImplementedError


def text_of(document: Passed) -> str:
    return document.text


EXACT = ExactDedupConfig(text_of, hash_config=HASH)


class Finding(NamedTuple):
    """A stage that looks at the signatures of all pieces."""

    name: str
    ranks: int
    make: Callable[[], PipelineStep]


class Dedup:
    """One kind of deduplication, with its files in the folder of the work."""

    def __init__(self, text: str, number: int, work: Path) -> None:
        self.text = text
        self.kind, _, options = text.partition(":")
        self.name = f"dedup-{number}"
        place = work / self.name
        self.signatures, self.pairs, self.double = (
            str(place / part) for part in ("signatures", "pairs", "double")
        )
        if self.kind == "exact" and not options:
            return
        if self.kind != "minhash":
            raise InputError(
                f"--dedup {text!r}: is unknown; use exact, or minhash, as in "
                "minhash:n_grams=5,num_buckets=14,hashes_per_bucket=8"
            )
        self.words, self.config = self._read(options)

    def _read(self, options: str) -> tuple[WordTokenizer, MinhashConfig]:
        """How MinHash splits words, and its numbers."""
        given = dict(each.partition("=")[::2] for each in options.split(",") if each)
        language = given.pop("language", None)
        if unknown := sorted(set(given) - set(OF_MINHASH)):
            known = ", ".join((*OF_MINHASH, "language"))
            raise InputError(f"--dedup {self.text}: {unknown[0]!r} is unknown; known: {known}")
        for key, value in given.items():
            if not value.isdecimal() or not (int(value) or key == "seed"):
                raise InputError(f"--dedup {self.text}: {key}={value} is not a positive number")
        try:
            words = Words() if language is None else load_word_tokenizer(language)
        except (ValueError, ImportError) as error:
            raise InputError(f"--dedup {self.text}: {error}") from None
        return words, MinhashConfig(
            hash_config=HASH, **{key: int(value) for key, value in given.items()}
        )

    def signing(self) -> PipelineStep:
        """Writes the signatures of a piece."""
        if self.kind == "exact":
            return ExactDedupSignature(self.signatures, EXACT)
        return MinhashDedupSignature(self.signatures, self.config, self.words)

    def finding(self) -> list[Finding]:
        """What comes between: the number of ranks is datatrove's, or part of what comes out."""
        if self.kind == "exact":
            return [
                Finding("find", 1, lambda: ExactFindDedups(self.signatures, self.double, EXACT))
            ]
        pairs = self.signatures, self.pairs
        return [
            Finding(
                "buckets",
                self.config.num_buckets,
                lambda: MinhashDedupBuckets(*pairs, config=self.config),
            ),
            Finding(
                "clusters", 1, lambda: MinhashDedupCluster(self.pairs, self.double, self.config)
            ),
        ]

    def leaving_out(self) -> PipelineStep:
        """Passes the documents of a piece on that stay."""
        if self.kind == "exact":
            Path(self.double).mkdir(parents=True, exist_ok=True)  # where nothing was double
            return ExactDedupFilter(self.double, EXACT)
        return MinhashDedupFilter(self.double)


class Sign(PipelineStep):
    """Signs a piece."""

    name = "signatures"
    type = "DEDUP"

    def __init__(self, step: PipelineStep, work: Path) -> None:
        super().__init__()
        self.step, self.work = step, work

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Passed]:
        try:
            self.step.run(data, rank, world_size)
        except InputError as error:
            write_problem(PieceFiles(self.work / "pieces", rank), error)
            raise
        yield from ()


class LeaveOut(PipelineStep):
    """Leaves out what is double of a piece, and remembers which documents these are."""

    name = "without duplicates"
    type = "DEDUP"

    def __init__(self, step: PipelineStep, first: int) -> None:
        super().__init__()
        self.step, self.first = step, first
        self.found: set[int] = set()

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Passed]:
        seen: set[int] = set()
        self.found = seen  # those that pass are taken out again

        def watched() -> Iterator[Passed]:
            for document in data:
                seen.add(document.metadata["number"])
                yield document

        for document in self.step.run(watched(), self.first + rank, world_size):
            seen.discard(document.metadata["number"])
            yield document


def read_dedups(texts: Sequence[str], work: Path) -> list[Dedup]:
    """Each kind as it is written, in the order in which they follow each other."""
    return [Dedup(text, number, work) for number, text in enumerate(texts)]
