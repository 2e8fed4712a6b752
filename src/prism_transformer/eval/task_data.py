"""The data of tasks: found and checked before a model is opened, then handed to lm_eval.

lm_eval's own YAML files are included as they are, and only the data set anew, in a folder of ours.
YAML reads JSON, so that is what is written.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lm_eval.tasks

from prism_transformer.core.disk import file_sha256
from prism_transformer.core.errors import InputError
from prism_transformer.eval.diagnostic import cloze_items, minimal_pairs
from prism_transformer.eval.retrieval import (
    DEPTHS,
    LENGTHS,
    retrieval_items,
    task_name,
    task_names,
)
from prism_transformer.eval.tasks import (
    BUILT_IN,
    BY_NAME,
    DIAGNOSTIC,
    DIAGNOSTIC_CLOZE,
    DIAGNOSTIC_PAIRS,
    Benchmark,
)

STOCK = Path(lm_eval.tasks.__file__).parent
HUB = "hub"
FORMATS = (".jsonl", ".jsonl.gz", ".parquet")
SHARD = re.compile(r"-(\d{5})-of-(\d{5})")  # as the hub names the parts of a large file

# The built-in task for lm_eval: cloze items, and a group whose score is the plain mean over its
# tasks, as BLiMP's is.
CLOZE = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{text}}",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "target_delimiter": " ",
    "num_fewshot": 0,
    "metric_list": [
        {"metric": metric, "aggregation": "mean", "higher_is_better": True}
        for metric in ("acc", "acc_norm")
    ],
    "metadata": {"version": 1.0},
}
PAIRS = {
    "group": DIAGNOSTIC_PAIRS,
    "aggregate_metric_list": [{"metric": "acc", "aggregation": "mean", "weight_by_size": False}],
    "metadata": {"version": 1.0},
}


@dataclass(frozen=True)
class Part:
    """One dataset of a task, as files of one format."""

    files: tuple[Path, ...]
    split: str

    @property
    def reader(self) -> str:
        """What the datasets library calls the format."""
        return "parquet" if self.files[0].suffix == ".parquet" else "json"


Parts = dict[str, Part]  # by the name that lm_eval has for each


@dataclass(frozen=True)
class Planned:
    """A task whose YAML is written."""

    name: str
    loads: tuple[str, ...]
    """what lm_eval is asked for: a task, a group, or several"""
    data: str | dict[str, str]
    """the hub, or a sha256 for each file, by its place in the data folder"""


def blimp_subtasks() -> list[str]:
    """The names of BLiMP's 67 sub-tasks, as lm_eval has them."""
    return sorted(file.stem for file in (STOCK / "blimp").glob("[!_]*.yaml"))


def write_overlay(folder: Path, tasks: Sequence[str], data: Path | None) -> list[Planned]:
    """Write the YAML of every task; local data are checked first."""
    if data is not None:
        check_data(tasks, data)
    planned = []
    for task in tasks:
        if task == DIAGNOSTIC:
            planned.append(_write_diagnostic(folder))
        elif task in BUILT_IN:
            planned.append(_write_retrieval(folder, task))
        elif data is None:
            _write_stock(folder, task, {})
            planned.append(Planned(task, (task,), HUB))
        else:
            parts = local_parts(task, data)
            _write_stock(folder, task, parts)
            files = [file for part in parts.values() for file in part.files]
            sums = {str(file.relative_to(data)): file_sha256(file) for file in files}
            planned.append(Planned(task, (task,), sums))
    return planned


def _write_stock(folder: Path, task: str, parts: Mapping[str, Part]) -> None:
    if task != "blimp":
        _write(folder, task, BY_NAME[task].stock, _local(folder, task, parts.get(task)))
        return
    for name in blimp_subtasks():
        full = f"blimp_{name}"
        _write(folder, full, f"blimp/{name}.yaml", _local(folder, full, parts.get(full)))
    _write(folder, task, "blimp/_blimp.yaml", {})


