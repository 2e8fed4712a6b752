"""One cell of a study: what its run folder holds, and what is still to do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from prism_transformer.analysis import PROFILE_FILE
from prism_transformer.errors import RunError
from prism_transformer.recipe import differences
from prism_transformer.study.file import Study, StudyError
from prism_transformer.study.plan import Cell, Plan
from prism_transformer.study.table import RUNS
from prism_transformer.train.run import (
    checkpoint_folder,
    checkpoints,
    is_run,
    read_metrics,
    read_run,
)

LOSS_FILE = "loss.json"
INFERENCE_FILE = "inference.json"

Values = tuple[float, float]
"""Validation loss at the end, and tokens per second."""


class CellFailed(RunError):
    """One run of a study cannot be finished; the others can."""


class Interrupted(RunError):
    """Somebody asked this process to stop; what it worked on goes back to the queue."""

    exit_code = 130


@dataclass(frozen=True)
class CellRun:
    """The run of a cell, which may not have begun."""

    study: Study
    cell: Cell
    folder: Path

    @property
    def begun(self) -> bool:
        """Whether there is a run."""
        return is_run(self.folder)

    @property
    def step(self) -> int:
        """How far its newest checkpoint is."""
        steps = (int(each.name.removeprefix("step-")) for each in checkpoints(self.folder))
        return max(steps, default=0)

    @property
    def eval_folder(self) -> Path:
        """Where results of its last checkpoint are."""
        return self.folder / "eval" / checkpoint_folder(self.folder, self.cell.recipe.n_steps).name

    @property
    def analysis_folder(self) -> Path:
        """Where what was measured of its last checkpoint is."""
        last = checkpoint_folder(self.folder, self.cell.recipe.n_steps).name
        return self.folder / "analysis" / last

    def check_recipe(self) -> None:
        """Refuse a run that was made by another recipe than the study's."""
        changed = differences(read_run(self.folder), self.cell.recipe) if self.begun else []
        # Shards are told apart by content: another machine may keep them elsewhere.
        changed = [line for line in changed if not line.startswith("data.folder:")]
        if changed:
            raise StudyError(
                f"{self.folder}: was run with another recipe than the study has now: "
                f"{'; '.join(changed)}; change the study back, or give it another --out"
            )

    def to_do(self, until: int) -> list[str]:
        """The stages that are not done: train, eval, loss, analyze, inference."""
        stages = [] if self.step >= until else ["train"]
        if until < self.cell.recipe.n_steps:
            return stages
        done = {
            "eval": self._evaluated,
            "loss": self._loss_measured,
            "analyze": self._analyzed,
            "inference": self._timed,
        }
        return stages + [stage for stage, is_done in done.items() if not is_done()]

    # What is there may have been made by hand, or by the study as it was, with other settings.

    def _evaluated(self) -> bool:
        stage = self.study.eval
        if stage is None:
            return True
        results = [_read(self.eval_folder / f"{task}.json") for task in stage.tasks]
        return all(
            each is not None and each["settings"]["limit"] == stage.limit for each in results
        )

    def _loss_measured(self) -> bool:
        stage, found = self.study.loss, _read(self.analysis_folder / LOSS_FILE)
        wanted = stage.sequences if stage else None
        return stage is None or (found is not None and wanted in (None, found["sequences"]))

    def _analyzed(self) -> bool:
        stage, found = self.study.analyze, _read(self.analysis_folder / PROFILE_FILE)
        return stage is None or (
            found is not None
            and found["profile"]["n_sequences"] == stage.sequences
            and found["text"].startswith("validation slice")
        )

    def _timed(self) -> bool:
        stage, found = self.study.inference, _read(self.analysis_folder / INFERENCE_FILE)
        return stage is None or (
            found is not None
            and (found["prompt"], found["rounds"]) == (stage.prompt, stage.rounds)
            and found["kinds"]["decoding"]["tokens"] == stage.new
        )

    def values(self, until: int) -> Values:
        """Validation loss at a step, and tokens per second up to there."""
        rows = [row for row in read_metrics(self.folder) if row["step"] <= until]
        losses = [r["loss"] for r in rows if r["kind"] == "val" and r["step"] == until]
        rates = [row["tokens_per_second"] for row in rows if row["kind"] == "train"]
        if not losses or not rates:
            raise CellFailed(f"{self.folder}: has no validation at step {until}")
        return losses[-1], median(rates)


def _read(file: Path) -> Any:
    """What a stage left behind; None where there is nothing, or nothing whole."""
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def run_of(plan: Plan, folder: Path, cell: Cell) -> CellRun:
    """The run of a cell in the folder of its study."""
    return CellRun(plan.study, cell, folder / RUNS / cell.name)
