"""From run folders to one table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from prism_transformer import paper
from prism_transformer.cost import parameters
from prism_transformer.recipe import Recipe, differences
from prism_transformer.recipe_file import load_recipe
from prism_transformer.study.cell import CellRun
from prism_transformer.study.fairness import check_fair
from prism_transformer.study.numbers import items_of, numbers_of
from prism_transformer.study.plan import Plan
from prism_transformer.study.table import COLUMNS, ITEM_COLUMNS, RUNS, Collected
from prism_transformer.train.run import Row, read_environment

# What may differ from the paper's recipe without changing what is learnt.
HOW = (
    "train.micro_batch",
    "train.compile",
    "train.distribution",
    "train.activation_checkpointing",
    "train.seed",
    "train.precision",
    "model.schedule",
    "data.folder",
    "run.",
)


def collect(plan: Plan, folders: Sequence[Path], failures: Mapping[str, str]) -> Collected:
    """Everything that the runs of a study say; of runs in several folders the furthest is taken.

    ``failures`` has a reason for each cell that failed.
    """
    runs = [_furthest(plan, index, folders) for index in range(len(plan.cells))]
    for run in runs:
        run.check_recipe()
    return table_of(plan, runs, failures, f"prism study run {plan.name}")


def table_of(
    plan: Plan, runs: Sequence[CellRun], failures: Mapping[str, str], command: str
) -> Collected:
    """Everything that these runs of a plan say; ``command`` is what made them."""
    check_fair(plan, [(run.cell, read_environment(run.folder)) for run in runs if run.begun])
    facts = _facts(plan, runs, failures) | {"command": command}
    rows: list[Row] = []
    items: list[pd.DataFrame] = []
    for run in runs:
        if run.begun:
            who = {"arm": run.cell.arm, "point": run.cell.point, "seed": run.cell.seed}
            rows += [who | dict(zip(COLUMNS[3:], each, strict=True)) for each in numbers_of(run)]
            items += [frame.assign(**who) for frame in items_of(run)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    found = pd.concat(items) if items else pd.DataFrame(columns=ITEM_COLUMNS)
    return Collected(facts, table, found[ITEM_COLUMNS].reset_index(drop=True))


def _furthest(plan: Plan, index: int, folders: Sequence[Path]) -> CellRun:
    cell = plan.cells[index]
    places = [place for each in folders for place in (each / RUNS / cell.name, each / cell.name)]
    runs = [CellRun(plan.study, cell, place) for place in places]
    return max(runs, key=lambda run: (run.begun, run.step))


def _facts(plan: Plan, runs: Sequence[CellRun], failures: Mapping[str, str]) -> Row:
    recipe = next(cell.recipe for cell in plan.cells if cell.arm == plan.study.baseline)
    states = [_state(run, failures) for run in runs]
    return {
        "name": plan.name,
        "question": plan.study.question,
        "baseline": plan.study.baseline,
        "scale": paper_scale(recipe),
        "arms": [
            {
                "name": arm.name,
                "schedule": str(arm.schedule),
                "heads": list(arm.schedule.heads),
                "changes": arm.changes,
            }
            for arm in plan.arms
        ],
        "points": list(plan.points),
        "seeds": plan.study.seeds,
        "recipe": recipe.model_dump(),
        "parameters": parameters(recipe.model).total,
        "complete": all(state["state"] == "complete" for state in states),
        "runs": states,
    }


def paper_scale(recipe: Recipe) -> str | None:
    """Which of the paper's models a recipe trains, on what it was trained on; None for others."""
    for name in paper.scales():
        changed = differences(load_recipe(f"base/{name}"), recipe)
        if all(line.startswith(HOW) for line in changed):
            return name
    return None


def _state(run: CellRun, failures: Mapping[str, str]) -> Row:
    cell = run.cell
    failure = failures.get(cell.name)
    if run.begun and not run.to_do(cell.recipe.n_steps):
        state, failure = "complete", None
    elif failure is not None:
        state = "failed"
    else:
        state = "incomplete" if run.begun else "missing"
    environment = read_environment(run.folder) if run.begun else None
    return {
        "arm": cell.arm,
        "point": cell.point,
        "seed": cell.seed,
        "run": cell.name,
        "state": state,
        "failure": failure,
        "hashes": None if environment is None else _hashes(environment),
        "hardware": None if environment is None else environment["hardware"],
        "software": None if environment is None else environment["software"],
        "sessions": [] if environment is None else environment["sessions"],
    }


def _hashes(environment: Row) -> Row:
    hashes = environment["hashes"]
    shards = json.dumps(hashes["shards"], sort_keys=True).encode()
    return hashes | {"shards": hashlib.sha256(shards).hexdigest()}
