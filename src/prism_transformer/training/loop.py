"""The training loop: from batches to updates, validations and checkpoints.

Read ``steps`` first; everything else here is one of its lines. ``job.py`` has what it works on.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prism_transformer.core.errors import InputError, RunError
from prism_transformer.core.loss import IGNORED
from prism_transformer.data.loader import Windows, prefetched, timed
from prism_transformer.data.masking import VALIDATION_SEED
from prism_transformer.model import PrismLM
from prism_transformer.models.cost import utilisation_flops
from prism_transformer.models.packing import isolated_attention, visible
from prism_transformer.models.reslice import under
from prism_transformer.training.checkpoint import State, save_checkpoint
from prism_transformer.training.device import Settings, peak_memory, sum_type
from prism_transformer.training.distributed import World, accumulating, whole
from prism_transformer.training.job import Job
from prism_transformer.training.objective import NEXT_TOKEN, Objective, Question, objective_of
from prism_transformer.training.rate import learning_rate
from prism_transformer.training.run import DUMP, NOT_FINITE, Row
from prism_transformer.training.saving import snapshot

BATCH_FILE = "batch.safetensors"
COLLECT_EVERY = 100  # steps between collections of garbage: young objects only, milliseconds

Batch = NDArray[np.int64]


def steps(job: Job, until: int | None = None) -> Iterator[Row]:
    """Train to the end of the recipe or until asked to stop, yielding every row of metrics.

    ``until`` is a step to stop after, with everything saved for going on later.
    """
    every = job.recipe.run
    with job.stop, collecting_seldom():
        if job.step == 0:  # what an untrained model knows: the first point of every curve
            yield validate(job)
        for passes, waited in timed(prefetched(batches(job))):
            yield update(job, passes, waited)
            tidy_up(job)
            # Measured before it is saved: a checkpoint remembers how long metrics.jsonl was, and
            # whoever goes on from it must not measure the same step again.
            if due(job, every.val_every):
                yield validate(job)
            if due(job, every.attention_every):
                yield look_at_attention(job)
            stop = job.stopping or job.step == until
            if due(job, every.checkpoint_every) or job.step in every.milestones or stop:
                job.save()
            if stop:
                break
        job.wait_until_saved()


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Keep Python from looking for garbage when it pleases: one process would keep all waiting."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


def tidy_up(job: Job) -> None:
    """What happens between steps, in all processes at the same one."""
    job.saver.check()
    if not job.first_done:
        job.first_done = True
        job.world.hurry()  # everything is compiled and connected by now
        gc.collect()
        gc.freeze()  # what is there now stays; later collections need not look at it
    elif job.step % COLLECT_EVERY == 0:
        gc.collect(1)


def due(job: Job, every: int) -> bool:
    """Whether what happens every so many steps happens now; at the end everything does."""
    return job.step % every == 0 or job.step == job.recipe.n_steps


def batches(job: Job) -> Iterator[list[Question]]:
    """What this process is asked in each step, pass by pass, in pinned memory for a GPU.

    The windows of a step are the same for any number of processes; they take turns at them.
    """
    size, seed = job.recipe.train.micro_batch, job.recipe.train.seed
    objective = objective_of(job.recipe)
    # A pure function of the step, with no iterator to save: going on from any step reads what an
    # uninterrupted run would have read there.
    for step in range(job.step, job.recipe.n_steps):
        first = step * job.sequences + job.world.rank * size
        stride = job.world.size * size
        places = [first + index * stride for index in range(job.passes)]
        asked = (objective.question(job.train.batch(seed, at, size), at, seed) for at in places)
        yield [each.pinned(job.world.device) for each in asked]


def update(job: Job, passes: list[Question], waited: float) -> Row:
    """One step of the optimizer, for whose data it waited so many seconds."""
    started = perf_counter()
    rate = learning_rate(job.recipe, job.step)
    schedule = job.recipe.schedule_at(job.step)
    with under(job.model, schedule):  # validations and checkpoints know the model's own only
        part = backward(job, passes)
    total = gradient_norm(job)
    # One exchange: all processes see one loss, and stop after the same step even if the signal
    # reached only one of them. And one wait for the device in the whole step.
    size = job.world.size
    asked = part.new_full((), float(job.stop.requested))  # made there: sending it would wait
    own = torch.stack((part / size, total.to(part.dtype) / size, asked))
    loss, norm, stop = job.world.summed(own)
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise RunError(dump(job, loss, norm))
    clip = job.recipe.optim.grad_clip
    # The norm is known already; torch's clip_grad_norm_ would compute it once more.
    nn.utils.clip_grads_with_norm_(job.model.parameters(), clip, total)
    for group in job.optimizer.param_groups:
        group["lr"] = rate
    job.optimizer.step()
    job.optimizer.zero_grad()
    # From here on the step counts: what is logged, saved or dumped belongs to the new weights.
    job.step += 1
    job.stopping = stop > 0
    row: Row = {"loss": loss, "lr": rate, "grad_norm": norm}
    if job.recipe.train.schedule_sampling is not None:
        row["schedule"] = str(schedule)
    return job.log("train", row | speed(job, perf_counter() - started + waited, waited))


def backward(job: Job, passes: list[Question]) -> Tensor:
    """Gradients of the mean loss over all passes; that loss, in this process."""
    # Summed on the device: asking for a number after each pass would wait for the device each time.
    loss = torch.zeros((), dtype=sum_type(job.world.device), device=job.world.device)
    # All sent ahead of the first pass, from pinned memory, so that nothing waits for the copies.
    sent = [question.to(job.world.device) for question in passes]
    for index, question in enumerate(sent):
        with accumulating(job.wrapped, last=index == len(passes) - 1):
            with job.settings.autocast():
                # Every pass has as many targets, so the mean of means is the mean of the batch.
                part = question.loss(job.wrapped, job.recipe.model.attention) / len(passes)
            part.backward()  # outside autocast, as torch asks: gradients follow the forward's types
        loss += part.detach()
    return loss


def gradient_norm(job: Job) -> Tensor:
    """The norm of all gradients together; looked at before anything is changed by it."""
    gradients = [weight.grad for weight in job.model.parameters() if weight.grad is not None]
    return whole(nn.utils.get_total_norm(gradients))


def speed(job: Job, seconds: float, waited: float) -> Row:
    """Tokens so far, their rate, and what a step took."""
    tokens = job.recipe.train.batch_tokens
    rate = tokens / seconds  # of all processes, the wait for data included
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
    n_windows = job.recipe.data.val_tokens // job.recipe.model.seq_len
    size = job.recipe.train.micro_batch
    objective = objective_of(job.recipe)
    loss = validation_loss(job.model, job.val, n_windows, size, job.world, job.settings, objective)
    return job.log("val", {"loss": loss, "seconds": perf_counter() - started})


@torch.no_grad()
def validation_loss(
    model: PrismLM,
    windows: Windows,
    n_windows: int,
    micro_batch: int,
    world: World,
    settings: Settings,
    objective: Objective = NEXT_TOKEN,
) -> float:
    """Mean loss in nats over the first windows, every token once, shared out over all processes.

    Nothing random is drawn, so that training goes on as if it had not happened.
    """
    model.eval()
    loss, count = torch.zeros((), dtype=sum_type(world.device), device=world.device), 0
    for first, rows in prefetched(shares(windows, n_windows, micro_batch, world)):
        question = objective.question(rows, first, VALIDATION_SEED)
        n_scored = question.n_scored
        with settings.autocast():
            sent = question.pinned(world.device).to(world.device)
            mean = sent.loss(model, model.config.attention)
        if n_scored:  # a mean over nothing is no number
            loss += mean.to(loss.dtype) * n_scored  # on the device, which is not waited for
            count += n_scored
    model.train()
    loss_all, count_all = world.summed(torch.stack((loss, loss.new_full((), count))))
    return loss_all / count_all


def shares(
    windows: Windows, n_windows: int, micro_batch: int, world: World
) -> Iterator[tuple[int, Batch]]:
    """Batches of this process with their first window: of one shape, as many as any other has.

    Under fully_shard every pass is one of all processes, so none may have fewer.
    """
    stride = micro_batch * world.size
    for start in range(0, n_windows, stride):
        first = start + micro_batch * world.rank
        rows = windows.read(range(first, min(first + micro_batch, n_windows)))
        missing = micro_batch - len(rows)
        yield first, np.pad(rows, ((0, missing), (0, 0)), constant_values=IGNORED)


def look_at_attention(job: Job) -> Row:
    """Each layer's largest attention logit, on the first window as validation shows it."""
    question = objective_of(job.recipe).question(job.val.read([0]), 0, VALIDATION_SEED)
    sent = question.to(job.world.device)
    logits = largest_attention_logits(job.model, sent.tokens, job.settings, sent.positions)
    return job.log("attention", {"largest_logit": logits})


