"""Running lm_eval: data first, then the model once, then task after task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

from prism_transformer import __version__
from prism_transformer.core.disk import locked
from prism_transformer.core.errors import InputError, at_least_one, first_line
from prism_transformer.core.progress import Advance, Begun, Note, Tell, is_first_process, silent
from prism_transformer.eval.lm import WatchedLM, choose_device, quiet_harness
from prism_transformer.eval.pseudo import open_any
from prism_transformer.eval.results import (
    Evaluation,
    Facts,
    Outcome,
    finished,
    item_table,
    metrics,
    table_rows,
    write_result,
)
from prism_transformer.eval.task_data import HUB, Planned, layout, write_overlay
from prism_transformer.eval.tasks import BUILT_IN, choose_tasks, known_items
from prism_transformer.hf.export import as_hf
from prism_transformer.hf.load import (
    ALL,
    Source,
    hub_answers,
    model_sums,
    named_models,
    only_cached,
)

PACKAGES = ("lm_eval", "transformers", "datasets", "torch")
# Tasks are handed over ready; this only keeps lm_eval from reading all of its own.
_NO_TASKS = TaskManager(include_defaults=False)


@dataclass(frozen=True)
class Options:
    """What a result depends on besides model and data, and how it is computed."""

    limit: int | None = None
    """items of each task, the first ones; all when None"""
    dtype: str = "float32"
    batch: int = 16
    device: str = "auto"


@dataclass(frozen=True)
class Loaded:
    """A task whose data are in memory."""

    objects: list[Any]
    """tasks and groups of lm_eval's"""
    splits: dict[str, str]
    fingerprints: dict[str, str]


def evaluate(
    source: Source,
    tasks: Sequence[str] = (),
    *,
    data: Path | str | None = None,
    limit: int | None = None,
    checkpoint: str | None = None,
    out: Path | str | None = None,
    batch: int = 16,
    dtype: str = "float32",
    device: str = "auto",
    force: bool = False,
    tell: Tell = silent,
) -> Evaluation:
    """Score a model without examples; what is finished already is taken as it is.

    ``source`` is a run, a Hugging Face folder or a hub name; ``checkpoint`` one of a run's, or
    ``all``. ``tasks``: the six benchmarks when left out. ``data``: a folder with their files; they
    come from the hub when left out. Results go to ``out``, else to RUN/eval/step-N or eval/NAME.
    """
    chosen = choose_tasks(tasks)
    options = Options(limit, dtype, batch, choose_device(device))
    at_least_one(limit=limit, batch=batch)
    outcomes = _outcomes(source, checkpoint, None if out is None else Path(out))
    tell = tell if is_first_process() else silent
    with TemporaryDirectory(prefix="prism-tasks-") as folder, quiet_harness():
        planned = write_overlay(Path(folder), chosen, None if data is None else Path(data))
        for outcome in () if force else outcomes:
            _take_finished(outcome, planned, options, tell)
        todo = [task for task in planned if any(task.name not in o.results for o in outcomes)]
        if todo:
            # Data before models: what cannot be scored is known before weights are read, and what
            # several checkpoints are scored on is read once.
            loaded, failures = _load(Path(folder), todo, tell)
            for outcome in outcomes:
                mine = [task for task in todo if task.name not in outcome.results]
                outcome.failures |= {t.name: failures[t.name] for t in mine if t.name in failures}
                ready = [task for task in mine if task.name in loaded]
                if ready:
                    _run(outcome, ready, loaded, options, tell)
    return Evaluation(tuple(outcomes))


def _outcomes(source: Source, checkpoint: str | None, out: Path | None) -> list[Outcome]:
    """The models that were named, each with where its results go."""
    outcomes = []
    for model in named_models(source, checkpoint):
        if model.checkpoint is None:
            place = out or Path("eval") / Path(model.source).resolve().name
        elif out is None:
            place = model.home("eval")
        else:
            place = out / model.checkpoint.name if checkpoint == ALL else out
        outcomes.append(Outcome(model, place, model_sums(model)))
    return outcomes


def _take_finished(
    outcome: Outcome, planned: Sequence[Planned], options: Options, tell: Tell
) -> None:
    for task in planned:
        before = finished(outcome.out, task.name, _settings(outcome, task, options))
        if before is not None:
            outcome.results[task.name] = before
            tell(Note(f"{task.name}: finished before, in {outcome.out}; --force runs it again"))


