"""From run folders to one table: every number that the runs of a study have left in files."""

from __future__ import annotations

import operator
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import MappingProxyType

import pandas as pd

from prism_transformer.analysis import PROFILE_FILE
from prism_transformer.core.disk import reading
from prism_transformer.core.errors import InputError
from prism_transformer.eval import SLICE, loss_file
from prism_transformer.eval.diagnostic import CHOICES
from prism_transformer.eval.results import read_result
from prism_transformer.eval.tasks import ACCURACIES, BY_NAME, DIAGNOSTIC_CLOZE
from prism_transformer.models.cost import parameters
from prism_transformer.recipes.files import changed, paper_scale
from prism_transformer.study import metrics
from prism_transformer.study.collected import (
    COLUMNS,
    ITEM_COLUMNS,
    LEARNING_RATE,
    RUNS,
    Collected,
    FactorialFacts,
    LooksFacts,
    RunFacts,
    SearchFacts,
    State,
    StudyFacts,
    TuningFacts,
)
from prism_transformer.study.earlier import EarlierRun
from prism_transformer.study.peeking import with_looks_of
from prism_transformer.study.plan import Plan
from prism_transformer.study.rungs import read_rungs
from prism_transformer.study.runs import INFERENCE_FILE, StudyRun, check_fair, hashes_of
from prism_transformer.training.measured import read_measured
from prism_transformer.training.run import Row, read_environment, read_metrics

CURVE_POINTS = 200  # of a training curve that are kept; each is the mean of a stretch of steps

# Columns of an item that are not a metric.
ITEM_FACTS = ("task", "item", "item_sha256", "loglikelihoods", "answer")

Number = tuple[str, int | None, int | None, float]
"""metric, step, index, value"""


def collect(
    plan: Plan,
    folders: Sequence[Path],
    failures: Mapping[str, str],
    earlier: Mapping[str, EarlierRun] = MappingProxyType({}),
    tuning: TuningFacts | None = None,
) -> Collected:
    """Everything that the runs of a study say; of runs in several folders the furthest is taken.

    ``failures`` has a reason for each cell that failed; ``earlier`` what was collected before of
    cells, which stands in for those that no folder has; ``tuning`` how the rates were found.
    """
    runs: list[StudyRun | EarlierRun] = []
    for cell in plan.cells:
        places = [where / cell.name for folder in folders for where in (folder / RUNS, folder)]
        found = [StudyRun(plan.study, cell, place) for place in places]
        furthest = max(found, key=lambda run: (run.begun, run.step))
        furthest.check_recipe()
        before = None if furthest.begun else earlier.get(cell.name)
        runs.append(before or furthest)
    used = {str(run.folder): run.found for run in runs if isinstance(run, EarlierRun)}
    command = " ".join([plan.command, *(f"--with {shlex.quote(folder)}" for folder in used)])
    if len(used) == 1 and all(isinstance(run, EarlierRun) for run in runs):
        command = next(iter(used.values())).facts.command  # nothing was run since
    notes = dict.fromkeys(each.facts.note for each in used.values() if each.facts.note)
    collected = read_runs(plan, runs, failures, command)
    search = _search_facts(plan, folders[0])
    more = {"note": " ".join(notes), "tuning": tuning, "search": search}
    collected = replace(collected, facts=collected.facts.model_copy(update=more))
    return with_looks_of(collected, used.values())


def read_runs(
    plan: Plan,
    runs: Sequence[StudyRun | EarlierRun],
    failures: Mapping[str, str],
    command: str,
) -> Collected:
    """The facts and the table of runs that are fair to compare; others are refused."""
    here = [run for run in runs if isinstance(run, StudyRun)]
    check_fair(plan, here, [run for run in runs if isinstance(run, EarlierRun)])
    rows: list[Row] = []
    items = [pd.DataFrame(columns=ITEM_COLUMNS)]
    for run in runs:
        if isinstance(run, EarlierRun):
            rows += run.rows
            items += [] if run.items.empty else [run.items[ITEM_COLUMNS]]
        elif run.begun:
            who = {"arm": run.cell.arm, "point": run.cell.point, "seed": run.cell.seed}
            # Whatever is not as we write it is a file of the run that was damaged.
            with reading(run.folder):
                run.check_kept()
                numbers = list(map(_checked, numbers_of(run)))
                items += [frame.assign(**who)[ITEM_COLUMNS] for frame in items_of(run)]
            rows += [who | dict(zip(COLUMNS[3:], each, strict=True)) for each in numbers]
    answers = pd.concat(items[1:] or items, ignore_index=True)
    facts = _facts(plan, runs, failures, command)
    return Collected(facts, pd.DataFrame(rows, columns=COLUMNS), answers)


