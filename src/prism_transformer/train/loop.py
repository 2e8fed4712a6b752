"""The training loop."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from prism_transformer.cost import utilisation_flops
from prism_transformer.data.loader import prefetched, timed
from prism_transformer.errors import InputError, RunError
from prism_transformer.train.checkpoint import State, save_checkpoint
from prism_transformer.train.device import peak_memory
from prism_transformer.train.distributed import accumulating, whole
from prism_transformer.train.job import Job, full_state
from prism_transformer.train.optim import learning_rate
from prism_transformer.train.run import Row
from prism_transformer.train.validation import largest_attention_logits, validation_loss

BATCH_FILE = "batch.safetensors"

Batch = NDArray[np.int64]


def train(job: Job, until: int | None = None) -> Iterator[Row]:
    """Train to the end of the recipe or until asked to stop, yielding every row of metrics.

    ``until`` is a step to stop after, with everything saved for going on later.
    """
    every = job.recipe.run
    with job.stop:
        if job.step == 0:
            yield validate(job)
        for passes, waited in timed(prefetched(batches(job))):
            yield update(job, passes, waited)
            if due(job, every.val_every):
                yield validate(job)
            if due(job, every.attention_every):
                yield look_at_attention(job)
            stop = job.stopping or job.step == until
            if due(job, every.checkpoint_every) or stop:
                job.save()
            if stop:
                return


def due(job: Job, every: int) -> bool:
    """Whether what happens every so many steps happens now; at the end everything does."""
    return job.step % every == 0 or job.step == job.recipe.n_steps


def batches(job: Job) -> Iterator[list[Batch]]:
    """What this process reads for each step, a batch for each pass.

    The windows of a step are the same for any number of processes; they take turns at them.
    """
    size = job.recipe.train.micro_batch
    for step in range(job.step, job.recipe.n_steps):
        first = step * job.sequences + job.world.rank * size
        stride = job.world.size * size
        yield [
            job.train.batch(job.recipe.train.seed, first + index * stride, size)
            for index in range(job.passes)
        ]


def update(job: Job, passes: list[Batch], waited: float) -> Row:
    """One step of the optimizer, for whose data it waited so many seconds."""
    started = perf_counter()
    rate = learning_rate(job.recipe, job.step)
    loss = backward(job, passes)
    norm = gradient_norm(job)
    loss, stop = job.world.total([loss / job.world.size, job.stop.requested])
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise RunError(dump(job, loss, norm))
    clip = job.recipe.optim.grad_clip
    total = torch.tensor(norm, device=job.world.device)
    nn.utils.clip_grads_with_norm_(job.model.parameters(), clip, total)
    for group in job.optimizer.param_groups:
        group["lr"] = rate
    job.optimizer.step()
    job.optimizer.zero_grad()
    job.step += 1
    job.stopping = stop > 0
    row = {"loss": loss, "lr": rate, "grad_norm": norm}
    return job.log("train", row | speed(job, perf_counter() - started + waited, waited))


def backward(job: Job, passes: list[Batch]) -> float:
    """Gradients of the mean loss over all passes; that loss, in this process."""
    loss = torch.zeros((), dtype=torch.float64, device=job.world.device)
    for index, rows in enumerate(passes):
        tokens = torch.from_numpy(rows).to(job.world.device, non_blocking=True)
        with accumulating(job.wrapped, last=index == len(passes) - 1):
            with job.settings.autocast():
                part = job.wrapped(tokens[:, :-1], tokens[:, 1:]) / len(passes)
            part.backward()
        loss += part.detach()
    return loss.item()


def gradient_norm(job: Job) -> float:
    """The norm of all gradients together; looked at before anything is changed by it."""
    gradients = [weight.grad for weight in job.model.parameters() if weight.grad is not None]
    return whole(nn.utils.get_total_norm(gradients)).item()


def speed(job: Job, seconds: float, waited: float) -> Row:
    """Tokens so far, their rate, and what a step took."""
    tokens = job.recipe.train.batch_tokens
    rate = tokens / seconds
    peak = job.settings.peak_flops()
    flops = rate * utilisation_flops(job.recipe.model, job.recipe.model.seq_len)
    return {
        "tokens": job.step * tokens,
        "seconds": seconds,
        "data_seconds": waited,
        "tokens_per_second": rate,
        "utilisation": None if peak is None else flops / (peak * job.world.size),
        "memory_bytes": peak_memory(job.world.device),
    }


def validate(job: Job) -> Row:
    """The loss on the validation slice."""
    started = perf_counter()
    train, n_windows = job.recipe.train, job.recipe.data.val_tokens // job.recipe.model.seq_len
    loss = validation_loss(
        job.model, job.val, n_windows, train.micro_batch, job.world, job.settings
    )
    return job.log("val", {"loss": loss, "seconds": perf_counter() - started})


def look_at_attention(job: Job) -> Row:
    """Each layer's largest attention logit, on the first window of the validation slice."""
    tokens = torch.from_numpy(job.val.read([0])[:, :-1]).to(job.world.device)
    logits = largest_attention_logits(job.model, tokens, job.settings)
    return job.log("attention", {"largest_logit": logits})


def dump(job: Job, loss: float, norm: float) -> str:
    """Save what led to a loss or gradient that is not finite; a sentence that says where.

    A checkpoint from before the update, with the windows of the whole step beside it.
    """
    gradients = {name: weight.grad for name, weight in job.model.named_parameters()}
    broken = [
        name
        for name, gradient in gradients.items()
        if gradient is not None and not whole(gradient).isfinite().all()
    ]
    weights, moments = full_state(job.model, job.optimizer, keep=job.world.is_first)
    folder = job.folder / f"dump-step-{job.step + 1:08d}"
    if job.world.is_first and not folder.exists():
        first = job.step * job.sequences
        rows = job.train.batch(job.recipe.train.seed, first, job.sequences)
        state = State(job.step, job.step * job.recipe.train.batch_tokens, 0)
        batch = {BATCH_FILE: {"tokens": torch.from_numpy(rows)}}
        with suppress(InputError):  # no room for it: what happened matters more
            save_checkpoint(folder, job.recipe, state, weights, moments, batch)
    job.world.wait()
    return (
        f"step {job.step + 1}: loss {loss}, gradient norm {norm}: stopped before the update; "
        f"gradients that are not finite: {', '.join(broken[:3]) or 'none'}; weights and batch are "
        f"in {folder}; look at that batch, or begin a run with a lower optim.lr"
    )
