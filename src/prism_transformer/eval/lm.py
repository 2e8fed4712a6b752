"""lm_eval's own Hugging Face model, with three additions: progress, a count, a plain error.

It reaches into lm_eval where there is no other way; pyproject.toml pins the version for that.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import datasets
import torch
from lm_eval import evaluator
from lm_eval.api import task as lm_eval_task
from lm_eval.models.huggingface import HFLM

from prism_transformer.core.errors import InputError, RunError, first_line
from prism_transformer.hf.load import (
    NO_REMOTE_CODE,
    quiet,
)  # whose package registers the architecture
from prism_transformer.training.device import find_device

Report = Callable[[int, int], None]


class WatchedLM(HFLM):
    """Scores as its parent does, and tells how many sequences are done of how many."""

    report: Report | None = None
    # Sequences of the present task. Requests that share a context are scored together, so that
    # what is done may stay below the total.
    done = 0
    total = 0
    truncated = 0

    def beginning(self) -> dict[str, Any]:
        """What stands before a text: the model's policy on a token that begins a document."""
        plain = self.tokenizer.encode("a", add_special_tokens=False)
        return {
            "tokenizer_adds_tokens": self.tok_encode("a") != plain,
            "before_an_empty_context": self.tokenizer.decode([self.prefix_token_id]),
            "prefix_token_id": self.prefix_token_id,
        }

    def begin(self, report: Report) -> None:
        """Count from nothing, for a new task."""
        self.report, self.done, self.total, self.truncated = report, 0, 0, 0

    def all_truncated(self) -> int:
        """Texts that lost their beginning, over all processes."""
        return int(self.all_gather(torch.tensor(self.truncated, device=self.device)).sum())

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        self.total += len(requests)
        return super().loglikelihood(requests, disable_tqdm=True)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        lengths = (len(self.tok_encode(request.args[0])) for request in requests)
        self.total += sum(-(-length // self.max_length) for length in lengths)
        return super().loglikelihood_rolling(requests, disable_tqdm=True)

    def _loglikelihood_tokens(
        self, requests: Any, disable_tqdm: bool = False, override_bs: int | None = None
    ) -> Any:
        longest = max((len(continuation) for _, _, continuation in requests), default=0)
        if longest > self.max_length:
            # The parent would cut it and score what is left: a wrong number without a word.
            raise RunError(
                f"a text of {longest} tokens must be scored whole, the model sees {self.max_length}"
            )
        lengths = (len(context) + len(rest) for _, context, rest in requests if context)
        self.truncated += sum(length > self.max_length + 1 for length in lengths)
        return super()._loglikelihood_tokens(requests, True, override_bs)

    def _model_call(self, inps: Any, attn_mask: Any = None, labels: Any = None) -> Any:
        logits = super()._model_call(inps, attn_mask, labels)
        self.done = min(self.done + len(inps), self.total)
        if self.report is not None:
            self.report(self.done, self.total)
        return logits


def open_model(source: str, dtype: str, batch: int, device: str) -> WatchedLM:
    """Open a Hugging Face folder or hub model as lm_eval does."""
    if device == "cpu":
        # Or accelerate looks for GPUs, finds none, and every process does all of the work.
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    try:
        model = WatchedLM(
            pretrained=source, dtype=dtype, batch_size=batch, device=device, **NO_REMOTE_CODE
        )
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{source}: cannot be opened: {first_line(error)}") from None
    if hasattr(model, "accelerator"):
        # lm_eval numbers processes within a machine, and only where it has several GPUs.
        model._rank = model.accelerator.process_index
        model._world_size = model.accelerator.num_processes
    return model


def choose_device(name: str) -> str:
    """A device that lm_eval and this machine know."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device {name!r}: evaluation runs on cuda and on cpu")
    return find_device(name).type


@contextmanager
def quiet_harness() -> Iterator[None]:
    """No bars and no advice from the libraries: progress is ours, and what matters is recorded."""
    logger = logging.getLogger("lm_eval")
    level, bars = logger.level, not datasets.are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        with (
            quiet(),
            _swapped(lm_eval_task, "tqdm", lambda items, **_: items),
            # A second for each task, and git's complaint where there is no repository.
            _swapped(evaluator, "add_env_info", lambda _: None),
            _swapped(evaluator, "get_git_commit_hash", lambda: None),
        ):
            yield
    finally:
        logger.setLevel(level)
        if bars:
            datasets.enable_progress_bars()


@contextmanager
def _swapped(module: Any, name: str, other: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, other)
    try:
        yield
    finally:
        setattr(module, name, before)
