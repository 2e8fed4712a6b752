"""How long a study will train: by what its runs have shown, or by a guess at first."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from prism_transformer.cost import token_rate, utilisation_flops
from prism_transformer.study.cell import run_of
from prism_transformer.study.plan import Plan
from prism_transformer.train.device import Settings, settle
from prism_transformer.train.run import read_metrics

SHARE = 0.5  # of a plain matrix product's rate that training reaches, for a first guess
SIZE, TIMES = 1024, 5  # of those products

BASES = {True: "by the runs that are there", False: "a guess from matrix products"}


def seconds_left(plan: Plan, folder: Path, device: str) -> tuple[float, str]:
    """Seconds of training that are left, by one worker, and what that is based on."""
    runs = [run_of(plan, folder, cell) for cell in plan.cells]
    seen = [
        row["tokens_per_second"]
        for run in runs
        if run.begun
        for row in read_metrics(run.folder)
        if row["kind"] == "train"
    ]
    steps = sum(max(0, run.cell.recipe.n_steps - run.step) for run in runs)
    rate = median(seen) if seen else _guess(plan, settle(plan.base, device))
    return steps * plan.base.train.batch_tokens / rate, BASES[bool(seen)]


def _guess(plan: Plan, settings: Settings) -> float:
    """Tokens per second from the rate of a plain matrix product."""
    peak = settings.peak_flops() or _product_rate(settings)
    flops = utilisation_flops(plan.base.model, plan.base.model.seq_len)
    return token_rate(flops, peak, SHARE) * plan.study.processes


def _product_rate(settings: Settings) -> float:
    one = torch.ones(SIZE, SIZE, dtype=settings.dtype, device=settings.device)
    times = []
    for _ in range(TIMES):
        started = perf_counter()
        (one @ one).sum().item()  # which waits for the device
        times.append(perf_counter() - started)
    return 2 * SIZE**3 / min(times)
