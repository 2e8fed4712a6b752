"""The runs of a study: what their folders hold, what is still to do, and whether they compare.

What is done is decided here, from the files in run folders alone and never from the queue, so that
nothing is lost with a queue or a worker.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from prism_transformer.analysis import PROFILE_FILE
from prism_transformer.core.errors import InputError, RunError
from prism_transformer.eval import SLICE
from prism_transformer.recipe import Recipe, differences
from prism_transformer.study import spec
from prism_transformer.study.collected import RUNS, RunHashes
from prism_transformer.study.earlier import EarlierRun
from prism_transformer.study.plan import Cell, Plan, training_differences
from prism_transformer.study.spec import Study, StudyError
from prism_transformer.training.measured import read_measured
from prism_transformer.training.run import (
    DUMP,
    RECIPE_FILE,
    Row,
    checkpoint_folder,
    checkpoints,
    is_run,
    read_environment,
    read_metrics,
    read_run,
    trained_recipe,
)

INFERENCE_FILE = "inference.json"
INFERENCE = "inference"  # the stage that measures speed, and so has the machine to itself
RUN = "run"  # the name of a worker's progress on one cell, which advances stage by stage

# What proves that two runs started alike and saw the same data, with its name in errors.
HASHES = {
    "initial_weights": "initial weights",
    "data_order": "the order of the data",
    "shards": "the shards",
}

Values = tuple[float, float]
"""Validation loss at the end, and tokens per second."""


class CellFailed(RunError):
    """One run of a study cannot be finished; the others can."""


@dataclass(frozen=True)
class StudyRun:
    """The run of a cell, which may not have begun."""

    study: Study
    cell: Cell
    folder: Path

    @property
    def begun(self) -> bool:
        return is_run(self.folder)

    @property
    def step(self) -> int:
        """How far its newest checkpoint is."""
        steps = (int(each.name.removeprefix("step-")) for each in checkpoints(self.folder))
        return max(steps, default=0)

    @property
    def diverged(self) -> bool:
        """Whether its loss or gradient became NaN or infinite; it would again."""
        return any(self.folder.glob(f"{DUMP}*"))

    @property
    def eval_folder(self) -> Path:
        """Where scores of its last checkpoint are."""
        return self.at_step(self.cell.recipe.n_steps)[0]

    @property
    def analysis_folder(self) -> Path:
        """Where what else was measured of its last checkpoint is."""
        return self.at_step(self.cell.recipe.n_steps)[1]

    def at_step(self, step: int) -> tuple[Path, Path]:
        """Where scores of a checkpoint are, and where what else was measured of it is."""
        name = checkpoint_folder(self.folder, step).name
        return self.folder / "eval" / name, self.folder / "analysis" / name

    def check_recipe(self) -> None:
        """Refuse a run that was made by another recipe than the study's."""
        changed = differences(read_run(self.folder), self.cell.recipe) if self.begun else []
        # Shards are compared by content (check_fair): another machine may keep them elsewhere.
        changed = [line for line in changed if not line.startswith("data.folder:")]
        if changed:
            raise StudyError(
                f"{self.folder}: was run with another recipe than the study has now: "
                f"{'; '.join(changed)}; change the study back, or give it another --out"
            )

    def check_kept(self) -> None:
        """Refuse a recipe.toml that is not what the run was last trained with."""
        kept = trained_recipe(self.folder)
        if changed := differences(kept, read_run(self.folder)):
            raise StudyError(
                f"{self.folder / RECIPE_FILE}: is not what the run was trained with: "
                f"{'; '.join(changed)}; put it back, or `prism resume {self.folder}`"
            )

    def to_do(self, until: int | None = None) -> list[str]:
        """The stages that are not done: train, eval, loss, analyze, inference.

        ``until`` is the step to train to, the last one when left out.
        """
        last = self.cell.recipe.n_steps
        until = last if until is None else until
        stages = [] if self.step >= until else ["train"]
        if until < last:  # a rung of a search: only finished runs are measured
            return stages
        stages += [name for name in self.study.stages if self.lacking(name)]
        speed = self.study.inference
        return stages if speed is None or self._timed(speed) else [*stages, INFERENCE]

    def lacking(self, stage: str) -> list[int]:
        """The steps of training at which a stage is not done."""
        done: dict[str, Callable[[Any, int], bool]] = {
            "eval": self._evaluated,
            "loss": lambda stage, step: not self.unread(stage, step),
            "analyze": self._analyzed,
        }
        wanted = self.study.stages[stage]
        steps = wanted.steps(self.cell.recipe).values()
        return [step for step in dict.fromkeys(steps) if not done[stage](wanted, step)]

    def queued(self, until: int | None = None) -> list[str]:
        """Those that workers may do side by side: all but the one that measures speed."""
        return [stage for stage in self.to_do(until) if stage != INFERENCE]

    @property
    def lacks_only_speed(self) -> bool:
        """Whether all is done but the stage that must have the machine to itself."""
        return self.begun and self.to_do() == [INFERENCE]

    # A file alone does not prove that its stage is done: it may have been made by hand, or by the
    # study as it was before, with other settings. So each of these compares what the file says.

    def _evaluated(self, wanted: spec.EvalStage, step: int) -> bool:
        folder, _ = self.at_step(step)
        results = [_read(folder / f"{task}.json") for task in wanted.tasks]
        return all(each and each["settings"]["limit"] == wanted.limit for each in results)

    def unread(self, wanted: spec.LossStage, step: int) -> list[spec.Reading]:
        """Lengths and scalings at which the loss of a checkpoint is not measured."""
        recipe, (_, folder) = self.cell.recipe, self.at_step(step)
        windows = wanted.windows(recipe)

        def done(reading: spec.Reading) -> bool:
            kept = _read(folder / reading.file(recipe))
            same = kept and kept["sequences"] * reading.times == windows
            return bool(same) and kept.get("text", SLICE).startswith(SLICE)  # older ones say none

        return [reading for reading in wanted.readings if not done(reading)]

    def _analyzed(self, wanted: spec.AnalyzeStage, step: int) -> bool:
        _, folder = self.at_step(step)
        kept = _read(folder / PROFILE_FILE)
        same = kept and kept["profile"]["n_sequences"] == wanted.sequences
        return bool(same) and kept["text"].startswith(SLICE)

    def _timed(self, wanted: spec.InferenceStage) -> bool:
        kept = _read(self.analysis_folder / INFERENCE_FILE)
        same = kept and (kept["prompt"], kept["rounds"]) == (wanted.prompt, wanted.rounds)
        return bool(same) and kept["kinds"]["decoding"]["tokens"] == wanted.new

    @property
    def losses(self) -> dict[int, float]:
        """Validation loss by step."""
        return {r["step"]: r["loss"] for r in read_metrics(self.folder) if r["kind"] == "val"}

    def values(self, until: int) -> Values:
        """Validation loss at a step, and tokens per second up to there."""
        rows = [row for row in read_metrics(self.folder) if row["step"] <= until]
        losses = [r["loss"] for r in rows if r["kind"] == "val" and r["step"] == until]
        rates = [row["tokens_per_second"] for row in rows if row["kind"] == "train"]
        if not losses or not rates:
            raise CellFailed(f"{self.folder}: has no validation at step {until}")
        return losses[-1], median(rates)


