from __future__ import annotations

import hashlib
import json
import re
import string
import zlib
from collections import Counter
from collections.abc import Callable

import pytest

from prism_transformer.eval.diagnostic import WORDS, ClozeItem, cloze_items, minimal_pairs

PAIRS = minimal_pairs()
ITEMS = cloze_items()
TABLES = [(table["columns"], table["rows"]) for table in WORDS["tables"]]
TEMPLATES = [text for groups in WORDS["phenomena"].values() for group in groups for text in group]
AGREEMENT = [
    "subject_verb_agreement",
    "agreement_across_prepositional_phrase",
    "agreement_across_relative_clause",
    "agreement_across_long_distance",
]


def words(sentence: str) -> list[str]:
    return re.findall(r"\w+", sentence)


def edits(one: list[str], two: list[str]) -> int:
    """Words to insert, delete or replace on the way from one to two."""
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, start=1):
        before, row = row, [i]
        for j, b in enumerate(two, start=1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (a != b)))
    return row[-1]


def test_how_many() -> None:
    assert len(PAIRS) >= 14
    assert {len(pairs) for pairs in PAIRS.values()} == {50}
    assert len(ITEMS) >= 60
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in PAIRS)


def test_every_call_gives_the_same() -> None:
    assert minimal_pairs() == PAIRS
    assert cloze_items() == ITEMS
    assert minimal_pairs() is not PAIRS


def test_every_machine_gives_the_same() -> None:
    # Scores compare only over the same items: whoever edits them has to say so here.
    everything = json.dumps([PAIRS, [[x.text, x.choices, x.answer] for x in ITEMS]])
    digest = hashlib.sha256(everything.encode()).hexdigest()
    assert digest == "321f5fa35ee39971ccb8f8d8eddba26293c73a5268204655ffc2e727c9108355"


@pytest.mark.parametrize("name", PAIRS)
def test_sentences_are_written_properly(name: str) -> None:
    for sentence in (sentence for pair in PAIRS[name] for sentence in pair):
        assert re.fullmatch(r"[A-Z][a-z]*(,? [a-z]+)+[.?]", sentence), sentence
        assert not re.search(r"\b(a [aeiou]|an [^aeiou])", sentence), sentence
        assert not re.search(r"\b(\w+) \1\b", sentence), sentence


@pytest.mark.parametrize("name", PAIRS)
def test_no_sentence_comes_twice(name: str) -> None:
    sentences = [sentence for pair in PAIRS[name] for sentence in pair]
    assert len(set(sentences)) == 100


def test_no_sentence_is_both_acceptable_and_not() -> None:
    good = {good for pairs in PAIRS.values() for good, _ in pairs}
    bad = {bad for pairs in PAIRS.values() for _, bad in pairs}
    assert not good & bad


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_minimal(name: str) -> None:
    for good, bad in PAIRS[name]:
        assert len(words(good)) == len(words(bad))
        assert 1 <= edits(words(good), words(bad)) <= (4 if name == "word_order" else 2)
        assert good[-1] == bad[-1]


@pytest.mark.parametrize("name", PAIRS)
def test_words_occur_as_often_on_both_sides(name: str) -> None:
    good = Counter(word for good, _ in PAIRS[name] for word in words(good))
    bad = Counter(word for _, bad in PAIRS[name] for word in words(bad))
    assert good == bad


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("score", [len, lambda word: zlib.crc32(word.encode())])
def test_scores_of_single_words_win_as_often_as_they_lose(
    name: str, score: Callable[[str], int]
) -> None:
    total = [[sum(map(score, words(side))) for side in pair] for pair in PAIRS[name]]
    assert sum(good > bad for good, bad in total) == sum(good < bad for good, bad in total)


@pytest.mark.parametrize("name", AGREEMENT)
def test_verbs_agree_with_the_first_noun_in_the_acceptable_sentence(name: str) -> None:
    plurals = 0
    for good, bad in PAIRS[name]:
        subject = words(good)[1]
        (verb, wrong), *more = [
            (a, b) for a, b in zip(words(good), words(bad), strict=True) if a != b
        ]
        assert not more
        # English: one of noun and verb ends in s; is, was and has included.
        assert subject.endswith("s") != verb.endswith("s"), good
        assert subject.endswith("s") == wrong.endswith("s"), bad
        plurals += subject.endswith("s")
    assert plurals == 25


def test_distance_grows_from_one_agreement_to_the_next() -> None:
    length = [sum(len(words(good)) for good, _ in PAIRS[name]) for name in AGREEMENT]
    assert length == sorted(set(length))


def test_tables_hold_words_in_lower_case() -> None:
    for header, rows in TABLES:
        assert len(set(rows)) == len(rows)
        for row in rows:
            cells = row.split("/")
            assert len(cells) == header.count("/") + 1
            assert all(re.fullmatch(r"[a-z]+( [a-z]+)*", cell) for cell in cells), row


def slots(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def test_columns_have_names_of_their_own_and_no_table_stands_idle() -> None:
    columns = [column for header, _ in TABLES for column in header.split("/")]
    assert len(set(columns)) == len(columns)
    used = set().union(*map(slots, TEMPLATES))
    assert used <= set(columns)
    assert all(used & set(header.split("/")) for header, _ in TABLES)


@pytest.mark.parametrize("template", TEMPLATES)
def test_tables_that_meet_have_different_lengths(template: str) -> None:
    lengths = [len(rows) for header, rows in TABLES if slots(template) & set(header.split("/"))]
    assert len(set(lengths)) == len(lengths)


def test_cloze_items_are_written_properly() -> None:
    assert len({item.text for item in ITEMS}) == len(ITEMS)
    for item in ITEMS:
        assert len(set(item.choices)) == len(item.choices) == 4
        assert 0 <= item.answer < 4
        for text in (item.text, *item.choices):
            assert text
            assert text == " ".join(text.split())
            assert not set("{}/[]|") & set(text)
        assert item.text[0].isupper()


def test_cloze_answers_are_balanced() -> None:
    positions = Counter(item.answer for item in ITEMS)
    assert set(positions.values()) == {len(ITEMS) // 4}
    offered = Counter(choice for item in ITEMS for choice in item.choices)
    right = Counter(item.choices[item.answer] for item in ITEMS)
    assert offered == Counter({choice: 4 * count for choice, count in right.items()})


def test_what_is_to_be_copied_stands_in_the_context() -> None:
    copied = [item for item in ITEMS if item.choices[item.answer] in words(item.text)]
    assert len(copied) == 16


def test_an_item_as_it_reads() -> None:
    assert ITEMS[1] == ClozeItem("The opposite of big is", ("cold", "small", "dry", "late"), 1)
    assert PAIRS["wh_gap"][0] == (
        "We know what the doctor fixed before noon.",
        "We know that the doctor fixed before noon.",
    )