def _facts(
    plan: Plan,
    runs: Sequence[StudyRun | EarlierRun],
    failures: Mapping[str, str],
    command: str,
) -> StudyFacts:
    recipe = next(cell.recipe for cell in plan.cells if cell.arm == plan.study.baseline)
    at_base = changed(recipe, {LEARNING_RATE: plan.base.optim.lr}, "before [tune] or [sweep]")
    if plan.study.tune:
        recipe = at_base
    # A sweep of rates is of the paper's model whatever its first rate is.
    scale = paper_scale(at_base if LEARNING_RATE in plan.points[0] else recipe)
    outcomes = tuple(_run_facts(run, failures) for run in runs)
    seeds, stage = tuple(plan.study.looks), plan.study.factorial
    looks = LooksFacts(seeds=seeds, spending=plan.study.spending) if seeds else None
    return StudyFacts(
        name=plan.name,
        question=plan.study.question,
        command=command,
        baseline=plan.study.baseline,
        scale=scale.name if scale else None,
        arms=tuple(arm.facts for arm in plan.arms),
        points=plan.points,
        seeds=tuple(plan.study.seeds),
        recipe=recipe,
        parameters=parameters(recipe.model).total,
        complete=all(run.state == "complete" for run in outcomes),
        runs=outcomes,
        contrasts=plan.contrasts,
        effect=plan.study.effect,
        factorial=FactorialFacts(**stage.model_dump()) if stage else None,
        looks=looks,
    )


def _search_facts(plan: Plan, folder: Path) -> SearchFacts | None:
    stage, rungs = plan.study.search, read_rungs(folder)
    if stage is None:
        return None
    confirmed = bool(stage.confirm) and plan.study.seeds == stage.confirm
    why = rungs.why if rungs else ""
    return SearchFacts(confirm=tuple(stage.confirm), confirmed=confirmed, rungs=why)


def _run_facts(run: StudyRun | EarlierRun, failures: Mapping[str, str]) -> RunFacts:
    if isinstance(run, EarlierRun):
        return run.facts
    cell, facts = run.cell, {}
    failure = failures.get(cell.name)
    state: State = "failed" if failure is not None else "incomplete" if run.begun else "missing"
    if run.begun:
        if not run.to_do():
            state, failure = "complete", None
        kept = read_environment(run.folder)
        facts = {key: kept[key] for key in ("hardware", "software", "sessions")}
        facts["hashes"] = hashes_of(kept)
    return RunFacts(
        arm=cell.arm, point=cell.point, seed=cell.seed, run=cell.name,
        state=state, failure=failure, **facts,
    )  # fmt: skip


# -- one run --------------------------------------------------------------------------------------


def _checked(number: Number) -> Number:
    """The same, if it is what it should be: a file without a sum may hold anything."""
    metric, step, index, value = number
    whole = [None if each is None else operator.index(each) for each in (step, index)]
    return metric, whole[0], whole[1], float(value)


def numbers_of(run: StudyRun) -> Iterator[Number]:
    """All numbers of a run, in a fixed order."""
    rows, last = read_metrics(run.folder), run.cell.recipe.n_steps
    for row in rows:
        if row["kind"] == "val":
            yield metrics.VAL_LOSS, row["step"], None, row["loss"]
            if row["step"] == last:
                yield metrics.FINAL_LOSS, last, None, row["loss"]
        elif row["kind"] == "reslice":
            yield from (
                (name, row["step"], None, row[key]) for key, name in metrics.RESLICED.items()
            )
    changed_at = max((row["step"] for row in rows if row["kind"] == "reslice"), default=0)
    yield from _training([row for row in rows if row["kind"] == "train"], changed_at)
    for row in [row for row in rows if row["kind"] == "attention"][-1:]:
        for layer, value in enumerate(row["largest_logit"]):
            yield metrics.LARGEST_LOGIT, row["step"], layer, value
    if run.step >= last:
        yield from _looks(run, 1.0, last)
        yield from _inference(run.analysis_folder / INFERENCE_FILE)
    yield from _milestones(run)


def _milestones(run: StudyRun) -> Iterator[Number]:
    """The same as at the end, of earlier checkpoints; names have the share of training."""
    stages, recipe = run.study.stages.values(), run.cell.recipe
    steps = {share: step for stage in stages for share, step in stage.steps(recipe).items()}
    for share, step in sorted(steps.items()):
        for name, _, index, value in _looks(run, share, step) if share < 1 else ():
            yield metrics.at(name, share), step, index, value


def _looks(run: StudyRun, share: float, step: int) -> Iterator[Number]:
    """What was measured of the checkpoint at a step, by the stages that ask for its share."""
    scores, rest = run.at_step(step)
    asked = [name for name, stage in run.study.stages.items() if share in stage.at]
    # Of the last checkpoint all that there is counts, whoever measured it.
    if share == 1 or "eval" in asked:
        yield from _scores(scores)
    if share == 1 or "analyze" in asked:
        yield from _profile(rest / PROFILE_FILE)
    if share == 1 or "loss" in asked:
        yield from _losses(rest, run.cell.recipe.model.seq_len)


