"""Names of the numbers in a study's table (its column ``metric``), written once.

``collect`` writes them, ``compare`` and the report read them. Most numbers belong to a whole run;
what belongs to a step of training, a layer or a position says so.
"""

from __future__ import annotations

from typing import Final

VAL_LOSS = "val_loss"  # by step, nats per token
FINAL_LOSS = "final_val_loss"  # only of runs that are trained to their end
TRAIN_LOSS = "train_loss"  # by step, each the mean since the one before
TOKENS_PER_SECOND = "tokens_per_second"  # the median over steps
SECONDS = "seconds"  # of training steps alone
MEMORY_BYTES = "memory_bytes"  # the most that was ever taken
LARGEST_LOGIT = "largest_logit"  # by layer, at the last look
LOSS_AT_POSITION = "loss_at_position"  # by the last position of each doubling

# Right before a change of schedule, and right after it by either map of weights.
RESLICED = {f"loss_{when}": f"reslice.{when}" for when in ("before", "reshape", "matched")}
LOSS_AT_LENGTH = "loss_at_length"  # by the tokens of a sequence; scaled positions in its name

NO_SCALING: Final = "none"  # rotary positions as they are
EVAL = "eval."  # what scores of benchmarks begin with
# What follows a score's name: its standard error over items as the harness gives it, their number.
STDERR, ITEMS = ".stderr", ".items"
AT = "@"  # what stands before the share of training at a milestone


def eval_score(task: str, metric: str) -> str:
    """A score of a benchmark."""
    return f"{EVAL}{task}.{metric}"


def at(name: str, share: float) -> str:
    """The same number at a milestone of training, a share of its steps below 1."""
    return name if share == 1 else f"{name}{AT}{share:g}"


def scored(name: str) -> tuple[str, str] | None:
    """Task and metric of a score at the end of training; None for any other number."""
    if not name.startswith(EVAL) or name.endswith((STDERR, ITEMS)) or AT in name:
        return None
    task, _, metric = name.removeprefix(EVAL).rpartition(".")
    return task, metric


def loss_at_length(scaling: str) -> str:
    """Mean loss of sequences longer than trained, by length: ``none``, ``linear``, ``yarn``."""
    return f"{LOSS_AT_LENGTH}.{scaling}"


def loss_at_position(scaling: str, length: int) -> str:
    """Loss by position in sequences of a length beyond the trained one."""
    return f"{LOSS_AT_POSITION}.{scaling}.{length}"


def attention(statistic: str) -> str:
    """A statistic of attention, by layer."""
    return f"attention.{statistic}"


def inference(kind: str) -> str:
    """Tokens per second of ``prefill`` or ``decoding``."""
    return f"inference.{kind}"


def inference_ratio(kind: str) -> str:
    """How many times as fast as the baseline, measured in turn with it."""
    return f"{inference(kind)}.ratio"
