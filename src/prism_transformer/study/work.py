"""Doing a cell: train, evaluate, measure. Every stage goes on where it was left."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Protocol

from prism_transformer.analysis.profile import attention_profile
from prism_transformer.bench.inference import against
from prism_transformer.errors import InputError
from prism_transformer.eval.loss import measure_loss
from prism_transformer.eval.source import open_source
from prism_transformer.folders import write_whole
from prism_transformer.hf.convert import to_hf
from prism_transformer.recipe import Recipe
from prism_transformer.study.cell import (
    INFERENCE_FILE,
    LOSS_FILE,
    CellFailed,
    CellRun,
    Interrupted,
    Values,
    run_of,
)
from prism_transformer.study.plan import Cell, Plan
from prism_transformer.terminal import make_console
from prism_transformer.train.device import settle
from prism_transformer.train.distributed import join_world
from prism_transformer.train.job import new_job, resumed_job
from prism_transformer.train.loop import train
from prism_transformer.train.run import METRICS_FILE, Row

BATCH = 8  # sequences at a time where a model is only looked at


class Watcher(Protocol):
    """Somebody who is told what happens."""

    def begin(self, cell: Cell, until: int) -> None:
        """A cell is taken up."""

    def stage(self, what: str) -> None:
        """What is being done with it now."""

    def row(self, row: Row) -> None:
        """A row of its metrics."""

    def end(self, cell: Cell, outcome: Values | str) -> None:
        """It is done, or failed with a reason."""


@dataclass(frozen=True)
class Worker:
    """Does the cells of one study in one folder."""

    plan: Plan
    folder: Path
    watcher: Watcher
    processes: int = 1
    """that train one cell together"""
    device: str = "auto"

    def do(self, name: str, until: int) -> Values:
        """Everything that is still to do with a cell."""
        cell = next((each for each in self.plan.cells if each.name == name), None)
        if cell is None:
            raise CellFailed(f"{name}: is not in {self.plan.file}; do all workers have the same?")
        run = run_of(self.plan, self.folder, cell)
        self.watcher.begin(cell, until)
        try:
            run.check_recipe()
            for stage in run.to_do(until):
                self.watcher.stage(stage)
                self._do(stage, run, until)
            values = run.values(until)
        except Interrupted:
            raise
        except Exception as error:  # whatever it is, the other cells are still to be done
            run.folder.parent.mkdir(parents=True, exist_ok=True)
            with log_of(run.folder).open("a", encoding="utf-8") as log:  # torchrun wrote there, too
                log.write(traceback.format_exc())
            reason = str(error) if isinstance(error, InputError) else repr(error)
            self.watcher.end(cell, reason)
            raise CellFailed(f"{name}: {reason}; see {log_of(run.folder)}") from error
        self.watcher.end(cell, values)
        return values

    def _do(self, stage: str, run: CellRun, until: int) -> None:
        if stage == "train":
            self._train(run, until)
        elif stage == "eval":
            _evaluate(run, self.device)
        elif stage == "loss":
            _loss(run)
        elif stage == "analyze":
            _analyze(run)
        else:
            cell = run.cell
            baseline = self.plan.cell(self.plan.study.baseline, cell.point, cell.seed)
            _infer(run, baseline.recipe, self.device)

    def _train(self, run: CellRun, until: int) -> None:
        if self.processes > 1:
            _train_together(run, until, self.processes, self.device, self.watcher.row)
        else:
            _train_here(run, until, self.device, self.watcher.row)


def log_of(folder: Path) -> Path:
    """Where to read what went wrong with a run; beside it, for there may be no run."""
    return folder.with_name(f"{folder.name}.log")


def _train_here(run: CellRun, until: int, device: str, tell: Callable[[Row], None]) -> None:
    recipe = run.cell.recipe
    settings = settle(recipe, device)
    with join_world(settings.device) as world:
        opened = (
            resumed_job(run.folder, recipe, settings, world, [])
            if run.begun
            else new_job(run.folder, recipe, settings, world)
        )
        with opened as job:
            for row in train(job, until):
                tell(row)
            if job.step < until:
                raise Interrupted(f"stopped at step {job.step} of {run.cell.name}, saved")


def _train_together(
    run: CellRun, until: int, processes: int, device: str, tell: Callable[[Row], None]
) -> None:
    """Train under torchrun, as `prism train` would be launched by hand."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc-per-node", str(processes), "-m", "prism_transformer"]
    recipe_file = run.folder.with_name(f"{run.folder.name}.toml")
    if run.begun:
        launch += ["resume", str(run.folder)]
    else:
        from prism_transformer.recipe_file import recipe_toml

        run.folder.parent.mkdir(parents=True, exist_ok=True)
        write_whole(recipe_file, recipe_toml(run.cell.recipe))
        launch += ["train", str(recipe_file), "--out", str(run.folder)]
    log = log_of(run.folder)
    with log.open("ab") as stream:
        job = subprocess.Popen(
            [*launch, "--until", str(until), "--device", device],
            stdout=stream,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,
        )
        for row in _follow(run.folder / METRICS_FILE, job):
            tell(row)
    recipe_file.unlink(missing_ok=True)
    if job.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT):
        raise Interrupted(f"stopped {run.cell.name}, saved")
    if job.returncode:
        last = log.read_text("utf-8", "replace").strip().splitlines()[-3:]
        raise CellFailed(f"torchrun exited with {job.returncode}; {log}: {' / '.join(last)}")