def _training(rows: list[Row], changed_at: int) -> Iterator[Number]:
    """Of steps of training; those up to a change of schedule were taken by the run it left."""
    if not rows:
        return
    length = -(-len(rows) // CURVE_POINTS)
    for start in range(0, len(rows), length):
        stretch = rows[start : start + length]
        mean = sum(row["loss"] for row in stretch) / len(stretch)
        yield metrics.TRAIN_LOSS, stretch[-1]["step"], None, mean
    own = [row for row in rows if row["step"] > changed_at]
    if not own:
        return
    rate = median(row["tokens_per_second"] for row in own)
    yield metrics.TOKENS_PER_SECOND, None, None, rate
    yield metrics.SECONDS, None, None, sum(row["seconds"] for row in own)
    memory = [row["memory_bytes"] for row in own if row["memory_bytes"] is not None]
    if memory:
        yield metrics.MEMORY_BYTES, None, None, max(memory)


def _scores(folder: Path) -> Iterator[Number]:
    """The score that tables show of each task, and its other accuracy where it has two."""
    for file in sorted(folder.glob("*.json")):
        result = read_measured(file)
        for row in result["rows"]:
            found = result["metrics"].get(row["task"], {})
            shown = {row["metric"]: (row["value"], row["stderr"])}
            for metric in ACCURACIES:
                value = found.get(metric)
                if value is not None and row["task"] in BY_NAME:
                    shown.setdefault(metric, (value, found.get(f"{metric}_stderr")))
            for metric, (value, stderr) in shown.items():
                name = metrics.eval_score(row["task"], metric)
                yield name, None, None, value
                yield name + metrics.ITEMS, None, None, row["items"]
                if stderr is not None:
                    yield name + metrics.STDERR, None, None, stderr


def _profile(file: Path) -> Iterator[Number]:
    for layer in read_measured(file)["profile"]["layers"] if file.is_file() else []:
        for name, statistic in layer["statistics"].items():
            yield metrics.attention(name), None, layer["layer"], statistic["mean"]


def _losses(folder: Path, context: int) -> Iterator[Number]:
    """Loss by position, and at other lengths of sequences, where they are of the same text."""
    file = folder / loss_file()
    own = read_measured(file) if file.is_file() else None
    if own is None or not own.get("text", SLICE).startswith(SLICE):  # older ones say none
        return
    if own.get("length", context) != context:
        raise InputError(
            f"{file}: is of sequences of {own['length']} tokens, not of {context}; remove it, and "
            "measure again"
        )
    yield from _positions(metrics.LOSS_AT_POSITION, own)
    others = [read_measured(file) for file in folder.glob(loss_file().replace(".", "-*."))]
    n_tokens = own["sequences"] * context
    same = [
        kept
        for kept in others
        if kept["sequences"] * kept["length"] == n_tokens and kept["text"].startswith(SLICE)
    ]
    if same:
        yield metrics.loss_at_length(metrics.NO_SCALING), None, context, own["loss"]
    for kept in sorted(same, key=lambda kept: (kept["length"], kept["scaling"] or "")):
        scaling, length = _scaling(kept, context), kept["length"]
        yield metrics.loss_at_length(scaling), None, length, kept["loss"]
        yield from _positions(metrics.loss_at_position(scaling, length), kept)


def _scaling(kept: Row, context: int) -> str:
    """The kind alone where it stretches the context to the length, else with its factor."""
    kind, _, factor = (kept["scaling"] or metrics.NO_SCALING).partition(":")
    fits = not factor or float(factor) * context == kept["length"]
    return kind if fits else f"{kind}:{factor}"


def _positions(name: str, kept: Row) -> Iterator[Number]:
    for row in kept["by_position"]:
        end = int(row["positions"].rpartition("-")[2])
        yield name, None, end, row["loss"]


def _inference(file: Path) -> Iterator[Number]:
    for kind, timed in read_measured(file)["kinds"].items() if file.is_file() else []:
        ours, theirs = timed["seconds"], timed["baseline_seconds"]
        yield metrics.inference(kind), None, None, timed["tokens"] / median(ours)
        # Round by round: whatever else the machine did slowed both.
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
        yield metrics.inference_ratio(kind), None, None, median(ratios)


def items_of(run: StudyRun) -> Iterator[pd.DataFrame]:
    """Every item of every task or group of tasks, counted from 0, with its cluster."""
    for file in sorted(run.eval_folder.glob("*.json")):
        result, frame = read_result(file), pd.read_parquet(file.with_suffix(".parquet"))
        names = [
            name for name in frame if name not in ITEM_FACTS and not str(name).endswith("_weight")
        ]
        for row in result["rows"]:
            members = result["harness"]["group_subtasks"].get(row["task"]) or [row["task"]]
            mine = frame[frame["task"].isin(members)]
            mine = mine.assign(
                cluster=_clusters(mine, members), task=row["task"], item=range(len(mine))
            )
            facts = ["task", "item", "cluster"]
            long = mine.melt(facts, names, "metric", "value").dropna(subset=["value"])
            yield long.astype({"task": str, "cluster": str, "metric": str, "value": float})


def _clusters(items: pd.DataFrame, members: Sequence[str]) -> list[str]:
    """What each item shares with others: its sub-task, a template; else it stands by itself."""
    if len(members) > 1:
        return [str(task) for task in items["task"]]
    # Items of one template follow each other.
    size = CHOICES if members == [DIAGNOSTIC_CLOZE] else 1
    return [str(int(item) // size) for item in items["item"]]
