"""Running lm_eval: data first, then the model once, then task after task."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager
from rich.console import Console

from prism_transformer import __version__
from prism_transformer.errors import InputError
from prism_transformer.eval.files import layout
from prism_transformer.eval.model import WatchedLM, beginning, choose_device, open_model, quiet
from prism_transformer.eval.overlay import HUB, Planned, write_overlay
from prism_transformer.eval.results import (
    Facts,
    finished,
    item_table,
    metrics,
    table_rows,
    write_result,
)
from prism_transformer.eval.subjects import Subject, as_hf
from prism_transformer.eval.tasks import DIAGNOSTIC
from prism_transformer.folders import locked
from prism_transformer.hf.hub import hub_answers, only_cached
from prism_transformer.terminal import say, work_progress

PACKAGES = ("lm_eval", "transformers", "datasets", "torch")


@dataclass(frozen=True)
class Options:
    """How to evaluate."""

    limit: int | None = None
    """items of each task, the first ones; all when None"""
    dtype: str = "float32"
    batch: int = 16
    device: str = "auto"
    force: bool = False


@dataclass
class Outcome:
    """What came of one model."""

    subject: Subject
    results: dict[str, Facts] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """A task whose data are in memory."""

    objects: list[Any]
    """tasks and groups of lm_eval's"""
    splits: dict[str, str]
    fingerprints: dict[str, str]


def evaluate(
    console: Console,
    subjects: Sequence[Subject],
    tasks: Sequence[str],
    data: Path | None,
    options: Options,
) -> list[Outcome]:
    """Evaluate each model on each task; what is finished already is taken as it is."""
    if options.limit is not None and options.limit < 1:
        raise InputError(f"--limit {options.limit}: give at least 1")
    if options.batch < 1:
        raise InputError(f"--batch {options.batch}: give at least 1")
    device = choose_device(options.device)
    first = _rank() == 0  # under `accelerate launch`, the process that writes and speaks
    console.quiet = console.quiet or not first
    with TemporaryDirectory(prefix="prism-tasks-") as folder, quiet():
        planned = write_overlay(Path(folder), tasks, data)
        outcomes = [_begin(console, subject, planned, options) for subject in subjects]
        todo = [task for task in planned if any(task.name not in o.results for o in outcomes)]
        if not todo:
            return outcomes
        loaded, failures = _load(console, Path(folder), todo)
        for outcome in outcomes:
            mine = [task for task in todo if task.name not in outcome.results]
            outcome.failures |= {t.name: failures[t.name] for t in mine if t.name in failures}
            ready = [task for task in mine if task.name in loaded]
            if ready:
                with as_hf(outcome.subject) as source:
                    model = open_model(source, options.dtype, options.batch, device)
                    with locked(outcome.subject.out) if first else nullcontext():
                        _run(console, outcome, ready, loaded, options, model)
    return outcomes


def _begin(
    console: Console, subject: Subject, planned: Sequence[Planned], options: Options
) -> Outcome:
    """What is there already."""
    outcome = Outcome(subject)
    for task in planned:
        before = finished(subject.out, task.name, _settings(subject, task, options))
        if before is not None and not options.force:
            outcome.results[task.name] = before
            say(console, f"{task.name}: finished before, in {subject.out}; --force runs it again")
    return outcome


def _settings(subject: Subject, task: Planned, options: Options) -> Facts:
    """What a result depends on. Not the batch size: a test shows that."""
    return {
        "model": subject.sums,
        "data": task.data,
        "limit": options.limit,
        "dtype": options.dtype,
        "lm_eval": version("lm_eval"),
    }


