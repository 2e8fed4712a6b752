"""lm_eval's model of a masked LM: pseudo-log-likelihoods in place of likelihoods.

A text's score is the sum over its tokens of how likely each is when it alone is masked and all of
the others are seen. What follows a context is scored the same way, the context in full view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from prism_transformer.core.errors import InputError, RunError
from prism_transformer.eval.lm import WatchedLM, open_model
from prism_transformer.hf.load import is_masked, read_any, read_config, read_tokenizer


@dataclass(frozen=True)
class Gap:
    """One token of one request, masked."""

    request: int
    tokens: list[int]
    place: int


class PseudoLM(WatchedLM):
    """Scores requests by one pass for each of their tokens."""

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        raise RunError("a masked language model has no perplexity of a whole text; leave this out")

    @torch.no_grad()
    def _loglikelihood_tokens(
        self, requests: Any, disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        gaps = [gap for n, request in enumerate(requests) for gap in self._gaps(n, *request[1:])]
        left = [0] * len(requests)
        for gap in gaps:
            left[gap.request] += 1
        sums, greedy = [0.0] * len(requests), [True] * len(requests)
        gaps.sort(key=lambda gap: (len(gap.tokens), gap.request))  # little is filled up
        size = override_bs or self.batch_size
        for start in range(0, len(gaps), size):
            batch = gaps[start : start + size]
            for gap, (score, best) in zip(batch, self._scores(batch), strict=True):
                sums[gap.request] += score
                greedy[gap.request] &= best
                left[gap.request] -= 1
                self.done += not left[gap.request]
            if self.report is not None:
                self.report(min(self.done, self.total), self.total)
        return list(zip(sums, greedy, strict=True))

    def _gaps(self, request: int, context: list[int], continuation: list[int]) -> list[Gap]:
        """A gap for each token to score; texts end as the tokenizer ends them."""
        sep = self.tokenizer.sep_token_id
        end = [] if sep is None else [sep]
        room = self.max_length - len(end)
        if len(continuation) > room:
            raise RunError(
                f"a text of {len(continuation)} tokens must be scored whole, the model sees {room}"
            )
        self.truncated += len(context) + len(continuation) > room
        tokens = [*context, *continuation][-room:]
        first = len(tokens) - len(continuation)
        return [Gap(request, [*tokens, *end], place) for place in range(first, len(tokens))]

    def _scores(self, batch: list[Gap]) -> list[tuple[float, bool]]:
        """Log-probability of each gap's token, and whether none is likelier."""
        longest = max(len(gap.tokens) for gap in batch)
        rows = torch.zeros(len(batch), longest, dtype=torch.long)
        seen = torch.zeros_like(rows)
        for row, gap in enumerate(batch):
            rows[row, : len(gap.tokens)] = torch.tensor(gap.tokens)
            seen[row, : len(gap.tokens)] = 1
        every, places = torch.arange(len(batch)), torch.tensor([gap.place for gap in batch])
        wanted = rows[every, places]
        rows[every, places] = self.tokenizer.mask_token_id
        logits = self.model(
            input_ids=rows.to(self.device), attention_mask=seen.to(self.device)
        ).logits
        chances = logits[every, places].float().log_softmax(-1).cpu()
        found = chances[every, wanted]
        best = chances.argmax(-1) == wanted
        return list(zip(found.tolist(), best.tolist(), strict=True))


def open_any(source: str, dtype: str, batch: int, device: str) -> WatchedLM:
    """A causal LM as lm_eval opens it; a masked one, which it cannot open, is handed over open."""
    if not is_masked(read_config(source)):
        return open_model(source, dtype, batch, device)
    tokenizer: Any = read_tokenizer(source, required=True)
    if tokenizer.mask_token_id is None:
        raise InputError(f"{source}: is a masked language model, and its tokenizer has no mask")
    before = tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    return PseudoLM(
        pretrained=read_any(source, getattr(torch, dtype)).to(device), tokenizer=tokenizer,
        backend="causal", batch_size=batch, prefix_token_id=before,
    )  # fmt: skip
