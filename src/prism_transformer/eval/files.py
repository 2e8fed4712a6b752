"""Local data: finding a task's files, and checking every row before a model is opened."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism_transformer.data.shards import file_sha256
from prism_transformer.errors import InputError
from prism_transformer.eval.tasks import BY_NAME, DIAGNOSTIC, FORMATS, Benchmark, Row

SHARD = re.compile(r"-\d{5}-of-\d{5}")  # as the hub names the parts of a large file


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


def local_parts(task: str, data: Path, subtasks: Sequence[str]) -> Parts:
    """The files of a task, every row checked; ``subtasks`` are those of BLiMP."""
    benchmark = BY_NAME[task]
    folder = _folder(benchmark, data)
    if task != "blimp":
        found = _first_split(benchmark, folder)
        if found is None:
            raise InputError(f"{folder}: has no {_wanted(benchmark)}")
        parts = {task: found}
    else:
        parts = _subtask_parts(benchmark, folder, subtasks)
    for part in parts.values():
        for file in part.files:
            _check_rows(file, benchmark)
    return parts


def check_data(tasks: Sequence[str], data: Path) -> None:
    """Refuse a data folder in which a task has no place, and say which tasks have one."""
    if not data.is_dir():
        raise InputError(f"{data}: is not a folder; --data takes one\n{layout()}")
    wanted = [task for task in tasks if task != DIAGNOSTIC]
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
    return "\n".join(f"expected: {BY_NAME[task].folders[0]}/{_wanted(BY_NAME[task])}"
                     for task in tasks if task in BY_NAME)  # fmt: skip


def sums(parts: Parts, data: Path) -> dict[str, str]:
    """A sha256 for each file, by its place in the data folder."""
    files = [file for part in parts.values() for file in part.files]
    return {str(file.relative_to(data)): file_sha256(file) for file in files}


def _wanted(benchmark: Benchmark) -> str:
    stem = "<subtask>" if benchmark.name == "blimp" else " or ".join(benchmark.splits)
    return f"{stem} ({', '.join(FORMATS)}) with {benchmark.expected}"


def _folders(benchmark: Benchmark, data: Path) -> list[Path]:
    return [data / name for name in benchmark.folders if (data / name).is_dir()]


def _folder(benchmark: Benchmark, data: Path) -> Path:
    found = _folders(benchmark, data)
    if not found:
        raise InputError(f"{data}: expected {benchmark.folders[0]}/{_wanted(benchmark)}")
    return found[0]


def _first_split(benchmark: Benchmark, folder: Path) -> Part | None:
    for split in benchmark.splits:
        files = _files(folder, split)
        if files:
            return Part(files, split)
    return None


def _subtask_parts(benchmark: Benchmark, folder: Path, subtasks: Sequence[str]) -> Parts:
    (split,) = benchmark.splits
    found = {
        name: _files(folder, name) or _files(folder / name, split)  # ours, or as on the hub
        for name in subtasks
    }
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
    return tuple(next(iter(found.values()), ()))


def _check_rows(file: Path, benchmark: Benchmark) -> None:
    count = 0
    for where, row in _rows(file):
        count += 1
        if not isinstance(row, dict) or not benchmark.sound(row):
            found = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            raise InputError(
                f"{file}, {where}: is no row of {benchmark.name}; expected "
                f"{benchmark.expected}; found {found}"
            )
    if count == 0:
        raise InputError(f"{file}: has no rows; expected {benchmark.expected}")


def _rows(file: Path) -> Iterator[tuple[str, Row]]:
    """Each row with where it is."""
    return _parquet_rows(file) if file.suffix == ".parquet" else _json_rows(file)


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

    number = 0
    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{file}: is no sound parquet file: {error}") from None