def _die_with_parent() -> None:
    """Ask the system to end torchrun when the worker is killed: nobody would watch over it."""
    ask_for_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(ask_for_signal, signal.SIGTERM)


def _follow(file: Path, job: subprocess.Popen[bytes]) -> Iterator[Row]:
    """New rows of a run's metrics while it is being trained by others."""
    seen = file.stat().st_size if file.exists() else 0
    rest = b""
    while True:
        ended = job.poll() is not None
        with suppress(FileNotFoundError), file.open("rb") as stream:
            seen = min(seen, file.stat().st_size)  # going on cuts off what no checkpoint has
            stream.seek(seen)
            rest += stream.read()
            seen = stream.tell()
        *lines, rest = rest.split(b"\n")
        for line in lines:
            with suppress(ValueError):
                yield json.loads(line)
        if ended:
            return
        try:
            sleep(0.5)
        except KeyboardInterrupt:  # torchrun has heard it, too, and is saving
            job.wait()


def _evaluate(run: CellRun, device: str) -> None:
    from prism_transformer.eval.harness import Options, evaluate
    from prism_transformer.eval.subjects import find_subjects

    stage = run.study.eval
    assert stage is not None
    console = make_console(stderr=True)
    console.quiet = True
    subjects = find_subjects(str(run.folder), None, None)
    data = None if stage.data is None else Path(stage.data)
    options = Options(stage.limit, batch=stage.batch, device=device)
    for outcome in evaluate(console, subjects, stage.tasks, data, options):
        for task, reason in outcome.failures.items():
            raise CellFailed(f"{task}: {reason}")


def _loss(run: CellRun) -> None:
    assert run.study.loss is not None
    source = open_source(str(run.folder))
    count = run.study.loss.sequences or source.n_scored or len(source.rows)
    found = measure_loss(to_hf(source.model), source.batches(count, BATCH))  # type: ignore[arg-type]
    facts = {"sequences": found.n_sequences, "loss": found.mean, "by_position": found.doubling()}
    source.home.mkdir(parents=True, exist_ok=True)
    write_whole(source.home / LOSS_FILE, json.dumps(facts, indent=1) + "\n")


def _analyze(run: CellRun) -> None:
    assert run.study.analyze is not None
    source = open_source(str(run.folder))
    batches = source.batches(run.study.analyze.sequences, 1)
    profile = attention_profile(source.model, (rows[:, :-1] for rows in batches))
    profile.write(source.home, {"source": run.folder.name, "text": source.text})


def _infer(run: CellRun, baseline: Recipe, device: str) -> None:
    stage = run.study.inference
    assert stage is not None
    models = (run.cell.recipe.model, baseline.model)
    settings = settle(run.cell.recipe, device)
    facts = against(*models, stage.prompt, stage.new, stage.rounds, settings)
    run.analysis_folder.mkdir(parents=True, exist_ok=True)
    write_whole(run.analysis_folder / INFERENCE_FILE, json.dumps(facts, indent=1) + "\n")
