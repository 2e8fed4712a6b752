"""Deduplication: what stays, held against brute force; the same bytes for any number of tasks."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.data.pieces import DOUBLE, LEFT_OUT
from prism_transformer.data.prepare import Preparation, prepare
from prism_transformer.data.shards import read_manifest
from tests.data.test_stream import hashes, stream, write_jsonl

END = 256  # of a document, in bytes


def drawn_texts(seed: int = 0) -> list[str]:
    """80 texts of random words, then some of them again: as they are, and nearly."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 9))) for _ in range(4000)]
    texts = [" ".join(draw.choices(words, k=draw.randint(60, 120))) for _ in range(80)]
    again = [texts[draw.randrange(80)] for _ in range(25)]
    loud = [
        f"{texts[number].upper()}!" for number in range(5)
    ]  # the same but for how it is written
    near = [f"{texts[number]} and a few words more" for number in range(10, 20)]
    short = ["too short"] * 3
    every = [*texts, *again, *loud, *near, *short]
    draw.shuffle(every)
    return every


def what(corpus: Path, folder: Path, **changes: Any) -> Preparation:
    order = Preparation(str(corpus), "bytes", folder, 400, like=None, shard_tokens=9999)
    return replace(order, piece_bytes=6000, **changes)


def documents(folder: Path) -> list[str]:
    """Every document of a folder of shards, in order."""
    tokens = [int(token) for split in ("val", "train") for token in stream(folder, split)]
    found: list[bytearray] = []
    for token in tokens:
        if token == END:
            found.append(bytearray())
        else:
            found[-1].append(token)
    return [bytes(each).decode() for each in found]


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    found = drawn_texts()
    (tmp_path / "texts").mkdir()
    write_jsonl(tmp_path / "texts" / "a.jsonl", found[:70])
    write_jsonl(tmp_path / "texts" / "b.jsonl", found[70:])
    return found


def shingles(text: str, n: int = 5) -> set[tuple[str, ...]]:
    words = "".join(each for each in text.lower() if each.isalnum() or each == " ").split()
    return {tuple(words[at : at + n]) for at in range(len(words) - n + 1)}


def alike(one: str, two: str) -> float:
    """Jaccard similarity of the runs of five words."""
    a, b = shingles(one), shingles(two)
    return len(a & b) / len(a | b) if a | b else 0.0


def test_exact_leaves_every_text_once(tmp_path: Path, texts: list[str]) -> None:
    made = prepare(what(tmp_path / "texts", tmp_path / "out", dedup=("exact",)))
    kept = documents(tmp_path / "out")
    assert len(kept) == len(set(kept))
    assert set(kept) == set(texts)
    assert made.manifest.skipped == {DOUBLE: len(texts) - len(set(texts))}
    assert made.manifest.dedup == ["exact"]
    places = [texts.index(each) for each in dict.fromkeys(kept)]
    assert len(places) == len(kept)
    # They come in the order of the corpus.
    left = iter(texts)
    assert all(any(text == each for text in left) for each in kept)


def test_minhash_leaves_one_of_what_is_nearly_the_same(tmp_path: Path, texts: list[str]) -> None:
    prepare(what(tmp_path / "texts", tmp_path / "out", dedup=("minhash",)))
    kept = documents(tmp_path / "out")
    long = [each for each in kept if each != "too short"]
    # Every text is there, or one that shares nearly all of it; and no two of those that stay do.
    assert all(any(alike(text, each) > 0.85 for each in long) for text in texts if " " in text[9:])
    assert len(long) == 80
    assert max(alike(a, b) for n, a in enumerate(long) for b in long[:n]) < 0.1
    assert kept.count("too short") == 3  # has no run of five words to be known by


def test_filters_come_before_and_both_may_follow_each_other(
    tmp_path: Path, texts: list[str]
) -> None:
    sampled = ("SamplerFilter:rate=0.5,seed=3",)
    both = ("exact", "minhash:n_grams=3")
    made = prepare(what(tmp_path / "texts", tmp_path / "out", filters=sampled, dedup=both))
    kept = documents(tmp_path / "out")
    assert made.manifest.skipped[LEFT_OUT] > 20
    assert made.manifest.skipped[DOUBLE] > 5
    assert sum(made.manifest.skipped.values()) + len(kept) == len(texts)
    assert kept.count("too short") <= 1


def test_a_budget_does_not_change_what_is_double(tmp_path: Path, texts: list[str]) -> None:
    whole = prepare(what(tmp_path / "texts", tmp_path / "all", dedup=("exact",)))
    some = what(tmp_path / "texts", tmp_path / "some", dedup=("exact",), train_tokens=15_000)
    prepare(some)
    assert whole.manifest.complete
    kept, fewer = documents(tmp_path / "all"), documents(tmp_path / "some")
    assert len(fewer) < len(kept)
    assert kept[: len(fewer)] == fewer


def test_nothing_double_and_nothing_left(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    write_jsonl(tmp_path / "texts" / "a.jsonl", sorted(set(drawn_texts())))
    plain = prepare(what(tmp_path / "texts", tmp_path / "plain")).manifest
    same = prepare(what(tmp_path / "texts", tmp_path / "exact", dedup=("exact",))).manifest
    assert same.shards == plain.shards
    assert not same.skipped
    none = ("SamplerFilter:rate=0.0,seed=0",)
    for dedup in ("exact", "minhash"):
        with pytest.raises(InputError, match="has 0 tokens, too few"):
            prepare(
                what(tmp_path / "texts", tmp_path / f"no-{dedup}", filters=none, dedup=(dedup,))
            )


def test_a_bad_record_is_named_and_nothing_is_kept(tmp_path: Path, texts: list[str]) -> None:
    with (tmp_path / "texts" / "b.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"txt": 1}\n')
    for dedup in ("exact", "minhash"):
        with pytest.raises(InputError, match=r"b\.jsonl: line \d+: has no field 'text'"):
            prepare(what(tmp_path / "texts", tmp_path / dedup, dedup=(dedup,)))
        assert not list((tmp_path / dedup).glob("*.bin"))


@pytest.mark.parametrize(
    ("dedup", "said"),
    [
        ("exactly", "is unknown; use exact, or minhash"),
        ("exact:n=1", "is unknown; use exact, or minhash"),
        ("minhash:ngrams=5", "'ngrams' is unknown; known: n_grams"),
        ("minhash:n_grams=0", "n_grams=0 is not a positive number"),
        ("minhash:n_grams=few", "n_grams=few is not a positive number"),
        ("minhash:language=klingon", "klingon"),
    ],
)
def test_what_is_no_deduplication_is_refused(
    tmp_path: Path, texts: list[str], dedup: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        prepare(what(tmp_path / "texts", tmp_path / "out", dedup=(dedup,)))
    assert not (tmp_path / "out" / "tasks").exists()


@pytest.mark.slow
def test_any_number_of_tasks_gives_the_same_bytes(tmp_path: Path, texts: list[str]) -> None:
    both = ("exact", "minhash")
    for n_tasks in (1, 3):
        prepare(what(tmp_path / "texts", tmp_path / str(n_tasks), dedup=both, tasks=n_tasks))
    assert hashes(tmp_path / "1") == hashes(tmp_path / "3")
    assert read_manifest(tmp_path / "1") == read_manifest(tmp_path / "3")
    assert len(set(documents(tmp_path / "3"))) == 81
