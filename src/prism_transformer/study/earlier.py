"""Runs that were collected before: cells of a study that need no run folder (``--with``).

A study can go on from folders that ``prism study collect`` wrote, when the study had other seeds,
arms or points, or on another machine. A collected run is one of the study's cells if its arm has
the same schedule and changes and its recipe is the same; names do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from prism_transformer.eval.tasks import shown_metrics
from prism_transformer.recipes.files import changed
from prism_transformer.study import metrics
from prism_transformer.study.arms import Arm
from prism_transformer.study.collected import Collected, RunFacts, read_collected
from prism_transformer.study.plan import Cell, Plan, training_differences
from prism_transformer.study.spec import Study, StudyError


@dataclass(frozen=True, eq=False)
class EarlierRun:
    """A complete run that a collected folder holds, as a cell of the study now."""

    cell: Cell
    folder: Path
    """of the collected study"""
    found: Collected
    then: RunFacts

    @property
    def facts(self) -> RunFacts:
        """What became of it, under the names that the study has now."""
        cell = self.cell
        now = {"arm": cell.arm, "point": cell.point, "seed": cell.seed, "run": cell.name}
        return self.then.model_copy(update=now)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its numbers, as ``collect`` reads them from a run folder."""
        frame = self._mine(self.found.table).astype(object)
        return [
            {str(key): value for key, value in row.items()}
            for row in frame.where(frame.notna(), None).to_dict("records")
        ]

    @property
    def items(self) -> pd.DataFrame:
        """Every item of its benchmarks."""
        return self._mine(self.found.items)

    @property
    def losses(self) -> dict[int, float]:
        """Validation loss by step."""
        rows = self._metric(metrics.VAL_LOSS)
        return {
            int(step): float(loss) for step, loss in zip(rows["step"], rows["value"], strict=True)
        }

    def values(self, step: int) -> tuple[float, float]:
        """Validation loss at a step, and tokens per second of the whole run."""
        if step not in self.losses:
            raise StudyError(f"--with {self.folder}: {self.then.run} has no loss at step {step}")
        return self.losses[step], float(self._metric(metrics.TOKENS_PER_SECOND)["value"].iloc[0])

    def missing(self, study: Study) -> list[str]:
        """Stages that the study asks for and whose numbers are not there."""
        names = set(self._mine(self.found.table)["metric"])
        tasks = study.eval.tasks if study.eval else []
        lengths = [
            metrics.loss_at_position(each.scaling, each.length(self.cell.recipe))
            for each in (study.loss.readings if study.loss else ())
            if each.times > 1
        ]
        needed = {
            "eval": [metrics.eval_score(*e) for t in tasks for e in shown_metrics(t).items()],
            "loss": [metrics.LOSS_AT_POSITION, *lengths],
            "analyze": [metrics.attention("distance")],
        }
        wanted = {
            stage: [metrics.at(name, share) for share in asked.at for name in needed[stage]]
            for stage, asked in study.stages.items()
        }
        wanted["inference"] = [metrics.inference("decoding")] if study.inference else []
        return [stage for stage, each in wanted.items() if not names.issuperset(each)]

    def _metric(self, name: str) -> pd.DataFrame:
        table = self._mine(self.found.table)
        return table[table["metric"] == name]

    def _mine(self, frame: pd.DataFrame) -> pd.DataFrame:
        then, cell = self.then, self.cell
        own = (frame["arm"] == then.arm) & (frame["point"] == then.point)
        mine = frame[own & (frame["seed"] == then.seed)]
        return mine.assign(arm=cell.arm, point=cell.point, seed=cell.seed)


def find_earlier(plan: Plan, folders: Sequence[Path]) -> dict[str, EarlierRun]:
    """Cells of a plan that collected folders hold complete, by name; the first folder counts."""
    found: dict[str, EarlierRun] = {}
    for folder in folders:
        collected = read_collected(folder)
        complete = [run for run in collected.facts.runs if run.state == "complete"]
        cells = ((_cell_of(plan, folder, collected, run), run) for run in complete)
        mine = [EarlierRun(cell, folder, collected, run) for cell, run in cells if cell]
        if not mine:
            raise StudyError(
                f"--with {folder}: none of its {len(complete)} complete runs is one of "
                f"{plan.file}, by arm, seed and swept values; leave it out"
            )
        for run in mine:
            if missing := run.missing(plan.study):
                raise StudyError(
                    f"--with {folder}: {run.then.run} has no {', '.join(missing)}, which "
                    f"{plan.file} asks for; leave out the folder, or those stages"
                )
            found.setdefault(run.cell.name, run)
    return found


def _cell_of(plan: Plan, folder: Path, collected: Collected, run: RunFacts) -> Cell | None:
    """The cell that a collected run is; None where the study has no such arm, seed or point."""
    facts = collected.facts
    arms = {each.name: Arm.of(each) for each in facts.arms}
    arm, baseline = arms[run.arm], arms[facts.baseline]
    same = [now.name for now in plan.arms if now.identity == arm.identity]
    point = facts.points[run.point]
    own = point | arm.changes | facts.tuned(arm.name)
    own |= {"model.schedule": str(arm.schedule), "train.seed": run.seed}
    # The recipe that is kept is the baseline's. Where its arm changes a key that this one leaves
    # as it was, nobody knows what it was.
    unknown = baseline.changes.keys() - own.keys()
    recipe = changed(facts.recipe, own, f"{folder}: {run.run}")
    for cell in plan.cells:
        if cell.arm in same and cell.seed == run.seed:
            wrong = training_differences(recipe, cell.recipe, unknown)
            if not wrong:
                return cell
            if named := [wrong[key] for key in wrong.keys() - point.keys() - plan.points[0].keys()]:
                raise StudyError(
                    f"--with {folder}: {run.run} was run with another recipe than {plan.file} has "
                    f"now: {'; '.join(sorted(named))}; leave it out, or change the study back"
                )
    return None