def _local(folder: Path, name: str, part: Part | None) -> dict[str, Any]:
    """What changes in a task's YAML when its data are files; nothing else does."""
    if part is None:
        return {}
    place = folder / "data" / name
    place.mkdir(parents=True)
    links = [place / file.name for file in part.files]
    for link, file in zip(links, part.files, strict=True):
        link.symlink_to(file.resolve())  # for the library takes * or [ in a name for a pattern
    return {
        "dataset_path": part.reader,
        "dataset_name": None,
        # A cache of its own, which goes when the command ends: none can be out of date.
        "dataset_kwargs": {
            "data_files": {part.split: [str(link) for link in links]},
            "cache_dir": str(folder / "cache"),
        },
        "training_split": None,
        "validation_split": None if part.split == "test" else part.split,
        "test_split": part.split if part.split == "test" else None,
    }


def _write_diagnostic(folder: Path) -> Planned:
    """The built-in task: minimal pairs under BLiMP's template, and cloze items."""
    shas: dict[str, str] = {}
    names = []
    for phenomenon, pairs in minimal_pairs().items():
        names.append(f"{DIAGNOSTIC}_{phenomenon}")
        rows = [{"sentence_good": good, "sentence_bad": bad} for good, bad in pairs]
        shas |= _write_own(folder, names[-1], rows, "blimp/_template_yaml", {})
    shas |= _write_own(folder, DIAGNOSTIC_CLOZE, map(asdict, cloze_items()), None, CLOZE)
    _write(folder, DIAGNOSTIC_PAIRS, None, PAIRS | {"task": names})
    return Planned(DIAGNOSTIC, (DIAGNOSTIC_PAIRS, DIAGNOSTIC_CLOZE), shas)


def _write_retrieval(folder: Path, task: str) -> Planned:
    """Passkey or needle, a task for each length and depth."""
    shas: dict[str, str] = {}
    for length in LENGTHS:
        for depth in DEPTHS:
            rows = map(asdict, retrieval_items(task, length, depth))
            shas |= _write_own(folder, task_name(task, length, depth), rows, None, CLOZE)
    return Planned(task, tuple(task_names(task)), shas)


def _write_own(
    folder: Path, name: str, rows: Iterable[dict[str, Any]], stock: str | None, fields: Any
) -> dict[str, str]:
    """Items of ours as a file and its YAML; the file's sha256."""
    file = folder / "own" / f"{name}.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    local = _local(folder, name, Part((file,), "train"))
    _write(folder, name, stock, {"task": name, **local, **fields})
    return {file.name: file_sha256(file)}


def _write(folder: Path, name: str, stock: str | None, fields: Mapping[str, Any]) -> None:
    content = {"include": str(STOCK / stock)} if stock else {}
    (folder / f"{name}.yaml").write_text(json.dumps({**content, **fields}, indent=1), "utf-8")


def local_parts(task: str, data: Path) -> Parts:
    """The files of a task that has a folder, every row checked."""
    benchmark = BY_NAME[task]
    folder = _folders(benchmark, data)[0]
    if task == "blimp":
        parts = _subtask_parts(benchmark, folder)
    else:
        found = ((_files(folder, split), split) for split in benchmark.splits)
        first = next((Part(files, split) for files, split in found if files), None)
        if first is None:
            raise InputError(f"{folder}: has no {_wanted(benchmark)}")
        parts = {task: first}
    for part in parts.values():
        for file in part.files:
            _check_rows(file, benchmark)
    return parts


def check_data(tasks: Sequence[str], data: Path) -> None:
    """Refuse a data folder in which a task has no place, and say which tasks have one."""
    if not data.is_dir():
        raise InputError(f"{data}: is not a folder; --data takes one\n{layout()}")
    wanted = [task for task in tasks if task not in BUILT_IN]
    there = [task for task in wanted if _folders(BY_NAME[task], data)]
    if wanted and not there:
        raise InputError(f"{data}: has no data of {', '.join(wanted)}\n{layout(wanted)}")
    missing = [task for task in wanted if task not in there]
    if missing:
        raise InputError(
            f"{data}: has no data of {', '.join(missing)}; `--tasks {','.join(there)}` is what "
            f"it has\n{layout(missing)}"
        )


