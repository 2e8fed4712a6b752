from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import torch
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer, LlamaConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from prism_transformer.core.errors import InputError
from prism_transformer.eval.harness import _load
from prism_transformer.eval.lm import WatchedLM, quiet_harness
from prism_transformer.eval.results import metrics
from prism_transformer.eval.retrieval import (
    CHOICES,
    DEPTHS,
    LENGTHS,
    NEEDLE,
    PASSKEY,
    retrieval_items,
    task_names,
)
from prism_transformer.eval.task_data import write_overlay
from prism_transformer.eval.tasks import choose_tasks, shown_metrics

BOTH = (PASSKEY, NEEDLE)


class Scripted(LM):
    """A model of lm_eval's whose likelihoods are a function of the text."""

    def __init__(self, score: Callable[[str, str], float]) -> None:
        super().__init__()
        self.score = score

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> list[Any]:
        return [(self.score(*request.args), False) for request in requests]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
        raise NotImplementedError

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        raise NotImplementedError


def copies(context: str, continuation: str) -> float:
    """Whether the last three words and what follows have stood in the text before."""
    asked = " ".join(context.split()[-4:])
    return float(asked + continuation in context)


def guesses(context: str, continuation: str) -> float:
    """Whatever the number itself says; it never looks at the text."""
    return float(sum(map(ord, continuation)) * 7919 % 1009)


def accuracies(
    task: str, model: LM, folder: Path, only: list[str] | None = None
) -> dict[str, float]:
    with quiet_harness():
        planned = write_overlay(folder, [task], None)
        loaded, failures = _load(folder, planned, lambda _event: None)
        assert not failures
        named = zip(task_names(task), loaded[task].objects, strict=True)
        chosen = [each for name, each in named if only is None or name in only]
        raw = lm_eval.simple_evaluate(
            model, tasks=chosen, task_manager=TaskManager(include_defaults=False)
        )
    assert raw is not None
    return {name: each["acc"] for name, each in metrics(raw).items()}


@pytest.mark.parametrize("task", BOTH)
def test_a_model_that_copies_is_right_and_one_that_guesses_has_chance(
    task: str, tmp_path: Path
) -> None:
    """At every length and depth, through lm_eval."""
    for name, score, right in (("one", copies, 1.0), ("two", guesses, 1 / CHOICES[task])):
        (tmp_path / name).mkdir()
        found = accuracies(task, Scripted(score), tmp_path / name)
        assert sorted(found) == sorted(task_names(task))
        assert found == pytest.approx(dict.fromkeys(found, right))


class Copier(PreTrainedModel):
    """Says what followed the last ``k`` tokens where they stood before; of k = 0 nothing."""

    config_class = LlamaConfig

    def __init__(self, config: LlamaConfig, k: int) -> None:
        super().__init__(config)
        self.k, self.nothing = k, torch.nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        logits = self.nothing.repeat(*input_ids.shape, 1)
        for row, tokens in enumerate(input_ids.tolist() if self.k else ()):
            followed: dict[tuple[int, ...], int] = {}
            for place in range(self.k, len(tokens) + 1):
                seen = tuple(tokens[place - self.k : place])
                if seen in followed:
                    logits[row, place - 1, followed[seen]] += 20
                if place < len(tokens):
                    followed[seen] = tokens[place]
        return CausalLMOutput(logits=logits)


@pytest.mark.slow
@pytest.mark.parametrize("task", BOTH)
def test_a_model_with_logits_that_copies_and_one_without_an_opinion(
    task: str, small_model: Path, tmp_path: Path
) -> None:
    """Token by token, as every Hugging Face model is scored."""
    words = AutoTokenizer.from_pretrained(small_model)
    config = LlamaConfig(vocab_size=len(words), max_position_embeddings=2048)
    short = [name for name in task_names(task) if int(name.split("_")[1]) <= 1024]
    for k, right in ((20, 1.0), (0, 1 / CHOICES[task])):
        (tmp_path / str(k)).mkdir()
        model = WatchedLM(
            pretrained=Copier(config, k), tokenizer=words, batch_size=16, device="cpu"
        )
        found = accuracies(task, model, tmp_path / str(k), short)
        assert sorted(found) == sorted(short)
        assert found == pytest.approx(dict.fromkeys(found, right))
        assert model.truncated == 0


@pytest.mark.parametrize("task", BOTH)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_items_have_their_length_and_depth(task: str, length: int, depth: int) -> None:
    items = retrieval_items(task, length, depth)
    assert len(items) == 20
    for item in items:
        assert length - 80 < len(item.text) <= length
        right = item.choices[item.answer]
        asked = " ".join(item.text.split()[-4:])
        assert item.text.count(f"{asked} {right}.") == 1
        at = item.text.index(f"{asked} {right}.") / (len(item.text) - len(asked))
        assert at == pytest.approx(depth / 100, abs=150 / length)
        there = [choice for choice in item.choices if choice in item.text]
        assert len(there) == (1 if task == PASSKEY else 4)  # others' numbers are all there


@pytest.mark.parametrize("task", BOTH)
def test_every_choice_is_right_once_in_a_set(task: str) -> None:
    items, n = retrieval_items(task, 1024, 50), CHOICES[task]
    for start in range(0, len(items), n):
        group = items[start : start + n]
        assert len({item.choices for item in group}) == 1
        assert sorted(item.answer for item in group) == list(range(n))
        if task == NEEDLE:  # the same words, otherwise dealt out
            assert len({tuple(sorted(Counter(item.text.split()).items())) for item in group}) == 1
    assert len({item.text for item in items}) == len(items)


def test_tasks_are_named_like_any_other() -> None:
    assert choose_tasks("passkey,needle") == [PASSKEY, NEEDLE]
    assert set(shown_metrics(PASSKEY)) == set(task_names(PASSKEY))
    with pytest.raises(InputError, match="did you mean 'passkey'"):
        choose_tasks("paskey")