def _settings(outcome: Outcome, task: Planned, options: Options) -> Facts:
    """What a result depends on. Not the batch size: a test shows that."""
    return {
        "model": outcome.sums,
        "data": task.data,
        "limit": options.limit,
        "dtype": options.dtype,
        "lm_eval": version("lm_eval"),
    }


def _load(
    folder: Path, todo: Sequence[Planned], tell: Tell
) -> tuple[dict[str, Loaded], dict[str, str]]:
    """Read the data of every task, and say what is wrong with those that cannot be read."""
    manager = TaskManager(include_defaults=False, include_path=str(folder))
    offline = any(task.data == HUB for task in todo) and not hub_answers()
    loaded, failures = {}, {}
    for task in todo:
        tell(Begun(f"reading the data of {task.name}"))
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
    outcome: Outcome,
    ready: Sequence[Planned],
    loaded: dict[str, Loaded],
    options: Options,
    tell: Tell,
) -> None:
    """Open a model and score task after task, each kept as soon as it is done."""
    with (
        as_hf(outcome.model) as source,  # what is published is what is measured
        # Under `accelerate launch` the first process writes; the others would find its lock.
        locked(outcome.out) if is_first_process() else nullcontext(),
    ):
        model = open_any(source, options.dtype, options.batch, options.device)
        for task in ready:
            with _noting_failure(outcome.failures, task.name, model.world_size):
                _run_task(outcome, task, loaded[task.name], options, model, tell)


def _run_task(
    outcome: Outcome, task: Planned, loaded: Loaded, options: Options, model: WatchedLM, tell: Tell
) -> None:
    started = perf_counter()
    model.begin(lambda done, total: tell(Advance(task.name, done, total, "texts")))
    raw: Facts | None = lm_eval.simple_evaluate(
        model, tasks=loaded.objects, task_manager=_NO_TASKS, num_fewshot=None, limit=options.limit
    )
    truncated = model.all_truncated()  # every process has to take part in this
    if raw is None:  # lm_eval gives the result to the first of several processes only
        return
    items = item_table(raw.pop("samples"))
    result = {
        "task": task.name,
        "diagnostic": task.name in BUILT_IN,
        "rows": table_rows(task.name, raw, loaded.splits),
        "metrics": metrics(raw),
        "splits": loaded.splits,
        "task_versions": raw["versions"],
        "dataset_fingerprints": loaded.fingerprints,
        "versions": {"prism_transformer": __version__, **{p: version(p) for p in PACKAGES}},
        "batch": model.batch_size,
        "device": str(model.device),
        "processes": model.world_size,
        "beginning_of_text": model.beginning(),
        "harness": raw,
        "truncated_texts": truncated,
        "seconds": perf_counter() - started,
        "settings": _settings(outcome, task, options),
    }
    outcome.results[task.name] = write_result(outcome.out, task.name, result, items)
    for line in _lines(result):
        tell(Note(line))


@contextmanager
def _noting_failure(failures: dict[str, str], task: str, n_processes: int) -> Iterator[None]:
    """Note the failure of one task and go on; one of several processes cannot go on alone."""
    try:
        yield
    except Exception as error:
        if n_processes > 1 or (isinstance(error, InputError) and error.exit_code == 2):
            raise
        failures[task] = str(error) if isinstance(error, InputError) else _reason(error)


def _lines(result: Facts) -> Iterator[str]:
    for row in result["rows"]:
        yield (
            f"{row['task']}: {row['metric']} {row['value']:.5g}, {row['items']:,} items, "
            f"{result['seconds']:.0f} s"
        )
        for known in known_items(row["task"], row["split"]):
            if row["items"] < known:
                yield f"{row['task']}: {row['items']:,} of the {known:,} items it is known to have"
    if result["truncated_texts"]:
        yield (
            f"{result['task']}: {result['truncated_texts']:,} texts are longer than the model's "
            "context and lost their beginning"
        )


def _reason(error: Exception) -> str:
    line, kind = first_line(error), type(error).__name__
    return kind if line == kind else f"{kind}: {line}"
