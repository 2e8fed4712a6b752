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
    if config.model_copy(update={"schedule": baseline.schedule}) == baseline:
        # On one set of weights: where in memory a second one lies may cost some percent.
        model = _model(config, settings)
        each = _ways(model, prompt, n_new, settings)
        ours, theirs = (
            {kind: ways.with_schedule(model, one.schedule, way) for kind, way in each.items()}
            for one in (config, baseline)
        )
    else:
        ours, theirs = (
            _ways(_model(one, settings), prompt, n_new, settings) for one in (config, baseline)
        )
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


def _model(config: ModelConfig, settings: Settings) -> PrismLM:
    return PrismLM(config).to(settings.device, settings.dtype).eval()


def _ways(model: PrismLM, prompt: int, n_new: int, settings: Settings) -> dict[str, Way]:
    tokens = ways.some_tokens(model.config, 1, model.config.seq_len, settings.device)
    return {
        "prefill": ways.prefill(model, tokens, settings),
        "decoding": ways.decode(model, tokens[:, :prompt], n_new, settings),
    }