def layout(tasks: Sequence[str] = tuple(BY_NAME)) -> str:
    """What a data folder looks like, a line for each task."""
    known = [BY_NAME[task] for task in tasks if task in BY_NAME]
    return "\n".join(f"expected: {each.folders[0]}/{_wanted(each)}" for each in known)


def _wanted(benchmark: Benchmark) -> str:
    stem = "<subtask>" if benchmark.name == "blimp" else " or ".join(benchmark.splits)
    return f"{stem} ({', '.join(FORMATS)}) with {benchmark.expected}"


def _folders(benchmark: Benchmark, data: Path) -> list[Path]:
    return [data / name for name in benchmark.folders if (data / name).is_dir()]


def _subtask_parts(benchmark: Benchmark, folder: Path) -> Parts:
    (split,), subtasks = benchmark.splits, blimp_subtasks()
    # A file for each, or folders as on the hub.
    found = {name: _files(folder, name) or _files(folder / name, split) for name in subtasks}
    missing = [name for name, files in found.items() if not files]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InputError(
            f"{folder}: {len(missing)} of {len(subtasks)} sub-tasks have no file: "
            f"{', '.join(missing[:3])}{more}; expected {_wanted(benchmark)}"
        )
    return {f"blimp_{name}": Part(files, split) for name, files in found.items()}


def _files(folder: Path, stem: str) -> tuple[Path, ...]:
    """The file of a name in any format, or its numbered parts."""
    if not folder.is_dir():
        return ()
    found: dict[str, list[Path]] = {}
    for file in sorted(folder.iterdir()):
        for ending in FORMATS:
            name = file.name.removesuffix(ending)
            rest = name.removeprefix(stem)
            known = rest in ("", "_document_level") or SHARD.fullmatch(rest)
            if name != file.name and name.startswith(stem) and known:
                found.setdefault(SHARD.sub("", name) + ending, []).append(file)
    if len(found) > 1:
        names = ", ".join(sorted(found))
        raise InputError(f"{folder}: has {names}: which is meant? keep one")
    files = tuple(next(iter(found.values()), ()))
    _check_parts(folder, files)
    return files


def _check_parts(folder: Path, files: Sequence[Path]) -> None:
    """Refuse some of the parts of a large file: a score on them would look like any other."""
    parts = [match for file in files if (match := SHARD.search(file.name))]
    totals = {int(part[2]) for part in parts}
    if not parts:
        return
    wanted = set(range(max(totals)))
    there = [int(part[1]) for part in parts]
    if len(totals) > 1 or len(parts) != len(files) or sorted(there) != sorted(wanted):
        names = ", ".join(file.name for file in files[:3])
        raise InputError(
            f"{folder}: has {len(files)} of {max(totals)} parts ({names}); all of them are needed, "
            "each once"
        )


def _check_rows(file: Path, benchmark: Benchmark) -> None:
    count = 0
    rows = _parquet_rows(file) if file.suffix == ".parquet" else _json_rows(file)
    for where, row in rows:  # each with where it is
        count += 1
        if not isinstance(row, dict) or not benchmark.sound(row):
            found = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            raise InputError(
                f"{file}, {where}: is no row of {benchmark.name}; expected "
                f"{benchmark.expected}; found {found}"
            )
    if count == 0:
        raise InputError(f"{file}: has no rows; expected {benchmark.expected}")


def _json_rows(file: Path) -> Iterator[tuple[str, Any]]:
    number = 0
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    row = json.loads(line)
                except ValueError as error:  # bad JSON, or bytes that are not UTF-8
                    raise InputError(f"{file}, line {number}: is not JSON: {error}") from None
                yield f"line {number}", row
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file}, line {number + 1}: cannot be read: {error}") from None


def _parquet_rows(file: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as table:
            rows = (row for batch in table.iter_batches() for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                yield f"row {number}", row
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{file}: is no sound parquet file: {error}") from None