def _read(file: Path) -> Any:
    """What a stage has written; None if it is not there or is refused: the stage is done again."""
    try:
        return read_measured(file)
    except InputError:
        return None


def run_of(plan: Plan, folder: Path, cell: Cell) -> StudyRun:
    """The run of a cell in the folder of its study."""
    return StudyRun(plan.study, cell, folder / RUNS / cell.name)


def hashes_of(environment: Row) -> RunHashes:
    """What a run started from and saw; its shards as one hash."""
    kept = environment["hashes"]
    shards = json.dumps(kept["shards"], sort_keys=True).encode()
    return RunHashes(
        initial_weights=kept["initial_weights"],
        data_order=kept["data_order"],
        shards=hashlib.sha256(shards).hexdigest(),
    )


@dataclass(frozen=True)
class _Start:
    """What a run was trained by, what it started from and what it saw."""

    name: str
    cell: Cell
    recipe: Recipe
    hashes: RunHashes


def check_fair(plan: Plan, runs: Sequence[StudyRun], earlier: Sequence[EarlierRun] = ()) -> None:
    """Refuse runs of one seed that differ in more than their arms; one not begun says nothing."""
    starts: list[_Start] = []
    for run in runs:
        if run.begun:
            kept, cell = read_environment(run.folder), run.cell
            starts.append(_Start(cell.name, cell, trained_recipe(run.folder), hashes_of(kept)))
    for before in earlier:
        name, cell = f"{before.cell.name} of {before.folder}", before.cell
        if before.then.hashes:  # its recipe is the cell's, or it would not be taken for it
            starts.append(_Start(name, cell, cell.recipe, before.then.hashes))
    groups: dict[tuple[int, int], list[_Start]] = defaultdict(list)
    for start in starts:
        groups[start.cell.point, start.cell.seed].append(start)
    for first, *others in groups.values():
        for other in others:
            _check_pair(plan, first, other)


def _check_pair(plan: Plan, one: _Start, two: _Start) -> None:
    pair = f"{plan.file}: {one.name} and {two.name} cannot be compared"
    for key, what in HASHES.items():
        before, after = getattr(one.hashes, key), getattr(two.hashes, key)
        if before != after:
            raise StudyError(f"{pair}: {what} differ: {before[:12]} and {after[:12]}")
    arms = (one.cell.arm, two.cell.arm)
    own = {"model.schedule"}
    own |= {key for arm in plan.arms if arm.name in arms for key in arm.changes | arm.tuned}
    if rest := training_differences(one.recipe, two.recipe, own):
        raise StudyError(f"{pair}: {'; '.join(rest.values())}")
