"""The ground that faults happen on: a tiny corpus, run and study, and commands in processes.

Commands run in forks of this process, which has imported everything already: a case takes a
fraction of a second. What they end in is compared with the same made without any fault, by code
that is not the product's: bytes of shards, tensors of weights, rows of metrics, lines of tables.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors.numpy import load_file

Verdict = Literal["survived", "detected", "wrong"]

RECIPE = """
base = "base/nano"
[model]
schedule = "2x1 4x1"
d_model = 16
d_ff = 48
vocab_size = 257
seq_len = 16
[data]
corpus = "corpus.jsonl"
tokenizer = "bytes"
folder = "data"
val_tokens = 320
[train]
tokens = 1536
batch_tokens = 128
micro_batch = 4
[run]
val_every = 3
checkpoint_every = 3
attention_every = 6
"""
STUDY = """
base = "tiny.toml"
baseline = "uniform"
seeds = [0]
[arms]
uniform = "uniform:4"
prism = "2x1 4x1"
"""
STAGES = "[loss]\nsequences = 4\n[analyze]\nsequences = 2\n"
SEARCH = "\n[search]\nrungs = [0.5]\nkeep = 0.5\n"
VARYING = {"seconds", "data_seconds", "tokens_per_second", "utilisation", "memory_bytes"}
CLOCK = {"tokens_per_second", "seconds", "memory_bytes"}


@dataclass(frozen=True)
class Case:
    """One fault: its kind and the number that everything random in it is drawn from."""

    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.seed}"


@dataclass(frozen=True)
class Done:
    """What became of a command."""

    code: int
    """of its exit; negative, the signal that ended it"""
    said: str
    late: bool = False
    """it was still there when its time was over"""

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.said

    @property
    def plain(self) -> bool:
        """Whether it failed as a command should: a code of ours and a sentence."""
        return self.code in (1, 2, 130, 143) and "error:" in self.said and not self.traceback


def command(
    arguments: list[str],
    folder: Path,
    before: Callable[[], None] = lambda: None,
    seconds: float = 120,
) -> Done:
    """Run a command of ours in a fork; killed after so many seconds, or by ``before``'s doing."""
    said = os.memfd_create("said")  # not on a disk, which may be the full one
    child = os.fork()
    if child == 0:
        _become(arguments, folder, said, before)
    end, late = time.monotonic() + seconds, False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            end, late = float("inf"), True
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(status)
    with open(said, encoding="utf-8", errors="replace") as stream:
        stream.seek(0)  # the child has moved the place that both share
        return Done(code, stream.read(), late)


def _become(arguments: list[str], folder: Path, said: int, before: Callable[[], None]) -> None:
    """In the child: be the command, to the end of the process."""
    code = 99
    try:
        os.chdir(folder)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.argv = ["prism", *arguments]
        from prism_transformer.cli import main

        before()
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        sys.stdout.flush()
        os._exit(code)


# -- untouched, and compared with it -------------------------------------------------------------


@contextmanager
def quiet_home(folder: Path) -> Iterator[Path]:
    """A folder with corpus and recipes, ready for commands."""
    folder.mkdir(parents=True)
    documents = (
        {"text": f"{n}: " + " ".join(str((n * k) % 97) for k in range(40))} for n in range(60)
    )
    lines = "".join(json.dumps(each) + "\n" for each in documents)
    (folder / "corpus.jsonl").write_text(lines, "utf-8")
    (folder / "tiny.toml").write_text(RECIPE, "utf-8")
    (folder / "study.toml").write_text(STUDY + STAGES, "utf-8")
    (folder / "search.toml").write_text(STUDY + SEARCH, "utf-8")
    yield folder


PREPARE = ["prepare", "--recipe", "tiny.toml"]
SHARDS = ["prepare", "corpus.jsonl", "--tokenizer", "bytes", "--val-tokens", "320",
          "--shard-tokens", "900", "--out", "shards"]  # fmt: skip
TRAIN = ["train", "tiny.toml", "--out", "run", "--device", "cpu"]
RESUME = ["resume", "run", "--device", "cpu"]


def files_of(folder: Path, pattern: str = "*.bin") -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob(pattern)
    }


def end_of(run: Path) -> Any:
    """Weights, moments and metrics that a run ended with."""
    last = max((run / "checkpoints").glob("step-*"))
    tensors = {
        f"{file.name}/{name}": (value.shape, value.tobytes())
        for file in sorted(last.glob("*.safetensors"))
        for name, value in load_file(file).items()
    }
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    kept = [{key: row[key] for key in row.keys() - VARYING} for row in rows]
    return last.name, tensors, kept


def table_of(folder: Path) -> list[tuple[str, ...]]:
    """What no clock decides of a collected table, by the CSV file."""
    with (folder / "table.csv").open(encoding="utf-8", newline="") as stream:
        return sorted(tuple(row) for row in csv.reader(stream) if row[3] not in CLOCK)
