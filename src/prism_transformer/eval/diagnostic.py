"""A small diagnostic for language models: minimal pairs and cloze items, written for this project.

Word counts cannot tell the sides apart. Over each phenomenon every word occurs as often in
acceptable as in unacceptable sentences, and over each four cloze items every choice is right once.
The words, and what the templates mean, are in ``diagnostic.toml``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAIRS_EACH = 50
CHOICES = 4  # of a cloze item, and items of a template: each choice is right once

WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


@dataclass(frozen=True)
class ClozeItem:
    """A context, what could follow it after one space, and which of these does."""

    text: str
    choices: tuple[str, ...]
    answer: int


def minimal_pairs() -> dict[str, list[tuple[str, str]]]:
    """Fifty pairs of an acceptable and an unacceptable sentence for each phenomenon."""
    return {name: list(_pairs(groups)) for name, groups in WORDS["phenomena"].items()}


def cloze_items() -> list[ClozeItem]:
    """Contexts with four choices each; every position is right equally often."""
    items = []
    for group in WORDS["cloze"]:
        cells = [(row.split("/")[0], row.split("/")[-1]) for row in group["rows"]]
        choices = tuple(answer for _, answer in cells)
        for position, (gap, _) in enumerate(cells):
            items.append(ClozeItem(_capital(group["text"].replace("{}", gap)), choices, position))
    return items


def _pairs(groups: list[list[str]]) -> Iterator[tuple[str, str]]:
    """Each group's templates in turn, filled with one choice of words after another."""
    n_frames = PAIRS_EACH // len(groups[0])
    for frame in range(n_frames):
        words = _words(frame)
        for template in groups[frame * len(groups) // n_frames]:
            yield _sentence(template, words, side=1), _sentence(template, words, side=2)


def _words(frame: int) -> dict[str, str]:
    """One row of every table, by the names of its columns."""
    words: dict[str, str] = {}
    for table in WORDS["tables"]:
        row = table["rows"][frame % len(table["rows"])]
        words.update(zip(table["columns"].split("/"), row.split("/"), strict=True))
    return words


def _sentence(template: str, words: dict[str, str], side: int) -> str:
    chosen = re.sub(r"\[([^|]*)\|([^\]]*)\]", rf"\{side}", template)
    return _capital(chosen.format_map(words))


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
