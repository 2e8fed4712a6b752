"""How workers will share this machine, and what is left of a study in hours and bytes.

These are rough estimates: a plan must be shown at once, for any size of model.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter

from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.plan import Plan
from prism_transformer.study.runs import INFERENCE, StudyRun
from prism_transformer.study.sharing import Crew, Shares, need_of, share_out, this_machine
from prism_transformer.training.run import read_metrics

GUESSED_SHARE = 0.5  # of a plain matrix product's rate that training reaches, for a first guess
SIZE, TIMES = 1024, 5  # of those products
PAPER_GPUS, PAPER_SHARE = 8, 0.4  # H100s, and the share of their peak that is assumed
BYTES_PER_PARAMETER = 12  # float32 weights and AdamW's two moments
ROW_BYTES = 400  # of metrics, a step
# Items of a task, and tokens of an item with all of its choices, about.
TASK_SIZES = {
    "piqa": (1838, 90), "hellaswag": (10_042, 400), "arc_easy": (2376, 140),
    "winogrande": (1267, 60), "blimp": (67_000, 25), "wikitext": (62, 4600),
    "diagnostic": (1000, 60),
}  # fmt: skip


def shares_of(study: StudyFolder, crew: Crew) -> Shares:
    """How workers share this machine for what is left of a study, and why."""
    import torch

    from prism_transformer.training.device import find_device

    gpus = torch.cuda.device_count() if find_device(crew.device).type == "cuda" else 0
    left = sum(bool(run.queued()) for run in study.runs)
    together = crew.together(study.plan.study.processes)
    need = need_of((cell.recipe for cell in study.plan.cells), together)
    return share_out(this_machine(gpus), need, crew.workers, left)


@dataclass(frozen=True)
class Forecast:
    """What is left to do."""

    training_seconds: float
    evaluation_seconds: float
    """of every other stage, counted in tokens that go forward through the model"""
    disk_bytes: int
    """that runs still to be trained will take: checkpoints with their optimizer, and metrics"""
    h100_training_seconds: float
    """of the same on 8 x H100 at 40 % utilisation"""
    h100_evaluation_seconds: float
    why: str
    """what the speed of this machine is known from"""


def forecast(study: StudyFolder, crew: Crew) -> Forecast:
    """Time on this machine and on the paper's, and disk."""
    from prism_transformer.models.cost import parameters, token_rate, utilisation_flops
    from prism_transformer.schedules.hardware import PEAK_FLOPS

    rate, why = _rate(study, crew)
    model = study.plan.base.model
    flops = utilisation_flops(model, model.seq_len)
    paper = token_rate(flops, PAPER_GPUS * PEAK_FLOPS["H100"], PAPER_SHARE)
    steps = sum(max(0, run.cell.recipe.n_steps - run.step) for run in study.runs)
    trained = steps * study.plan.base.train.batch_tokens
    # A token costs a third on its way forward alone.
    scored = sum(_tokens_scored(run) for run in study.runs) / 3
    recipes = [run.cell.recipe for run in study.runs if run.step < run.cell.recipe.n_steps]
    kept = sum(
        BYTES_PER_PARAMETER
        * parameters(each.model).total
        * (each.run.keep_checkpoints + len(each.run.milestones))
        + ROW_BYTES * each.n_steps
        for each in recipes
    )
    return Forecast(trained / rate, scored / rate, kept, trained / paper, scored / paper, why)


def _tokens_scored(run: StudyRun) -> int:
    """Tokens that go through a model in the stages that a run still lacks."""
    recipe, study = run.cell.recipe, run.study
    seq_len, found = recipe.model.seq_len, 0
    if study.loss is not None:
        each = study.loss.windows(recipe) * seq_len * len(study.loss.readings)
        found += each * len(run.lacking("loss"))  # at each milestone of training
    if study.analyze is not None:
        found += study.analyze.sequences * seq_len * len(run.lacking("analyze"))
    if study.eval is not None:
        sizes = (TASK_SIZES.get(task, (1000, 100)) for task in study.eval.tasks)
        limit = study.eval.limit
        each = sum(n * (items if limit is None else min(limit, items)) for items, n in sizes)
        found += each * len(run.lacking("eval"))
    if study.inference is not None and INFERENCE in run.to_do():
        each = study.inference.prompt + study.inference.new
        found += 2 * study.inference.rounds * each  # the arm and its baseline
    return found


def _rate(study: StudyFolder, crew: Crew) -> tuple[float, str]:
    """Tokens per second of training on this machine, and what that is based on."""
    runs, shares = study.runs, shares_of(study, crew)
    rows = [row for run in runs if run.begun for row in read_metrics(run.folder)]
    rates = [row["tokens_per_second"] for row in rows if row["kind"] == "train"]
    if rates:
        return median(rates) * len(shares), "by the runs that are there"
    gpus = sum(len(share.gpus) for share in shares.each)
    return _guessed_rate(study.plan, crew.device, gpus), "a guess from matrix products"


def _guessed_rate(plan: Plan, device: str, gpus: int) -> float:
    """Tokens per second of the whole machine, from the rate of a plain matrix product."""
    import torch

    from prism_transformer.models.cost import token_rate, utilisation_flops
    from prism_transformer.training.device import settle

    settings = settle(plan.base, device)
    peak = settings.peak_flops()
    if not peak:
        one, times = torch.ones(SIZE, SIZE, dtype=settings.dtype, device=settings.device), []
        for _ in range(TIMES):
            started = perf_counter()
            (one @ one).sum().item()  # which waits for the device
            times.append(perf_counter() - started)
        peak = 2 * SIZE**3 / min(times)
    flops = utilisation_flops(plan.base.model, plan.base.model.seq_len)
    # That product had one GPU, or all cores of the CPU, which workers and processes share.
    return token_rate(flops, peak, GUESSED_SHARE) * max(1, gpus)
