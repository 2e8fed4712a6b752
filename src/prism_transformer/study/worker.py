"""Doing a cell: train, evaluate, measure, each by the function that its command calls too.

The name of a cell and a step come in; files in its run folder, and its loss and speed, come out. A
worker knows nothing of other workers: it does what the run folder lacks. So it may be killed at any
moment and started again anywhere, and a scheduler of another kind (Slurm, a cloud) only has to
start such a process.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from prism_transformer.analysis.profile import attention_profile
from prism_transformer.bench.measure import against
from prism_transformer.core.disk import appended, locked, plain_name
from prism_transformer.core.errors import sentence
from prism_transformer.core.progress import (
    Advance,
    Begun,
    Left,
    Note,
    Tell,
    silent,
    within,
)
from prism_transformer.core.sealed import write_sealed
from prism_transformer.eval.loss import text_loss
from prism_transformer.models.cost import utilisation_flops
from prism_transformer.recipe import Recipe
from prism_transformer.study.arms import Origin
from prism_transformer.study.launch import log_of, measure_together, train_together
from prism_transformer.study.plan import Cell, Plan
from prism_transformer.study.queue import CLAIMS
from prism_transformer.study.runs import (
    INFERENCE,
    INFERENCE_FILE,
    RUN,
    CellFailed,
    StudyRun,
    Values,
    run_of,
)
from prism_transformer.study.spec import EvalStage, InferenceStage, LossStage, Reading
from prism_transformer.training.api import resume, train
from prism_transformer.training.device import begin, compiling_pays, settle
from prism_transformer.training.measured import own_sums
from prism_transformer.training.neighbours import COMPILE, told
from prism_transformer.training.reslicing import reslice
from prism_transformer.training.run import checkpoint_folder, read_environment
from prism_transformer.training.stopping import Stopped

LOSS_BATCH = 8  # sequences of the training context at a time


@dataclass(frozen=True)
class Worker:
    """Does the cells of one study in one folder."""

    plan: Plan
    folder: Path
    processes: int = 1
    """that train and measure one cell together"""
    device: str = "auto"
    tell: Tell = silent
    """gets ``Of(cell name, event)``, and a note when a cell failed"""

    def do(self, name: str, until: int) -> Values:
        """Do all that a cell lacks up to a step, but for what needs the machine to itself."""
        cell = next((each for each in self.plan.cells if each.name == name), None)
        if cell is None:
            raise CellFailed(f"{name}: is not in {self.plan.file}; do all workers have the same?")
        run = run_of(self.plan, self.folder, cell)
        self._do_stages(run, run.queued(until), until)
        return run.values(until)

    def measure(self) -> None:
        """Measure the speed of every trained run that lacks it, one by one.

        To be called when no worker trains any more, since a busy machine is a slow one. What fails
        is told, and the run still lacks it.
        """
        # One process of this machine at a time, for the same reason.
        with locked(self.folder / CLAIMS / INFERENCE, wait=True):
            for run in (run_of(self.plan, self.folder, cell) for cell in self.plan.cells):
                if run.lacks_only_speed:
                    with suppress(CellFailed):
                        self._do_stages(run, [INFERENCE], run.cell.recipe.n_steps)

    def _do_stages(self, run: StudyRun, stages: Sequence[str], until: int) -> None:
        name, tell = run.cell.name, within(self.tell, run.cell.name)
        try:
            run.check_recipe()
            tell(Advance(RUN, 0, len(stages), "stages"))
            for done, stage in enumerate(stages, start=1):
                tell(Begun(stage))
                self._do(stage, run, until, tell)
                tell(Advance(RUN, done, len(stages), "stages"))
        except Stopped as error:  # not a failure: the queue takes the cell back, to be gone on with
            number = error.exit_code - 128
            raise Stopped(f"stopped {name}, saved; the same command goes on", number) from None
        # Whatever it is, it must not keep this worker from the other cells. CellFailed is the one
        # exception that the queue catches.
        except Exception as error:
            log = log_of(run.folder)
            log.parent.mkdir(parents=True, exist_ok=True)
            with appended(log) as stream:  # appended: the output of torchrun is in the same file
                stream.write(traceback.format_exc().encode("utf-8", "backslashreplace"))
            known = sentence(error)
            reason = known[0] if known else repr(error)
            tell(Left(RUN))
            self.tell(Note(f"FAILED  {name}: {reason}"))
            raise CellFailed(f"{name}: {reason}; see {log}") from error

    def _do(self, stage: str, run: StudyRun, until: int, tell: Tell) -> None:
        study, cell = run.study, run.cell
        if stage == "train":
            self._train(run, until, tell)
        elif stage == INFERENCE and study.inference:
            baseline = self.plan.cell(study.baseline, cell.point, cell.seed)
            _time_inference(run, study.inference, baseline.recipe, self.device)
        else:
            for step in run.lacking(stage):
                with _exact_products():
                    self._measure_checkpoint(stage, run, str(step), tell)

    def _measure_checkpoint(self, stage: str, run: StudyRun, step: str, tell: Tell) -> None:
        """Do a stage for the checkpoint at a step."""
        study, place = run.study, self.device
        if stage == "loss" and study.loss:
            for reading in run.unread(study.loss, int(step)):
                self._measure_loss(run, study.loss, reading, step, tell)
        elif self.processes > 1:
            line = [*_command(stage, run, step), "--device", place]
            measure_together(run, line, self.processes, tell)
        elif stage == "eval" and study.eval:
            _evaluate(run, study.eval, step, place, tell)
        elif stage == "analyze" and study.analyze:
            windows = study.analyze.sequences
            attention_profile(
                run.folder, checkpoint=step, sequences=windows, device=place, tell=tell
            )

    def _measure_loss(
        self, run: StudyRun, stage: LossStage, reading: Reading, step: str, tell: Tell
    ) -> None:
        """Measure the loss of the checkpoint at a step, in sequences of one length."""
        recipe, scaling = run.cell.recipe, reading.rope_scaling
        length, windows = reading.length(recipe), stage.windows(recipe) // reading.times
        batch, beyond = max(1, LOSS_BATCH // reading.times), reading.times > 1
        if self.processes > 1:
            line = ["loss", str(run.folder), "--checkpoint", step, "--keep", "--batch", str(batch)]
            line += ["--length", str(length), "--sequences", str(windows), "--device", self.device]
            line += ["--rope-scaling", scaling] if scaling else ["--extrapolate"] if beyond else []
            measure_together(run, line, self.processes, tell)
            return
        text_loss(
            run.folder, checkpoint=step, sequences=windows, batch=batch, length=length,
            rope_scaling=scaling, extrapolate=beyond and not scaling, device=self.device, tell=tell,
        ).write()  # fmt: skip

    def _train(self, run: StudyRun, until: int, tell: Tell) -> None:
        if run.cell.origin is not None and not run.begun:
            self._branch_off(run, run.cell.origin, tell)
        # torch.compile keeps at most 8 variants of a function, and those of the cell before count:
        # without this, a later cell would silently run uncompiled.
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        with told(shared_compiler(self.plan, self.folder, run.cell, self.device)):
            if self.processes > 1:
                train_together(run, until, self.processes, self.device, tell)
            elif run.begun:
                resume(run.folder, until=until, device=self.device, tell=tell)
            else:
                train(run.cell.recipe, run.folder, until=until, device=self.device, tell=tell)

    def _branch_off(self, run: StudyRun, origin: Origin, tell: Tell) -> None:
        """Begin a run from a checkpoint of another arm's, which is trained up to there first."""
        cell, folder = run.cell, self.folder
        before = run_of(self.plan, folder, self.plan.all.cell(origin.arm, cell.point, cell.seed))
        step = origin.step(cell.recipe)
        # The lock that a worker holds while it trains that run. No deadlock: a run that others
        # branch off has no origin itself, so its worker waits for none.
        with locked(folder / CLAIMS / plain_name(before.cell.name), wait=True):
            before.check_recipe()
            if before.step < step:
                self._train(before, step, tell)
            reslice(
                before.folder, cell.recipe.model.schedule, run.folder, step=step, how=origin.map,
                recipe=cell.recipe, device=self.device, tell=tell,
            )  # fmt: skip


