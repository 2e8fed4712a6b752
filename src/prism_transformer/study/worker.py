"""Doing a cell: train, evaluate, measure, each by the verb that its command calls too.

A worker knows nothing of other workers: the queue hands it one cell at a time, and it does what the
run folder says is still to do. So it may be killed at any moment and started again anywhere, and a
launcher of another kind (Slurm, a cloud) needs only another way to start this process.
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
from prism_transformer.core.disk import appended, locked, plain_name, write_whole, writing
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
from prism_transformer.core.sealed import sealed_json
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
from prism_transformer.training.neighbours import COMPILE, told
from prism_transformer.training.reslicing import reslice
from prism_transformer.training.run import read_environment
from prism_transformer.training.stopping import Stopped

LOSS_BATCH = 8  # sequences at a time; attention is measured one by one, for its memory


@dataclass(frozen=True)
class Worker:
    """Does the cells of one study in one folder."""

    plan: Plan
    folder: Path
    processes: int = 1
    """that train and measure one cell together"""
    device: str = "auto"
    tell: Tell = silent
    """hears ``Of(cell name, event)``, and a note when a cell failed"""

    def do(self, name: str, until: int) -> Values:
        """Everything that is still to do with a cell, but for what needs the machine to itself."""
        cell = next((each for each in self.plan.cells if each.name == name), None)
        if cell is None:
            raise CellFailed(f"{name}: is not in {self.plan.file}; do all workers have the same?")
        run = run_of(self.plan, self.folder, cell)
        self._do_stages(run, run.queued(until), until)
        return run.values(until)

    def measure(self) -> None:
        """Measure the speed of every trained run that lacks it, one by one.

        Never beside other work of this study: when nobody trains any more, and one process at a
        time. What fails is told, and lacks it still.
        """
        with locked(self.folder / CLAIMS / INFERENCE, wait=True):
            for run in (run_of(self.plan, self.folder, cell) for cell in self.plan.cells):
                if run.begun and run.to_do(run.cell.recipe.n_steps) == [INFERENCE]:
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
        except Stopped as error:  # not a failure: the cell goes back to the queue as it is
            number = error.exit_code - 128
            raise Stopped(f"stopped {name}, saved; the same command goes on", number) from None
        except Exception as error:  # whatever it is, the other cells are still to be done
            log = log_of(run.folder)
            log.parent.mkdir(parents=True, exist_ok=True)
            with appended(log) as stream:  # torchrun's output is there already
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
            _infer(run, study.inference, baseline.recipe, self.device)
        else:
            for step in run.lacking(stage):
                with _exact_products():
                    self._look(stage, run, str(step), tell)

    def _look(self, stage: str, run: StudyRun, step: str, tell: Tell) -> None:
        """What a stage measures of the checkpoint at a step."""
        study, place = run.study, self.device
        if stage == "loss" and study.loss:
            for reading in run.unread(study.loss, int(step)):
                self._read(run, study.loss, reading, step, tell)
        elif self.processes > 1:
            line = [*_line(stage, run, step), "--device", place]
            measure_together(run, line, self.processes, tell)
        elif stage == "eval" and study.eval:
            _evaluate(run, study.eval, step, place, tell)
        elif stage == "analyze" and study.analyze:
            windows = study.analyze.sequences
            attention_profile(
                run.folder, checkpoint=step, sequences=windows, device=place, tell=tell
            )

    def _read(
        self, run: StudyRun, stage: LossStage, reading: Reading, step: str, tell: Tell
    ) -> None:
        """The loss of the checkpoint at a step, in sequences of one length."""
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
            self._leave(run, run.cell.origin, tell)
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()  # what was compiled for the cell before counts as a variant
        with told(shared_compiler(self.plan, self.folder, run.cell, self.device)):
            if self.processes > 1:
                train_together(run, until, self.processes, self.device, tell)
            elif run.begun:
                resume(run.folder, until=until, device=self.device, tell=tell)
            else:
                train(run.cell.recipe, run.folder, until=until, device=self.device, tell=tell)

    def _leave(self, run: StudyRun, origin: Origin, tell: Tell) -> None:
        """Begin a run where it leaves that of another arm, which is trained up to there first."""
        cell, folder = run.cell, self.folder
        before = run_of(self.plan, folder, self.plan.all.cell(origin.arm, cell.point, cell.seed))
        step = origin.step(cell.recipe)
        # Whoever trains that run holds this; a run that others leave waits for nobody itself.
        with locked(folder / CLAIMS / plain_name(before.cell.name), wait=True):
            before.check_recipe()
            if before.step < step:
                self._train(before, step, tell)
            reslice(
                before.folder, cell.recipe.model.schedule, run.folder, step=step, how=origin.map,
                recipe=cell.recipe, device=self.device, tell=tell,
            )  # fmt: skip


def shared_compiler(plan: Plan, folder: Path, cell: Cell, device: str) -> dict[str, str]:
    """Whether a run that leaves it to us is compiled, as environment variables.

    Arms must be treated alike. So this is decided by the study as a whole, never by what is left of
    it, and where runs are there already, they have decided.
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


def _line(stage: str, run: StudyRun, step: str) -> list[str]:
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
    """No TF32, which training allows on a GPU: it has no whole numbers beyond 2048."""
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


def _infer(run: StudyRun, stage: InferenceStage, baseline: Recipe, device: str) -> None:
    """Time arm and baseline in turn on this machine: rates of two machines do not compare."""
    models = (run.cell.recipe.model, baseline.model)
    settings = begin(settle(run.cell.recipe, device))
    facts = against(*models, stage.prompt, stage.new, stage.rounds, settings)
    with writing(run.analysis_folder):
        run.analysis_folder.mkdir(parents=True, exist_ok=True)
        write_whole(run.analysis_folder / INFERENCE_FILE, sealed_json(facts))
