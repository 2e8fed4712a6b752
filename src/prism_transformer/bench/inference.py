"""Speed of a model that is only used: reading a prompt, and decoding after it."""

from __future__ import annotations

from typing import Any

from prism_transformer.bench import ways
from prism_transformer.bench.rounds import Way, interleave, timings
from prism_transformer.model import PrismLM
from prism_transformer.recipe import ModelConfig
from prism_transformer.train.device import Settings

KINDS = ("prefill", "decoding")


def against(
    config: ModelConfig,
    baseline: ModelConfig,
    prompt: int,
    n_new: int,
    rounds: int,
    settings: Settings,
) -> dict[str, Any]:
    """Seconds of a model and of its baseline in interleaved rounds, one sequence at a time.

    Weights are drawn anew: no speed depends on what was learnt. The prompt that is read is a whole
    context, the one that is decoded from has ``prompt`` tokens.
    """
    ours, theirs = (_ways(each, prompt, n_new, settings) for each in (config, baseline))
    found: dict[str, Any] = {}
    for kind, tokens in zip(KINDS, (config.seq_len, n_new), strict=True):
        turns = interleave({"arm": ours[kind], "baseline": theirs[kind]}, rounds)
        taken = timings(turns)
        found[kind] = {
            "tokens": tokens,
            "seconds": taken["arm"].seconds,
            "baseline_seconds": taken["baseline"].seconds,
        }
    return {"prompt": prompt, "rounds": rounds, "kinds": found}


def _ways(config: ModelConfig, prompt: int, n_new: int, settings: Settings) -> dict[str, Way]:
    model = PrismLM(config).to(settings.device, settings.dtype).eval()
    tokens = ways.some_tokens(config, 1, config.seq_len, settings.device)
    return {
        "prefill": ways.prefill(model, tokens, settings),
        "decoding": ways.decode(model, tokens[:, :prompt], n_new, settings),
    }
