"""The learning rate of every step, and whether a run may go on under a larger budget.

The rate is a pure function of recipe and step. So a run may change its budget as long as no step
that it has taken would have had another rate: it is then where a new run would be by now.
"""

from __future__ import annotations

import math

from prism_transformer.core.errors import InputError
from prism_transformer.recipe import Recipe, differences

# What may change together with the budget: shares of it, which can stand for the same steps.
BUDGET = {"train.tokens", "optim.warmup_fraction", "optim.decay_fraction"}


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate of update number ``step``, from 0: linear warmup, then as ``lr_schedule`` says."""
    optim, warmup = recipe.optim, recipe.warmup_steps
    if step < warmup:
        return optim.lr * (step + 1) / (warmup + 1)  # as nanoGPT: never 0, and lr right after it
    lowest = optim.lr * optim.min_lr_fraction
    if optim.lr_schedule == "cosine":
        progress = (step - warmup) / (recipe.n_steps - warmup)
        return lowest + (optim.lr - lowest) * (1 + math.cos(math.pi * progress)) / 2
    if optim.lr_schedule == "constant" or step <= recipe.stable_until:
        return optim.lr
    progress = (step - recipe.stable_until) / (recipe.n_steps - recipe.stable_until)
    return optim.lr + (lowest - optim.lr) * progress


def check_larger_budget(before: Recipe, after: Recipe, step: int) -> None:
    """Refuse any change of a run's recipe at a step but a budget that it can still grow into."""
    changed = differences(before, after)
    what = "; ".join(changed)
    if not {line.partition(":")[0] for line in changed} <= BUDGET:
        raise InputError(f"a run keeps its recipe; this would change {what}")
    if after.train.tokens <= before.train.tokens:
        raise InputError(f"a run can only get a larger train.tokens; this would change {what}")
    for index in range(step):
        then, now = learning_rate(before, index), learning_rate(after, index)
        if then != now:
            raise InputError(
                f"{what}: the run has taken {step} steps, and under this budget step {index} would "
                f"have had the rate {now:.4g}, not {then:.4g}: {_reason(before, after, step)}"
            )


def _reason(before: Recipe, after: Recipe, step: int) -> str:
    """Why rates of steps that were taken differ, and what can be done."""
    warmup, longer = before.warmup_steps, after.warmup_steps
    if before.optim.lr_schedule == "cosine" and step > warmup:
        return (
            "a cosine falls towards the end of its budget from the start; begin a run with "
            'optim.lr_schedule "constant" or "wsd", or a new one from these weights with --from'
        )
    if warmup != longer:
        share = f"optim.warmup_fraction={warmup / after.n_steps:.6g}"
        return f"warmup took {warmup} steps and would take {longer}; give {share} as well"
    return (
        f"its decay began after step {before.stable_until}; stop such a run there with --until, or "
        "begin a new one from these weights with --from"
    )
