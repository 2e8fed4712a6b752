"""The verbs of studies: run one, tune it, help with one, compare runs.

Each takes a study as ``load_study`` (folder.py) gives it, or its file. Each goes on from what run
folders hold, so it may be killed at any moment and called again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike, fspath
from pathlib import Path

from prism_transformer.core.errors import InputError, at_least_one
from prism_transformer.core.progress import Tell, silent
from prism_transformer.study.collect import collect
from prism_transformer.study.collected import (
    COLLECTED,
    Collected,
    is_collected,
    read_collected,
)
from prism_transformer.study.compare import Comparison, compare
from prism_transformer.study.folder import Source, StudyFolder, load_study
from prism_transformer.study.forecast import shares_of
from prism_transformer.study.peeking import looked_again
from prism_transformer.study.queue import Queue
from prism_transformer.study.runs import CellFailed
from prism_transformer.study.sentences import sentences
from prism_transformer.study.sharing import ALONE, HEARTBEAT, Crew, Workers
from prism_transformer.study.single_runs import collect_runs
from prism_transformer.study.spec import packaged_studies


@dataclass(frozen=True)
class StudyResult:
    """What a study found."""

    collected: Collected
    """every number"""
    comparison: Comparison
    """every arm against the baseline, and the study's contrasts"""
    failures: Mapping[str, str]
    """why runs failed, by their name"""

    @property
    def sentences(self) -> list[str]:
        """What can be said of arms and contrasts, and no more than their seeds can bear."""
        return sentences(self.comparison)

    def __str__(self) -> str:
        return "\n".join([str(self.comparison.table), *self._lines()])

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{escape(line)}</p>" for line in self._lines())
        return self.comparison.table._repr_html_() + lines

    def _lines(self) -> list[str]:
        failed = [f"FAILED  {name}: {reason}" for name, reason in self.failures.items()]
        return self.sentences + failed


def run_study(
    study: Source,
    *,
    device: str = "auto",
    workers: Workers = 1,
    processes: int | None = None,
    heartbeat: int = HEARTBEAT,
    tell: Tell = silent,
) -> StudyResult:
    """Do everything that is not done yet, then collect and compare; first tune what is to be.

    ``workers`` train runs side by side, each in a process with devices of its own; one works in
    this process, and ``"auto"`` means what this machine has room for. ``processes`` train one run
    together, as many as the study says when left out. A run that fails does not keep the others
    from being finished.
    """
    crew = Crew(device, workers, processes, heartbeat)
    opened = load_study(study)
    check_crew(opened, crew)
    opened = tune_study(opened, crew, tell=tell)
    prepare_data(opened, tell)
    queue = opened.queue(crew.heartbeat)
    opened.begin(queue)
    finish_queue(opened, queue, crew, tell)
    collected = opened.collect()
    return StudyResult(collected, compare(collected), _failures(opened))


def tune_study(study: Source, crew: Crew = ALONE, *, tell: Tell = silent) -> StudyFolder:
    """Find the learning rate of every arm that has none, as [tune] says; the study with them."""
    opened = load_study(study)
    while opened.plan.untuned:
        opened = tune_round(opened, crew, tell=tell)
    return opened


def tune_round(study: Source, crew: Crew = ALONE, *, tell: Tell = silent) -> StudyFolder:
    """Train what is known to be needed for the rates; the study with those that are found now.

    Arms that are best at the end of their rates need more of them: another round.
    """
    opened = load_study(study)
    opened.check_stuck()
    tuner = opened.tuner
    prepare_data(tuner, tell)
    queue = tuner.queue(crew.heartbeat)
    tuner.begin(queue, tuner.left)
    finish_queue(tuner, queue, crew, tell)
    if left := [cell.name for cell, _ in tuner.left]:
        failures = tuner.failures()
        unseen = "is done by a machine whose folders are not here; bring them"
        raise CellFailed(
            f"{opened.plan.file}: without {len(left)} of the runs that tune it there are no rates: "
            f"{left[0]}: {failures.get(left[0], unseen)}"
        )
    return load_study(opened)


def work_on(study: Source, crew: Crew = ALONE, *, tell: Tell = silent) -> dict[str, str]:
    """Help with a study that was begun elsewhere, until nothing is left; why runs failed.

    As many processes and machines as there are may do this at once.
    """
    opened = load_study(study)
    check_crew(opened, crew)
    opened.check()
    if opened.plan.untuned:
        opened.tuner.queue(crew.heartbeat).check()  # refused where nobody has begun it
        opened = tune_study(opened, crew, tell=tell)
        opened.begin(opened.queue(crew.heartbeat))
    queue = opened.queue(crew.heartbeat)
    queue.check()  # before data are prepared for nothing
    prepare_data(opened, tell)
    # Between two rungs of a search the queue is empty, and more will come.
    finish_queue(opened, queue, crew, tell, stay=True)
    return _failures(opened)