def _load(
    console: Console, folder: Path, todo: Sequence[Planned]
) -> tuple[dict[str, Loaded], dict[str, str]]:
    """Read the data of every task, and say what is wrong with those that cannot be read."""
    manager = TaskManager(include_defaults=False, include_path=str(folder))
    offline = any(task.data == HUB for task in todo) and not hub_answers()
    loaded, failures = {}, {}
    for task in todo:
        with console.status(f"reading the data of {task.name}"):
            try:
                with only_cached() if offline and task.data == HUB else nullcontext():
                    loaded[task.name] = _loaded(manager, task)
            except Exception as error:  # the others are still to be run
                if offline and task.data == HUB:
                    raise InputError(
                        f"{task.name}: the Hugging Face hub cannot be reached, and the data are "
                        "not in its cache; give --data DIR, or --tasks diagnostic, which needs "
                        f"none\n{layout([task.name])}"
                    ) from None
                failures[task.name] = _reason(error)
    return loaded, failures


def _loaded(manager: TaskManager, task: Planned) -> Loaded:
    objects = [manager._load_spec(name) for name in task.loads]
    leaves = manager.load(objects)["tasks"]
    splits = {
        name: leaf.config.test_split if leaf.has_test_docs() else leaf.config.validation_split
        for name, leaf in leaves.items()
    }
    prints = {name: leaf.dataset[splits[name]]._fingerprint for name, leaf in leaves.items()}
    return Loaded(objects, splits, prints)


def _run(
    console: Console,
    outcome: Outcome,
    ready: Sequence[Planned],
    loaded: dict[str, Loaded],
    options: Options,
    model: WatchedLM,
) -> None:
    """Score task after task, each kept as soon as it is done."""
    subject = outcome.subject
    for task in ready:
        with _kept_apart(outcome.failures, task.name, model.world_size):
            started = perf_counter()
            with work_progress(console, task.name) as report:
                model.begin(report)
                raw = _score(model, loaded[task.name], options.limit)
            truncated = model.all_truncated()
            if raw is None:  # not the first of several processes
                continue
            items = item_table(raw.pop("samples"))
            result = _result(task, loaded[task.name], raw, model) | {
                "truncated_texts": truncated,
                "seconds": perf_counter() - started,
                "settings": _settings(subject, task, options),
            }
            outcome.results[task.name] = write_result(subject.out, task.name, result, items)
            _tell(console, result)


def _score(model: WatchedLM, loaded: Loaded, limit: int | None) -> Facts | None:
    return lm_eval.simple_evaluate(
        model, tasks=loaded.objects, task_manager=_NO_TASKS, num_fewshot=None, limit=limit
    )


# Tasks are handed over ready; this only keeps lm_eval from reading all of its own.
_NO_TASKS = TaskManager(include_defaults=False)


@contextmanager
def _kept_apart(failures: dict[str, str], task: str, n_processes: int) -> Iterator[None]:
    """Note the failure of one task, and go on; one of several processes cannot go on alone."""
    try:
        yield
    except InputError as error:
        if error.exit_code == 2 or n_processes > 1:
            raise
        failures[task] = str(error)
    except Exception as error:
        if n_processes > 1:
            raise
        failures[task] = _reason(error)


def _result(task: Planned, loaded: Loaded, raw: Facts, model: WatchedLM) -> Facts:
    return {
        "task": task.name,
        "diagnostic": task.name == DIAGNOSTIC,
        "rows": table_rows(task.name, raw, loaded.splits),
        "metrics": metrics(raw),
        "splits": loaded.splits,
        "task_versions": raw["versions"],
        "dataset_fingerprints": loaded.fingerprints,
        "versions": {"prism_transformer": __version__, **{p: version(p) for p in PACKAGES}},
        "batch": model.batch_size,
        "device": str(model.device),
        "processes": model.world_size,
        "beginning_of_text": beginning(model),
        "harness": raw,
    }


def _tell(console: Console, result: Facts) -> None:
    for row in result["rows"]:
        say(
            console,
            f"{row['task']}: {row['metric']} {row['value']:.5g}, {row['items']:,} items, "
            f"{result['seconds']:.0f} s",
        )
    if result["truncated_texts"]:
        say(
            console,
            f"{result['task']}: {result['truncated_texts']:,} texts are longer than the model's "
            "context and lost their beginning",
        )


def _reason(error: Exception) -> str:
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))