def shared_compiler(plan: Plan, folder: Path, cell: Cell, device: str) -> dict[str, str]:
    """Whether a run with ``compile = "auto"`` is compiled, as environment variables.

    Compiled code rounds differently, so all arms must be treated alike. Hence the whole study
    decides, not what is left of it; and once a run has begun, all others follow it.
    """
    if cell.recipe.train.compile != "auto":
        return {}
    for other in plan.cells:
        run = run_of(plan, folder, other)
        sessions = read_environment(run.folder)["sessions"] if run.begun else []
        if other.recipe.train.compile == "auto" and other.point == cell.point and sessions:
            known = "on" if sessions[0]["compiled"] else "off"
            return {COMPILE: f"{known}: as {other.name}, the first run of this study"}
    runs = [each for each in plan.cells if each.recipe.train.compile == "auto"]
    model = cell.recipe.model
    flops = cell.recipe.train.tokens * utilisation_flops(model, model.seq_len)
    where = settle(cell.recipe, device).device.type
    pays = compiling_pays(flops, where, len(runs))
    known, end = ("on", "share compiled code") if pays else ("off", "are over before that pays")
    return {COMPILE: f"{known}: the study's {len(runs)} runs of {flops:.0e} FLOPs {end}"}


def _command(stage: str, run: StudyRun, step: str) -> list[str]:
    """The command that measures the same, for processes that share the work."""
    study, line = run.study, [stage, str(run.folder), "--checkpoint", step]
    options: dict[str, object] = {}
    if stage == "eval" and study.eval:
        options = {"batch": study.eval.batch, "data": study.eval.data, "limit": study.eval.limit}
        line += ["--tasks", *study.eval.tasks]
    elif study.analyze:
        options = {"sequences": study.analyze.sequences}
    given = {name: value for name, value in options.items() if value is not None}
    return [*line, *(part for name in given for part in (f"--{name}", str(given[name])))]


@contextmanager
def _exact_products() -> Iterator[None]:
    """No TF32, which training allows on a GPU.

    It has 11 bits of precision, so whole numbers only up to 2048, and attention distance is
    measured with positions as values.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _evaluate(run: StudyRun, stage: EvalStage, step: str, device: str, tell: Tell) -> None:
    from prism_transformer.eval.harness import evaluate  # lm_eval takes seconds to import

    found = evaluate(
        run.folder, stage.tasks, data=stage.data, limit=stage.limit, checkpoint=step,
        batch=stage.batch, device=device, tell=tell,
    )  # fmt: skip
    if found.failures:
        raise CellFailed("; ".join(found.failures))


def _time_inference(run: StudyRun, stage: InferenceStage, baseline: Recipe, device: str) -> None:
    """Time arm and baseline in turn on this machine: rates of two machines do not compare."""
    models = (run.cell.recipe.model, baseline.model)
    settings = begin(settle(run.cell.recipe, device))
    facts = against(*models, stage.prompt, stage.new, stage.rounds, settings)
    model = own_sums(checkpoint_folder(run.folder, run.cell.recipe.n_steps))
    write_sealed(run.analysis_folder / INFERENCE_FILE, {**facts, "model": model})