def collected_of(source: Source, out: PathLike[str] | str | None = None) -> Collected:
    """What a study has found so far, or what a folder written by ``collect`` holds.

    Nothing is written.
    """
    if not isinstance(source, StudyFolder) and is_collected(Path(source)):
        return read_collected(Path(source))
    study = load_study(source, out)
    if not study.collected and not any(run.begun for run in study.runs):
        plan = study.plan
        shipped = packaged_studies().get(plan.name) == plan.file
        command = plan.command if shipped else f"prism study run {plan.file}"
        raise InputError(
            f"{study.folder}: no run of {plan.name} has begun, so there is nothing to compare; "
            f"begin with: {command}"
        )
    found = collect(study.plan, [study.folder], study.failures(), study.collected, study.tuning)
    return looked_again(found, study.folder / COLLECTED)


def compare_runs(runs: Sequence[PathLike[str] | str], baseline: str | None = None) -> StudyResult:
    """Hold runs of no study against each other, as a study would: seed by seed, or not at all.

    Runs of one schedule and otherwise one recipe are an arm. The first run's is the baseline,
    unless another is named, by a run's folder, its name with or without the seed, or its schedule.
    """
    if len(runs) < 2:
        raise InputError("name at least two runs, as in prism compare runs/uniform runs/prism")
    found = collect_runs([Path(run) for run in runs], baseline or fspath(runs[0]))
    if len(found.arms) < 2:
        raise InputError(
            f"all runs are of one arm, {found.facts.arms[0].schedule}: there is nothing to compare"
        )
    return StudyResult(found, compare(found), {})


def check_crew(study: StudyFolder, crew: Crew) -> None:
    """Refuse options that no worker could use, before anything is written."""
    from prism_transformer.training.device import settle

    at_least_one(processes=crew.processes, heartbeat=crew.heartbeat)
    settle(study.plan.base, crew.device)
    shares_of(study, crew)


def _failures(study: StudyFolder) -> dict[str, str]:
    """Why runs failed, those included that were trained and could not be measured."""
    lack = "its speed of inference could not be measured"
    unmeasured = {
        run.cell.name: f"{lack}; see {run.folder}.log" for run in study.runs if run.lacks_only_speed
    }
    return unmeasured | study.failures()


def prepare_data(study: StudyFolder, tell: Tell) -> None:
    """Make the shards of every recipe that has none, each folder once.

    What is there and would not be a fair part of the study is refused first: preparing may take
    hours.
    """
    from prism_transformer.data.prepare import ensure_prepared

    study.check()
    recipes = {run.cell.recipe.data.folder: run.cell.recipe for run in study.runs}
    for recipe in recipes.values():
        ensure_prepared(recipe, tell=tell)


def finish_queue(
    study: StudyFolder, queue: Queue, crew: Crew, tell: Tell, *, stay: bool = False
) -> None:
    """Work until the queue is empty, and with ``stay`` until a search says that it has ended.

    Then measure the speed of inference, for which no other worker may run.
    """
    # Here, because these import torch, which plans and status do without.
    from prism_transformer.study.pool import Pool
    from prism_transformer.study.process import Task
    from prism_transformer.study.worker import Worker

    def more() -> bool:
        return stay and not queue.finished()

    together, device = crew.together(study.plan.study.processes), crew.device
    shares = shares_of(study, crew)
    on_gpu = bool(shares.each[0].gpus)
    worker = Worker(study.plan, study.folder, together, device, tell)
    if crew.workers == 1 or (len(shares) == 1 and not on_gpu):  # another process would gain nothing
        queue.work(worker.do, more)
        worker.measure()
        return
    # On a GPU, a new process for each cell (only_one): memory is free for certain only when the
    # process that used it has ended, and the seconds that a start takes do not matter beside such
    # a run. On a CPU they do, and the next cell uses the memory of the one before.
    task = Task(
        study.plan, study.folder.absolute(), study.storage, queue.heartbeat, together, device,
        frozenset(each.cell.name for each in study.earlier), only_one=on_gpu,
    )  # fmt: skip
    pool = Pool(task, shares, queue, tell)
    pool.run(more)
    if not on_gpu:
        worker.measure()
    elif any(run.lacks_only_speed for run in study.runs):
        pool.measure()