@torch.no_grad()
def largest_attention_logits(
    model: PrismLM, tokens: Tensor, settings: Settings, positions: Tensor | None = None
) -> list[float]:
    """The largest scaled score of each layer before the softmax, on tokens (B, T).

    ``positions`` (B, T) are those of documents that do not see each other.
    """
    largest: list[float] = []
    attention = model.config.attention
    if positions is None:
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
    seen, within = visible(positions, attention), isolated_attention(positions, attention)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        scores = (q.float() @ keys.float().mT) * q.shape[-1] ** -0.5
        largest.append(scores.masked_fill(~seen, -torch.inf).max().item())
        return within(q, k, v)

    model.eval()
    # Compiled layers hold ordinary attention; this one runs as it is written.
    with torch.compiler.set_stance("force_eager"), settings.autocast():
        model(tokens, positions=positions, attend=attend)
    model.train()
    return largest


def dump(job: Job, loss: float, norm: float) -> str:
    """Save what led to a loss or gradient that is not finite; a sentence that says where.

    A checkpoint from before the update, with the windows of the whole step beside it.
    """
    broken = [
        name
        for name, weight in job.model.named_parameters()
        if weight.grad is not None and not whole(weight.grad).isfinite().all()
    ]
    taken = snapshot(job.model, job.optimizer, keep=job.world.is_first)
    taken.ready()
    folder = job.folder / f"{DUMP}{job.step + 1:08d}"
    if job.world.is_first and not folder.exists():  # a resumed run comes here again, exactly
        first = job.step * job.sequences
        rows = job.train.batch(job.recipe.train.seed, first, job.sequences)
        state = State(job.step, job.step * job.recipe.train.batch_tokens, 0)
        batch = {BATCH_FILE: {"tokens": torch.from_numpy(rows)}}
        with suppress(InputError):  # no room for it: what happened matters more
            save_checkpoint(folder, job.recipe, state, taken.weights, taken.moments, batch)
    job.world.wait()
    return (
        f"step {job.step + 1}: loss {loss}, gradient norm {norm}: {NOT_FINITE}; "
        f"gradients that are not finite: {', '.join(broken[:3]) or 'none'}; weights and batch are "
        f"in {folder}; look at that batch, or begin a run with a lower optim.lr"
    )
