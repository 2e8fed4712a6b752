"""What evaluation tests share: data of all six tasks, models, and lm_eval called by hand."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lm_eval
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Dataset, DatasetDict, load_dataset
from lm_eval.tasks import TaskManager

from prism_transformer.data.tokenizer import open_tokenizer
from prism_transformer.eval.task_data import STOCK, blimp_subtasks
from prism_transformer.hf.export import open_native, to_hf_tokenizer, write_hf
from prism_transformer.model import PrismLM
from tests.conftest import small_config

Rows = list[dict[str, Any]]

SEQ_LEN = 256
REAL_DATA = Path(__file__).parents[3] / "shared" / "data" / "eval"
WORDS = ("prism", "head", "layer", "light", "narrow", "wide", "stream", "glass", "beam", "lens")

# Where each task's rows lie in a data folder, and the folder of its YAML in lm_eval.
PLACES = {
    "piqa": ("piqa/validation.jsonl", "piqa"),
    "hellaswag": ("hellaswag/validation.jsonl.gz", "hellaswag"),
    "arc_easy": ("arc_easy/test.parquet", "arc"),
    "winogrande": ("winogrande/validation.jsonl", "winogrande"),
    "wikitext": ("wikitext/test.jsonl", "wikitext"),
}


def rows_of(task: str, count: int, seed: int = 0) -> Rows:
    """Rows in the schema of a task's own dataset."""
    draw = random.Random(f"{task}{seed}")

    def words(n: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(n))

    makers: dict[str, Callable[[int], dict[str, Any]]] = {
        "piqa": lambda i: {
            "goal": words(4), "sol1": words(3), "sol2": words(5), "label": draw.randrange(2),
        },
        "hellaswag": lambda i: {
            "ind": i, "activity_label": words(2), "ctx_a": words(4), "ctx_b": "he",
            "ctx": "", "endings": [words(draw.randint(2, 5)) for _ in range(4)],
            "label": str(draw.randrange(4)),
        },
        "arc_easy": lambda i: {
            "id": f"q{i}", "question": words(5) + "?",
            "choices": {"text": [words(draw.randint(1, 3)) for _ in range(4)],
                        "label": ["A", "B", "C", "D"]},
            "answerKey": draw.choice("ABCD"),
        },
        "winogrande": lambda i: {
            "sentence": f"{words(3)} because _ {words(3)}.", "option1": "the prism",
            "option2": "the lens", "answer": draw.choice("12"),
        },
        "blimp": lambda i: {"sentence_good": words(4), "sentence_bad": words(4), "UID": "x"},
        "wikitext": lambda i: {"page": f" = {words(1)} = \n \n {words(90)} . \n"},
    }  # fmt: skip
    return [makers[task](index) for index in range(count)]


def write_rows(file: Path, rows: Rows) -> None:
    """Write rows in the format that the name says."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
        return
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)


def write_data(folder: Path, count: int = 12) -> Path:
    """Data of five tasks in all three formats; BLiMP is ``write_blimp``."""
    for task, (place, _) in PLACES.items():
        write_rows(folder / place, rows_of(task, count))
    return folder


def write_blimp(folder: Path, count: int = 2) -> Path:
    for seed, name in enumerate(blimp_subtasks()):
        write_rows(folder / "blimp" / f"{name}.jsonl", rows_of("blimp", count, seed))
    return folder


def write_model(folder: Path, schedule: str = "2x1 3x1 6x1 12x2", seq_len: int = SEQ_LEN) -> Path:
    """A model of bytes whose weights are large enough that every layer matters."""
    model = PrismLM(small_config(schedule, seq_len=seq_len, vocab_size=257), seed=3)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(3.0)
    words = to_hf_tokenizer(open_tokenizer("bytes", folder), seq_len)
    write_hf(open_native(model, words), folder)
    return folder


def by_hand(model: Path, task: str, data: Path, batch: int = 4, limit: int | None = None) -> Any:
    """lm_eval's own task, untouched, called directly; only the download is replaced."""

    def download(path: str, name: str | None = None, **_: Any) -> Any:
        place = f"blimp/{name}.jsonl" if path == "nyu-mll/blimp" else PLACES[task][0]
        files = [*data.glob(f"{place.split('.')[0]}*"), *_real_files(data, task, name)]
        kind = "parquet" if files[0].suffix == ".parquet" else "json"
        rows = load_dataset(kind, data_files=str(files[0]), split="train")
        return DatasetDict(dict.fromkeys(("train", "validation", "test"), rows))

    def in_memory(path: str, name: str | None = None, **_: Any) -> Any:
        index = blimp_subtasks().index(str(name))
        rows = [json.loads(line) for line in (data / f"blimp/{name}.jsonl").open()]
        assert rows == rows_of("blimp", len(rows), index)
        return DatasetDict({"train": Dataset.from_list(rows)})

    own = task == "blimp" and (data / "blimp" / f"{blimp_subtasks()[0]}.jsonl").exists()
    with (
        patch("datasets.load_dataset", in_memory if own else download),
        patch("lm_eval.evaluator.add_env_info", lambda _: None),  # a second, and no score
    ):
        return lm_eval.simple_evaluate(
            model="hf",
            model_args={"pretrained": str(model), "dtype": "float32"},
            tasks=[task],
            batch_size=batch,
            device="cpu",
            limit=limit,
            task_manager=TaskManager(
                include_defaults=False,
                include_path=str(STOCK / ("blimp" if task == "blimp" else PLACES[task][1])),
            ),
        )


def _real_files(data: Path, task: str, name: str | None) -> list[Path]:
    if task == "wikitext":
        return sorted((data / "wikitext2").glob("validation_*.jsonl.gz"))
    return sorted((data / "blimp").glob(f"{name}.jsonl.gz")) if task == "blimp" else []


def scores(raw: Any) -> dict[str, dict[str, float]]:
    """Every number that lm_eval reports, by task and metric."""
    return {
        name: {
            key.partition(",")[0]: value
            for key, value in values.items()
            if "," in key and isinstance(value, float | int)
        }
        for name, values in raw["results"].items()
    }
