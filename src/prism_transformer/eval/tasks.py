"""The tasks: what lm_eval calls each, which rows it needs, and which metric a table shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from prism_transformer.errors import InputError

Row = dict[str, Any]
Formats = tuple[str, ...]

FORMATS: Formats = (".jsonl", ".jsonl.gz", ".parquet")


@dataclass(frozen=True)
class Benchmark:
    """A task of lm_eval's, and how its data look as files."""

    name: str
    stock: str
    """its YAML inside lm_eval's tasks; a folder for a group"""
    metric: str
    """what a table shows; every metric is kept"""
    folders: tuple[str, ...]
    """where its files may be, in the data folder"""
    splits: tuple[str, ...]
    """the first that is there is scored"""
    expected: str
    """the columns, for people"""
    sound: Callable[[Row], bool]
    """whether a row has them"""


def _texts(row: Row, *names: str) -> bool:
    return all(isinstance(row.get(name), str) and row[name] for name in names)


def _piqa(row: Row) -> bool:
    return _texts(row, "goal", "sol1", "sol2") and row.get("label") in (0, 1)


def _hellaswag(row: Row) -> bool:
    endings = row.get("endings")
    return (
        _texts(row, "activity_label", "ctx_a")
        and isinstance(row.get("ctx_b"), str)
        and _text_list(endings)
        and str(row.get("label")) in [str(index) for index in range(len(endings or ()))]
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


def _blimp(row: Row) -> bool:
    return _texts(row, "sentence_good", "sentence_bad")


def _wikitext(row: Row) -> bool:
    return _texts(row, "page")


def _text_list(value: object) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(isinstance(v, str) for v in value)


BENCHMARKS = (
    Benchmark(
        "piqa",
        "piqa/piqa.yaml",
        "acc",
        ("piqa",),
        ("validation",),
        "goal, sol1, sol2: text; label: 0 or 1",
        _piqa,
    ),
    Benchmark(
        "hellaswag",
        "hellaswag/hellaswag.yaml",
        "acc_norm",
        ("hellaswag",),
        ("validation",),
        'activity_label, ctx_a, ctx_b: text; endings: list of text; label: "0" to "3"',
        _hellaswag,
    ),
    Benchmark(
        "arc_easy",
        "arc/arc_easy.yaml",
        "acc",
        ("arc_easy", "ARC-Easy"),
        ("test", "validation"),
        "question: text; choices: {text: list, label: list}; answerKey: one of the labels",
        _arc,
    ),
    Benchmark(
        "winogrande",
        "winogrande/default.yaml",
        "acc",
        ("winogrande", "winogrande_xl"),
        ("validation",),
        'sentence: text with a "_"; option1, option2: text; answer: "1" or "2"',
        _winogrande,
    ),
    Benchmark(
        "blimp",
        "blimp",
        "acc",
        ("blimp",),
        ("train",),
        "sentence_good, sentence_bad: text",
        _blimp,
    ),
    Benchmark(
        "wikitext",
        "wikitext/wikitext.yaml",
        "word_perplexity",
        ("wikitext", "wikitext2", "wikitext-2-raw-v1"),
        ("test", "validation"),
        "page: text, a whole article",
        _wikitext,
    ),
)

BY_NAME = {benchmark.name: benchmark for benchmark in BENCHMARKS}
DIAGNOSTIC = "diagnostic"  # needs no data; never one of the benchmarks
DIAGNOSTIC_PAIRS = "diagnostic_pairs"
DIAGNOSTIC_CLOZE = "diagnostic_cloze"
NAMES = (*BY_NAME, DIAGNOSTIC)


def choose_tasks(names: Sequence[str]) -> list[str]:
    """The tasks that were named, each once; all benchmarks where none was."""
    chosen = [name.strip() for text in names for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in NAMES:
            near = get_close_matches(name, NAMES, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}"
            raise InputError(f"no task {name!r}; {hint}")
    return list(dict.fromkeys(chosen or BY_NAME))


def shown_metrics(task: str) -> dict[str, str]:
    """The rows of a table that a task has, each with the metric it shows."""
    if task == DIAGNOSTIC:
        return {DIAGNOSTIC_PAIRS: "acc", DIAGNOSTIC_CLOZE: "acc"}
    return {task: BY_NAME[task].metric}
