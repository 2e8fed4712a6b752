"""The tasks: what lm_eval calls each, which rows it needs, and which metric a table shows.

Everything but the check of a row is in ``tasks.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from prism_transformer.core.errors import InputError
from prism_transformer.eval.retrieval import NEEDLE, PASSKEY, task_names

Row = dict[str, Any]


@dataclass(frozen=True)
class Benchmark:
    """A task of lm_eval's, and how its data look as files; ``tasks.toml`` says what is what."""

    name: str
    stock: str
    metric: str
    folders: list[str]
    splits: list[str]
    items: list[int]
    """that each split is known to have"""
    expected: str
    sound: Callable[[Row], bool]
    """whether a row has the columns"""


def _texts(row: Row, *names: str) -> bool:
    return all(isinstance(row.get(name), str) and row[name] for name in names)


def _text_list(value: object) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(isinstance(v, str) for v in value)


def _hellaswag(row: Row) -> bool:
    endings = row.get("endings")
    return (
        _texts(row, "activity_label", "ctx_a")
        and isinstance(row.get("ctx_b"), str)  # which may be empty
        and _text_list(endings)
        and str(row.get("label")) in map(str, range(len(endings or ())))
    )


def _arc(row: Row) -> bool:
    choices = row.get("choices")
    return (
        _texts(row, "question", "answerKey")
        and isinstance(choices, dict)
        and _text_list(choices.get("text"))
        and _text_list(choices.get("label"))
        and len(choices["text"]) == len(choices["label"])
        and row["answerKey"] in choices["label"]
    )


def _winogrande(row: Row) -> bool:
    texts = _texts(row, "sentence", "option1", "option2")
    return texts and "_" in row["sentence"] and row.get("answer") in ("1", "2")


SOUND: dict[str, Callable[[Row], bool]] = {
    "piqa": lambda row: _texts(row, "goal", "sol1", "sol2") and row.get("label") in (0, 1),
    "hellaswag": _hellaswag,
    "arc_easy": _arc,
    "winogrande": _winogrande,
    "blimp": lambda row: _texts(row, "sentence_good", "sentence_bad"),
    "wikitext": lambda row: _texts(row, "page"),
}

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
BY_NAME = {name: Benchmark(name, **row, sound=SOUND[name]) for name, row in _TABLE.items()}
DIAGNOSTIC = "diagnostic"  # needs no data; never one of the benchmarks
DIAGNOSTIC_PAIRS = "diagnostic_pairs"
DIAGNOSTIC_CLOZE = "diagnostic_cloze"
BUILT_IN = (DIAGNOSTIC, PASSKEY, NEEDLE)
NAMES = (*BY_NAME, *BUILT_IN)
# By the log-likelihood of an answer, and by that for each of its bytes. Most tasks have both.
ACCURACIES = ("acc", "acc_norm")


def choose_tasks(names: str | Sequence[str]) -> list[str]:
    """The tasks that were named, each once; all benchmarks where none was."""
    names = [names] if isinstance(names, str) else names
    chosen = [name.strip() for text in names for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in NAMES:
            near = get_close_matches(name, NAMES, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}"
            raise InputError(f"no task {name!r}; {hint}")
    return list(dict.fromkeys(chosen or BY_NAME))


def known_items(task: str, split: str | None = None) -> list[int]:
    """How many items a task is known to have, by split; nothing where nobody knows."""
    benchmark = BY_NAME.get(task)
    pairs = zip(benchmark.splits, benchmark.items, strict=True) if benchmark else ()
    return [items for name, items in pairs if split in (None, name)]


def shown_metrics(task: str) -> dict[str, str]:
    """The rows of a table that a task has, each with the metric it shows."""
    if task == DIAGNOSTIC:
        return {DIAGNOSTIC_PAIRS: "acc", DIAGNOSTIC_CLOZE: "acc"}
    if task in BUILT_IN:
        return dict.fromkeys(task_names(task), "acc")
    return {task: BY_NAME[task].metric}
